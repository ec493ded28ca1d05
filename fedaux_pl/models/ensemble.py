"""The models that a federation has trained: from its checkpoint, or from a folder of an export.

Nothing here needs Lightning.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.files import write_text_atomically
from fedaux_pl.models.backbone import read_tensors, write_tensors
from fedaux_pl.models.registry import create_for, create_model, options_of, state_key

FORMAT = 1
"""The format of an exported folder, increased when older ones become unreadable."""
CONFIG = "config.json"


def trained_models(checkpoint: Mapping[str, Any]) -> dict[str, nn.Module]:
    """Create the models of a federation with the weights of its loaded checkpoint, by name.

    Raises:
        ConfigurationError: If a model cannot be created here, or the weights do not fit.
    """
    federation, weights = checkpoint["federation"], checkpoint["state_dict"]
    settings, shape = federation["settings"], federation["input_shape"]
    models: dict[str, nn.Module] = {}
    for name in settings["clients"]:
        options = options_of(name, settings["clients"], settings["model_options"])
        options = {**options, "pretrained": False}  # the weights of the run are loaded below
        prefix = f"students.{state_key(name)}."
        own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        try:
            models[name] = create_for(shape, name, len(federation["classes"]), **options)
        except (ValueError, TypeError) as error:
            problem = f"the checkpoint's model cannot be created: {error}"
            raise ConfigurationError(problem) from error
        _load(models[name], own, f"the checkpoint's {name}")
    return models


class Ensemble(nn.Module):
    """Class probabilities of the mean of the models' logits.

    Args:
        models: The models by name.
        config: What is known about them: ``classes``, ``input_shape`` and more, see
            ``save_ensemble``.
        batchnorm: ``running``, or ``batch`` for the statistics of each batch.

    Examples:
        >>> from fedaux_pl.models import create_model
        >>> model = create_model("resnet8", num_classes=10, width=0.125)
        >>> ensemble = Ensemble({"resnet8": model}).eval()
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
        write_tensors(folder / file, model.state_dict(), about)
        entries.append({**recipe, "file": file, "normalization": _normalization(model)})
    config = {
        "format": FORMAT,
        "models": entries,
        "classes": list(federation["classes"]),
        "input_shape": list(federation["input_shape"]),
        "input_format": federation.get("input_format") or {},
        "batchnorm": federation["settings"]["batchnorm"],
    }
    text = json.dumps(config, indent=2, default=str) + "\n"
    write_text_atomically(folder / CONFIG, text)
    return [*(str(entry["file"]) for entry in entries), CONFIG]


def load_exported(folder: str | Path) -> Ensemble:
    """Load a folder that ``fedaux-pl export`` has written, in evaluation mode, without Lightning.

    The module maps uint8 images (N, C, H, W), or token ids (N, L), to class probabilities. Its
    ``config`` has the names of the classes and the shape of the inputs. A network that was named by
    its class path is imported from the Python path.

    Raises:
        ConfigurationError: If the folder is not a complete export, or a model cannot be created.
    """
    path = Path(folder) / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        entries, classes = config["models"], config["classes"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{Path(folder).absolute()} has no readable {CONFIG} of an export "
            f"({type(error).__name__}): give a folder that `fedaux-pl export` wrote"
        ) from error
    if config.get("format") != FORMAT:
        raise ConfigurationError(
            f"{path} has format {config.get('format')!r}, but this release reads format {FORMAT}: "
            "export the run again"
        )
    models = {}
    for entry in entries:
        try:
            model = create_model(entry["name"], len(classes), **entry["options"])
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"{path}: {error}") from error
        file = Path(folder) / Path(entry["file"]).name
        _load(model, read_tensors(file)[0], str(file))
        models[entry["file"]] = model
    return Ensemble(models, config, config["batchnorm"]).eval()


def _load(model: nn.Module, state: Mapping[str, Tensor], what: str) -> None:
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigurationError(f"the weights of {what} do not fit: {reason}") from error


def _normalization(model: nn.Module) -> dict[str, Sequence[float]] | None:
    """Return the constants of the input normalization; None for text."""
    layer: Any = getattr(model, "normalize", None)
    if layer is None:
        return None
    return {"mean": layer.mean.flatten().tolist(), "std": layer.std.flatten().tolist()}
