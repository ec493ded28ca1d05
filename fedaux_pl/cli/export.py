"""``fedaux-pl export``: the models of a run for other programs, with a model card."""

import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from jsonargparse import Namespace
from torch import nn

from fedaux_pl._version import __version__
from fedaux_pl.algorithms import FedBN
from fedaux_pl.callbacks.client_results import as_markdown
from fedaux_pl.cli.card_accuracy import Figures, accuracy_rows, find_monitor, find_test_figures
from fedaux_pl.cli.client_option import ClientModel, load_client_model
from fedaux_pl.cli.load_run import load_run
from fedaux_pl.errors import ConfigurationError, counted
from fedaux_pl.files import write_atomically, write_text_atomically
from fedaux_pl.models import ModelEnsemble, module_of, save_ensemble, trained_models
from fedaux_pl.names import Markup, markdown_safe, terminal_safe

OPSET = 20  # of ONNX's operators, so that files do not change with the exporter's default
_LOADING = {  # by a file of the export
    "config.json": """```python
from fedaux_pl import load_exportedIMPORTS

model = load_exported("FOLDER")  # an nn.Module in evaluation mode
probabilities = model(inputs)  # shape (N, classes)
```""",
    "model.onnx": """```python
import json

import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
(probabilities,) = session.run(None, {"inputs": inputs})  # DTYPE array
classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
```""",
}


def write_export(options: Namespace) -> Path:
    """Write the models of a run as safetensors or ONNX, with a model card."""
    output = Path(options.output)
    formats = options.format.split(",")
    checkpoint, loaded = load_run(options.run, options)
    if is_used(output) and not options.overwrite:
        raise ConfigurationError(
            f"{output.absolute()} is not empty: add --overwrite, or give --output another folder"
        )
    if "onnx" in formats and not (find_spec("onnx") and find_spec("onnxscript")):
        raise ConfigurationError(
            "the format onnx needs onnx and onnxscript: run `pip install -e '.[onnx]'` in "
            "the clone of fedaux-pl"
        )
    federation = loaded["federation"]
    client = load_client_model(checkpoint, options)
    used = dict(federation)  # with the settings of what is written
    if client is None:
        models = trained_models(loaded)
        whose = ""
    else:
        models = {client.architecture: client.model}
        settings = {**federation["settings"], "batchnorm_statistics": client.statistics}
        used |= {"settings": settings}
        whose = f"the model of {terminal_safe(client.name)}, with {', '.join(client.reasons)}; "
    graph = to_onnx(models, used) if "onnx" in formats else b""
    for pattern in ("config.json", "model.onnx", "model*.safetensors"):  # of an earlier export
        for path in output.glob(pattern):
            path.unlink()
    written = []
    if graph:
        write_atomically(output / "model.onnx", lambda file: file.write(graph))
        written.append("model.onnx")
    if "safetensors" in formats:
        written += save_ensemble(output, models, used)
    rounds = _last_round(federation)["round"]
    tested = find_test_figures(checkpoint, federation, int(rounds))
    monitor = find_monitor(checkpoint, loaded.get("callbacks", {}))
    card = model_card(federation, written, checkpoint.name, client, tested, monitor)
    write_text_atomically(output / "README.md", card)
    files = ", ".join([*written, "README.md"])
    print(f"{files}: {output} ({whose}from {checkpoint}, round {rounds:.0f})")
    return output


