"""Weights in files: h alone, such as a pre-trained h_0, and the models that a federation trained.

Nothing here needs Lightning.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.files import write_atomically, write_text_atomically
from fedaux_pl.models.adapted_network import AdaptedNetwork
from fedaux_pl.models.classifier import backbone_state, of_head
from fedaux_pl.models.export_config import CONFIG, FORMAT, read_config
from fedaux_pl.models.registry import (
    check_imported,
    complete_options,
    create_for,
    create_model,
    options_of,
    state_key,
)

_TENSOR = 1000  # what the Python objects of a tensor count for, in elements


def save_backbone(path: str | Path, model: nn.Module) -> Path:
    """Save the weights of h, without the layer ``head``, for ``load_backbone``; return the path."""
    write_safetensors(Path(path), backbone_state(model.state_dict()), _describe(model))
    return Path(path)


def load_backbone(model: nn.Module, state: Mapping[str, Tensor] | str | Path) -> list[str]:
    """Load the weights of h, such as a pre-trained h_0, and leave the layer ``head`` as it is.

    ``state`` is the state dict of h, or a safetensors file, such as ``save_backbone`` writes.
    Networks of torchvision and timm also read the weights of their library. Entries of a head are
    left out; their names are returned. A ValueError tells that weights are of another
    architecture, or that they were trained on inputs that were normalized in another way.

    Examples:
        >>> import tempfile
        >>> from fedaux_pl.models import create_model
        >>> pretrained = create_model("resnet8", num_classes=1, width=0.125)
        >>> model = create_model("resnet8", num_classes=10, width=0.125)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     load_backbone(model, save_backbone(f"{folder}/h0.safetensors", pretrained))
        []
        >>> bool((model.conv1.weight == pretrained.conv1.weight).all())
        True
    """
    saved: dict[str, str] = {}
    source = "these weights"
    if not isinstance(state, Mapping):
        state, saved = read_safetensors(Path(state))
        source = f"these weights, of {saved.get('architecture', 'an unknown architecture')},"
    named = model.from_library(state) if isinstance(model, AdaptedNetwork) else state
    left_out = [key for key, name in zip(state, named, strict=True) if of_head(name)]
    given = backbone_state(named)
    misfit = _describe_misfit(model, given)
    if misfit:
        raise ValueError(
            f"{source} are not of this architecture: {misfit}; create the model with the name and "
            "options that the weights were trained with, images of their size included."
        )
    now = _describe(model).get("normalization")
    before = saved.get("normalization", now)
    if before != now:
        raise ValueError(
            f"{source} were trained on inputs normalized with {before}, but this model has {now}; "
            "create it with the same mean and std."
        )
    model.load_state_dict(given, strict=False)
    return left_out


def _describe_misfit(model: nn.Module, given: Mapping[str, Tensor]) -> str:
    """Name the entries of h that a state dict lacks, has besides or has in another shape."""
    expected = backbone_state(model.state_dict())
    common = expected.keys() & given.keys()
    reshaped = sorted(key for key in common if expected[key].shape != given[key].shape)
    kinds = {
        "missing": sorted(expected.keys() - common),
        "unexpected": sorted(given.keys() - common),
        "of another shape": reshaped,
    }
    texts = []
    for kind, keys in kinds.items():
        if keys:
            texts.append(f"{len(keys)} entries are {kind}, such as '{keys[0]}'")
    if reshaped:
        got = tuple(given[reshaped[0]].shape)
        texts[-1] += f" (got {got}, expected {tuple(expected[reshaped[0]].shape)})"
    return ", ".join(texts)


def load_network(path: str | Path) -> nn.Module:
    """Create the network of a file that ``save_backbone`` has written, with its h and a new head.

    If it was named by its class path, import its module before.
    """
    state, about = read_safetensors(Path(path))
    name, _, text = about.get("architecture", "").partition(" ")
    try:
        options = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{path} does not say of which network its weights are: write it by `fedaux-pl "
            "pretrain --output`, or by save_backbone with a model of create_model"
        ) from error
    check_imported([name], str(path))

    with _limited_by(state, str(path)):
        completed = complete_options(name, **options)
        if "pretrained" in completed:  # no weights but those of the file
            completed["pretrained"] = False
        model = create_model(name, 1, **completed)
        load_backbone(model, state)
    return model


def _describe(model: nn.Module) -> dict[str, str]:
    """Return what a file says about the architecture of its weights."""
    about = {"architecture": type(model).__name__}
    created = getattr(model, "created_as", None)
    if created is not None:
        options = json.dumps(created["options"], default=str, sort_keys=True)
        about["architecture"] = f"{created['name']} {options}"
    normalize = getattr(model, "normalize", None)
    if isinstance(normalize, nn.Module):
        about["normalization"] = normalize.extra_repr()
    return about


def write_safetensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file."""
    from safetensors.torch import save

    # own memory for each: tensors that share some cannot be saved
    copies = {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}
    content = save(copies, dict(metadata))
    write_atomically(path, lambda file: file.write(content))


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file: its tensors, on the CPU, and its metadata."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ConfigurationError(f"there is no file {path.absolute()}: correct the path")
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118 - not a dict
    except SafetensorError as error:
        raise ConfigurationError(
            f"{path} cannot be read as safetensors ({error}): it is damaged or of another format"
        ) from error


