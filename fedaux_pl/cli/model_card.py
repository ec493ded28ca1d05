"""The model card of an export: what a run's models are, how good, and what they have cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedaux_pl import __version__
from fedaux_pl.errors import counted


def model_card(federation: Mapping[str, Any], files: Sequence[str], checkpoint: str) -> str:
    """Return a README.md about the models of a checkpoint.

    Args:
        federation: The entry ``federation`` of the checkpoint.
        files: The files beside the card.
        checkpoint: The name of the checkpoint.
    """
    settings, classes = federation["settings"], federation["classes"]
    data, algorithm = settings["data"], dict(settings["algorithm"])
    private, is_image = data.get("private"), len(federation["input_shape"]) == 3
    shape = "x".join(map(str, federation["input_shape"]))
    clients = ", ".join(f"{count} x {name}" for name, count in settings["clients"].items())
    role = f"{settings['participation']:.0%} take part in a round"
    if not algorithm.pop("trains_clients", True):
        count = "two releases" if federation.get("further") else "one release"
        role = f"each sends {count} and no model"
    split = f"{data.get('num_clients')} given clients"
    if data.get("alpha") is not None:
        split = f"split over {data['num_clients']} clients by Dirichlet(alpha = {data['alpha']:g})"
    method = algorithm.pop("method")
    rows = [
        ("method", f"{method}, {counted(rounds_of(federation), 'round')}"),
        ("weights", f"{checkpoint}, after round {rounds_of(federation)}"),
        ("settings of the method", _inline(algorithm)),
        ("clients", f"{clients}; {role}"),
        ("private data", f"{private}, {split}"),
        ("auxiliary data", data.get("auxiliary") or "none"),
        ("accuracy", _accuracy(federation)),
        ("classes", ", ".join(map(str, classes[:20])) + (", ..." if len(classes) > 20 else "")),
        ("inputs", f"{'images, uint8' if is_image else 'token ids'}, {shape}"),
        ("seed", settings["seed"]),
    ]
    if tokenizer := federation.get("input_format"):
        rows.append(("tokenizer", _inline(tokenizer)))
    table = "\n".join(f"| {name} | {str(value).replace('|', '/')} |" for name, value in rows)
    privacy = "\n".join(f"- {line}" for line in federation["privacy"])
    loading = {"config.json": _SAFETENSORS, "model.onnx": _ONNX}
    load = "\n\n".join(text for name, text in loading.items() if name in files)
    return f"""---
library_name: fedaux-pl
---

# {method} on {private}

Trained by federated learning with fedaux-pl {__version__}.

| | |
| --- | --- |
{table}

## Privacy

{privacy}

## Load

{load.replace("DTYPE", "uint8" if is_image else "int64")}
"""


_SAFETENSORS = """```python
from fedaux_pl import load_exported

model = load_exported("FOLDER")  # an nn.Module in evaluation mode
probabilities = model(inputs)  # shape (N, classes)
```"""
_ONNX = """```python
import json

import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
(probabilities,) = session.run(None, {"inputs": inputs})  # DTYPE array
classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
```"""


def rounds_of(federation: Mapping[str, Any]) -> int:
    """Return the number of rounds after which a checkpoint was written."""
    return int(_last(federation).get("round", len(federation["history"])))


def _last(federation: Mapping[str, Any]) -> Mapping[str, Any]:
    """The measurements of the last round, which may not be in the history yet."""
    last: Mapping[str, Any] = federation["round"] or (federation["history"] or [{}])[-1]
    return last


def _accuracy(federation: Mapping[str, Any]) -> str:
    last, settings = _last(federation), federation["settings"]
    kind, part = "accuracy", "test"
    if "val/accuracy" in last:
        kind, part = "val/accuracy", "validation"
    if kind not in last:
        return "not measured"
    text = f"{last[kind]:.2%} on the {part} data of {settings['data'].get('private')}"
    each = [f"{n} {last[k]:.2%}" for n in settings["clients"] if (k := f"{kind}/{n}") in last]
    if len(each) > 1:
        text += f", by the ensemble ({', '.join(each)} alone)"
    if settings["batchnorm"] == "batch":
        text += ", with the BatchNorm statistics of each batch"
    return text


def _inline(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items()) or "defaults"
