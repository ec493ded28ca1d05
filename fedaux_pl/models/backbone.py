"""The weights of h, such as a pre-trained h_0: in a state dict, or in a file."""

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.files import write_atomically
from fedaux_pl.models.classifier import of_head


def save_backbone(path: str | Path, model: nn.Module) -> Path:
    """Save the weights of h as safetensors, for ``load_backbone``, and return the path.

    The file also has the name and the options of the architecture, for messages, but nothing of the
    layer that is called ``head``. It is replaced if it exists.
    """
    state = {key: value for key, value in model.state_dict().items() if not of_head(key)}
    write_tensors(Path(path), state, _describe(model))
    return Path(path)


def load_backbone(model: nn.Module, state: Mapping[str, Tensor] | str | Path) -> None:
    """Load the weights of h, such as a pre-trained h_0, and leave the layer ``head`` as it is.

    Args:
        model: A network f = g o h.
        state: The state dict of h, whose entries of a head are ignored, or a file that
            ``save_backbone`` has written.

    Raises:
        ValueError: If the weights do not belong to this architecture, or if a file's were trained
            on inputs that were normalized in another way.
        ConfigurationError: If a file is missing or damaged.

    Examples:
        >>> import tempfile
        >>> from fedaux_pl.models import create_model
        >>> pretrained = create_model("resnet8", num_classes=1, width=0.125)
        >>> model = create_model("resnet8", num_classes=10, width=0.125)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     load_backbone(model, save_backbone(f"{folder}/h0.safetensors", pretrained))
        >>> bool((model.conv1.weight == pretrained.conv1.weight).all())
        True
    """
    saved: dict[str, str] = {}
    source = "these weights"
    if not isinstance(state, Mapping):
        state, saved = read_tensors(Path(state))
        source = f"these weights, of {saved.get('architecture', 'an unknown architecture')},"
    own = {key: value for key, value in model.state_dict().items() if not of_head(key)}
    given = {key: value for key, value in state.items() if not of_head(key)}
    shapes = [{(key, value.shape) for key, value in part.items()} for part in (own, given)]
    if differing := sorted({key for key, _ in shapes[0] ^ shapes[1]}):
        raise ValueError(
            f"{source} are not of this architecture: {len(differing)} entries are missing, "
            f"unexpected or of another shape, such as '{differing[0]}'; create the model "
            "with the name and options that the weights were trained with."
        )
    now = _describe(model).get("normalization")
    if (before := saved.get("normalization", now)) != now:
        raise ValueError(
            f"{source} were trained on inputs normalized with {before}, but this model has {now}; "
            "create it with the same mean and std."
        )
    model.load_state_dict(given, strict=False)


def _describe(model: nn.Module) -> dict[str, str]:
    """Return what a file says about the architecture of its weights."""
    about = {"architecture": type(model).__name__}
    if (created := getattr(model, "created_as", None)) is not None:
        options = json.dumps(created["options"], default=str, sort_keys=True)
        about["architecture"] = f"{created['name']} {options}"
    if isinstance(normalize := getattr(model, "normalize", None), nn.Module):
        about["normalization"] = normalize.extra_repr()
    return about


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file."""
    from safetensors.torch import save

    # own memory for each: tensors that share some cannot be saved
    copies = {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}
    content = save(copies, dict(metadata))
    write_atomically(path, lambda file: file.write(content))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
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