def trained_models(checkpoint: Mapping[str, Any]) -> dict[str, nn.Module]:
    """Create the models of a federation with the weights of its loaded checkpoint, by name.

    A network that was named by its class path must be imported before.
    """
    federation = checkpoint["federation"]
    settings = federation["settings"]
    shape = federation["input_shape"]
    check_imported(settings["clients"])
    models: dict[str, nn.Module] = {}
    for name in settings["clients"]:
        options = options_of(name, settings["clients"], settings["model_options"])
        prefix = f"students.{state_key(name)}."
        weights = checkpoint["state_dict"]
        state = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        count = len(federation["classes"])
        models[name] = _recreate(name, options, shape, count, state, f"the checkpoint's {name}")
    return models


class ModelEnsemble(nn.Module):
    """Class probabilities of the mean of the models' logits.

    Args:
        models: The models by name.
        config: What is known about them, such as ``classes``, see ``save_ensemble``.
        batchnorm: ``running``, or ``batch`` for the statistics of each batch, with which version
            1.0 exported some models.

    Examples:
        >>> from fedaux_pl.models import create_model
        >>> model = create_model("resnet8", num_classes=10, width=0.125)
        >>> ensemble = ModelEnsemble({"resnet8": model}).eval()
        >>> ensemble(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).sum(dim=1).detach().round()
        tensor([1., 1.])
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        config: Mapping[str, Any] | None = None,
        batchnorm: str = "running",
    ) -> None:
        super().__init__()
        self.models = nn.ModuleList(models.values())
        self.config = dict(config or {})
        for layer in self.modules():
            if batchnorm == "batch" and isinstance(layer, _BatchNorm):
                layer.track_running_stats = False  # without them it uses those of the batch
                layer.running_mean = layer.running_var = layer.num_batches_tracked = None

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to class probabilities of shape (N, C)."""
        logits = [model(x).float() for model in self.models]
        return torch.stack(logits).mean(dim=0).softmax(dim=-1)


def save_ensemble(
    folder: Path, models: Mapping[str, nn.Module], federation: Mapping[str, Any]
) -> list[str]:
    """Write the weights of each model as safetensors, and last ``config.json``; return the names.

    ``models`` are those of ``trained_models``, ``federation`` is the entry of the checkpoint.
    """
    entries = []
    for name, model in models.items():
        recipe: dict[str, Any] = model.recipe()  # type: ignore[operator]
        suffix = f"-{name.replace('/', '_')}" if len(models) > 1 else ""
        file = f"model{suffix}.safetensors"
        about = {"architecture": json.dumps(recipe, default=str)}
        write_safetensors(folder / file, model.state_dict(), about)
        layer: Any = getattr(model, "normalize", None)  # None for text
        names = () if layer is None else ("mean", "std")
        constants = {name: getattr(layer, name).flatten().tolist() for name in names}
        entries.append({**recipe, "file": file, "normalization": constants or None})
    config = {
        "format": FORMAT,
        "models": entries,
        "classes": list(federation["classes"]),
        "input_shape": list(federation["input_shape"]),
        "input_format": federation.get("input_format") or {},
        "batchnorm": "running",
    }
    text = json.dumps(config, indent=2, default=str) + "\n"
    write_text_atomically(folder / CONFIG, text)
    return [*(str(entry["file"]) for entry in entries), CONFIG]


def load_exported(folder: str | Path) -> ModelEnsemble:
    """Load a folder that ``fedaux-pl export`` has written, in evaluation mode, without Lightning.

    The module maps uint8 images (N, C, H, W), or token ids (N, L), to class probabilities. Its
    ``config`` has the names of the classes and the shape of the inputs. Nothing is imported,
    downloaded or read but the folder's own files: if a network was named by its class path, import
    its module before.
    """
    config = read_config(Path(folder))
    shape = config["input_shape"]
    count = len(config["classes"])
    loaded = {}
    for index, model in enumerate(config["models"]):
        weights = Path(folder) / model["file"]
        state, _ = read_safetensors(weights)
        source = f"{Path(folder) / CONFIG}: models[{index}]: {weights.name}"
        loaded[model["file"]] = _recreate(
            model["name"], model["options"], shape, count, state, source
        )
    return ModelEnsemble(loaded, config, config["batchnorm"]).eval()


def _recreate(
    name: str,
    options: Mapping[str, Any],
    input_shape: Sequence[int],
    num_classes: int,
    state: Mapping[str, Tensor],
    source: str,
) -> nn.Module:
    """Create a model with the weights of a file."""
    options = {**options, "pretrained": False}
    with _limited_by(state, source):
        model = create_for(input_shape, name, num_classes, **options)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ConfigurationError(
            f"the weights of {source} do not fit: {_one_line(error)}"
        ) from error
    return model


@contextmanager
def _limited_by(state: Mapping[str, Tensor], source: str) -> Iterator[None]:
    """Let a model be created whose options allocate no more than the weights of a file."""
    # heads that are left out, as GoogLeNet's, are created, too
    limit = 4 * sum(value.numel() + _TENSOR for value in state.values()) + 1_000_000
    try:
        with _AllocationLimit(limit):
            yield
    # a constructor can raise nearly any exception for options of a wrong type or size
    except Exception as error:
        raise ConfigurationError(f"{source} cannot be created: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    """Return the beginning of an error's message in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


class _AllocationLimit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this context, tensors of more than ``limit`` elements in all are a ValueError."""

    def __init__(self, limit: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.limit = limit

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count what a function that creates tensors would allocate, and call it."""
        options = kwargs or {}
        if any(argument.name == "device" for argument in func._schema.arguments):
            tensor = func(*args, **{**options, "device": "meta"})
            self.limit -= tensor.numel() + _TENSOR
            if self.limit < 0:
                raise ValueError("its options ask for more than the file of its weights holds")
        return func(*args, **options)
