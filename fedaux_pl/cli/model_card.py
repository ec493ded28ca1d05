"""The model card of an export: what a run's models are, how good, and what they have cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedaux_pl import __version__
from fedaux_pl.errors import counted


def model_card(federation: Mapping[str, Any], files: Sequence[str], checkpoint: str) -> str:
    """Returns a README.md about the models of a checkpoint.

    Args:
        federation: The entry ``federation`` of the checkpoint.
        files: The files beside the card.
        checkpoint: The name of the checkpoint.
    """
    settings, classes = federation["settings"], federation["classes"]
    data, algorithm = settings["data"], dict(settings["algorithm"])
    shape = "x".join(map(str, federation["input_shape"]))
    kind = "images, uint8" if len(federation["input_shape"]) == 3 else "token ids"
    clients = ", ".join(f"{count} x {name}" for name, count in settings["clients"].items())
    role = f"{settings['participation']:.0%} take part in a round"
    if not algorithm.pop("trains_clients", True):
        role = "each sends one release and no model"
    method = algorithm.pop("method")
    rows = [
        ("method", f"{method}, {counted(rounds_of(federation), 'round')}"),
        ("weights", f"{checkpoint}, after round {rounds_of(federation)}"),
        ("settings of the method", _inline(algorithm)),
        ("clients", f"{clients}; {role}"),
        ("private data", f"{data.get('private')}, {_split(data)}"),
        ("auxiliary data", data.get("auxiliary") or "none"),
        ("accuracy", _accuracy(federation)),
        ("classes", ", ".join(map(str, classes[:20])) + (", ..." if len(classes) > 20 else "")),
        ("inputs", f"{kind}, {shape}"),
        ("seed", settings["seed"]),
    ]
    if tokenizer := federation.get("input_format"):
        rows.append(("tokenizer", _inline(tokenizer)))
    table = "\n".join(f"| {name} | {str(value).replace('|', '/')} |" for name, value in rows)
    privacy = "\n".join(f"- {line}" for line in federation["privacy"])
    return f"""---
library_name: fedaux-pl
---

# {method} on {data.get("private")}

Trained by federated learning with fedaux-pl {__version__}.

| | |
| --- | --- |
{table}

## Privacy

{privacy}

## Load

{_loading(federation, files)}
"""


def rounds_of(federation: Mapping[str, Any]) -> int:
    """The number of rounds after which a checkpoint was written."""
    return int(_last(federation).get("round", len(federation["history"])))


def _last(federation: Mapping[str, Any]) -> Mapping[str, Any]:
    """The measurements of the last round, which may not be in the history yet."""
    history = federation["history"]
    last: Mapping[str, Any] = federation["round"] or (history[-1] if history else {})
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


def _split(data: Mapping[str, Any]) -> str:
    if data.get("alpha") is None:
        return f"{data.get('num_clients')} given clients"
    return f"split over {data['num_clients']} clients by Dirichlet(alpha = {data['alpha']:g})"


def _inline(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items()) or "defaults"


def _loading(federation: Mapping[str, Any], files: Sequence[str]) -> str:
    sections = []
    if "config.json" in files:
        sections.append(
            "```python\nfrom fedaux_pl import load_exported\n\n"
            'model = load_exported("FOLDER")  # an nn.Module in evaluation mode\n'
            "probabilities = model(inputs)  # shape (N, classes)\n```"
        )
    if "model.onnx" in files:
        kind = "uint8" if len(federation["input_shape"]) == 3 else "int64"
        sections.append(
            "```python\nimport json\n\nimport onnxruntime\n\n"
            'session = onnxruntime.InferenceSession("model.onnx")\n'
            f'(probabilities,) = session.run(None, {{"inputs": inputs}})  # {kind} array\n'
            'classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])\n```'
        )
    return "\n\n".join(sections)