def is_used(path: Path) -> bool:
    """Return whether a path is a file, or a folder that is not empty."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def write_client_model(folder: Path, client: ClientModel, federation: Mapping[str, Any]) -> None:
    """Write the model of a client as safetensors, with a model card."""
    written = save_ensemble(folder, {client.architecture: client.model}, federation)
    card = model_card(federation, written, "the server's last request", client)
    write_text_atomically(folder / "README.md", card)


def to_onnx(models: Mapping[str, nn.Module], federation: Mapping[str, Any]) -> bytes:
    """Return the ONNX model that maps uint8 images, or int64 token ids, to class probabilities.

    Its input is called ``inputs`` and its output ``probabilities``; the batch size is free. The
    names of the classes are a JSON list in its metadata, ``classes``.
    """
    shape = federation["input_shape"]
    dtype = torch.uint8 if len(shape) == 3 else torch.int64
    # the exporter warns about operators of torchvision that no model here has
    logging.getLogger("torch.onnx._internal.exporter._schemas").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's own deprecations
        warnings.simplefilter("ignore", DeprecationWarning)
        program = torch.onnx.export(
            ModelEnsemble(models).eval(),
            (torch.ones(2, *shape, dtype=dtype),),
            dynamo=True,
            opset_version=OPSET,
            input_names=["inputs"],
            output_names=["probabilities"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            verbose=False,
        )
    assert program is not None  # noqa: S101 - for mypy
    program.model.metadata_props["classes"] = json.dumps(federation["classes"])
    content: bytes = program.model_proto.SerializeToString()
    return content


def model_card(
    federation: Mapping[str, Any],
    files: Sequence[str],
    checkpoint: str,
    client: ClientModel | None = None,
    tested: Figures = MappingProxyType({}),
    monitor: str = "",
) -> str:
    """Return a README.md about the models of a checkpoint, given its entry ``federation``.

    It is about the model of a ``client``; None for the server's models. ``tested`` has the metrics
    on test data with the same weights, ``monitor`` is the metric by which the round was chosen.
    """
    settings = federation["settings"]
    classes = federation["classes"]
    data = settings["data"]
    algorithm = dict(settings["algorithm"])
    method = algorithm.pop("method")
    name = federation.get("data_names", data)["private"]
    rounds = int(_last_round(federation)["round"])
    is_image = len(federation["input_shape"]) == 3
    shape = "x".join(map(str, federation["input_shape"]))
    clients = ", ".join(f"{count} x {name}" for name, count in settings["clients"].items())
    role = f"{settings['participation']:.0%} take part in a round"
    if not algorithm.pop("trains_clients", True):
        count = "two releases" if len(federation["releases"]) > 1 else "one release"
        role = f"each sends {count} and no model"
    split = f"{data['num_clients']} given clients"
    if data["alpha"] is not None:
        split = f"split over {data['num_clients']} clients by Dirichlet(alpha = {data['alpha']:g})"
    rows = [
        ("method", f"{method}, {counted(rounds, 'round')}"),
        ("weights", f"{checkpoint}, after round {rounds}"),
        ("settings of the method", _inline(algorithm)),
        ("clients", f"{clients}; {role}"),
        ("private data", f"{_name_data(federation, 'private')}, {split}"),
        ("auxiliary data", _name_data(federation, "auxiliary")),
        *accuracy_rows(federation, _last_round(federation), tested, monitor, client),
        ("classes", ", ".join(map(str, classes[:20])) + (", ..." if len(classes) > 20 else "")),
        ("inputs", f"{'images, uint8' if is_image else 'token ids'}, {shape}"),
        ("seed", settings["seed"]),
    ]
    input_format = federation["input_format"]
    if "background" in input_format:
        rows.append(("transparent pictures", f"on a {input_format['background']} background"))
    elif input_format:
        rows.append(("tokenizer", _inline(input_format)))
    whose = _whose(settings, client)
    if whose:
        rows.insert(2, ("model", whose))
    lines = list(federation["privacy"])
    if client is not None:
        lines.append(f"NOT private: this model: it depends on the training data of {client.name}")
    privacy = "\n".join(f"- {markdown_safe(line)}" for line in lines)
    load = "\n\n".join(text for name, text in _LOADING.items() if name in files)
    modules = dict.fromkeys(filter(None, map(module_of, settings["clients"])))
    imports = "".join(f"\nimport {name}  # with the network" for name in modules)
    return f"""---
library_name: fedaux-pl
---

# {markdown_safe(method)} on {markdown_safe(name)}

Trained by federated learning with fedaux-pl {__version__}.

{as_markdown([("", ""), *rows])}

## Privacy

{privacy}

## Load

{load.replace("DTYPE", "uint8" if is_image else "int64").replace("IMPORTS", imports)}
"""


def _last_round(federation: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the measurements of the last round, which may not be in the history yet."""
    last = federation["metrics"] or (federation["history"] or [{}])[-1]
    return {"round": len(federation["history"]), **last}


def _name_data(federation: Mapping[str, Any], part: str) -> str:
    """Return the name of the private or the auxiliary data, with the class of their source."""
    source = federation["settings"]["data"][part]
    name = federation.get("data_names", {}).get(part)  # which earlier checkpoints lack
    if source is None:
        return "none"
    return str(source) if name in (None, source) else f"{name} ({source})"


def _whose(settings: Mapping[str, Any], client: ClientModel | None) -> str:
    """Say whose BatchNorm and whose fine-tuning a model has; empty if clients have no others."""
    if client is not None:
        reasons = ", ".join(client.reasons)
        return f"that of {client.name}: the server's{' with ' if reasons else ''}{reasons}"
    others = "`export --client NAME` writes the model of a client"
    method = settings["algorithm"]
    if method["method"] == FedBN.__name__:
        averaged = "the weights are" if method["kept"] == "all" else "BatchNorm is"
        return Markup(f"the server's: {averaged} the average of the clients'; {others}")
    if settings["batchnorm_statistics"] == "own" or settings["local"].get("fine_tuning"):
        text = "the server's, with its BatchNorm statistics and not fine-tuned"
        return Markup(f"{text}; {others}")
    return ""


def _inline(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items()) or "defaults"
