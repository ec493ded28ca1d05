"""An h_0 that was learned elsewhere: a file, a state dict or a module."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedaux_pl.algorithms import Algorithm
from fedaux_pl.errors import ConfigurationError, did_you_mean, first_line
from fedaux_pl.functional.averaging import State
from fedaux_pl.models import backbone_state, load_backbone
from fedaux_pl.modules.state_dicts import copy_state
from fedaux_pl.tensor_files import load_tensor_file

GivenH0 = str | Path | Mapping[str, Tensor] | nn.Module
"""A file, the state dict of h, or a module whose state dict it is."""
_BACKBONE = "backbone."  # the entries of h in a checkpoint of SimCLR or LanguageModeling


def choose_h0(
    in_memory: Mapping[str, GivenH0],
    option: str | Mapping[str, str] | None,
    architectures: Sequence[str],
    algorithm: Algorithm,
) -> Mapping[str, GivenH0]:
    """Return the given h_0 of each architecture; empty if h_0 is learned or not needed.

    Args:
        in_memory: What ``federation.h0`` was set to, by architecture.
        option: The files of ``pretraining.h0``, see ``files_of``.
        architectures: The names of all architectures, each of which needs an h_0.
        algorithm: The method; a given h_0 is refused if the method does not start from one.
    """
    files = files_of(option, architectures)
    check_names(files, architectures)
    if files and in_memory:
        raise ConfigurationError(
            "pretraining.h0 and federation.h0 are both set: leave out one of them"
        )
    given = files or in_memory
    if given and not algorithm.pretrained:
        raise ConfigurationError(
            f"an h_0 is given, but {algorithm.name} does not start from one: set "
            "algorithm.pretrained to true, or leave h_0 out"
        )
    return given


def files_of(
    option: str | Mapping[str, str] | None, architectures: Sequence[str]
) -> dict[str, str]:
    """Return the file of each architecture: one for the only one, or a folder's NAME.safetensors.

    Examples:
        >>> files_of("h0.safetensors", ["resnet8"])
        {'resnet8': 'h0.safetensors'}
    """
    if option is None:
        return {}
    if isinstance(option, Mapping):
        return dict(option)
    if len(architectures) == 1 and not Path(option).is_dir():
        return {architectures[0]: option}
    if Path(option).is_file():
        raise ConfigurationError(
            f"pretraining.h0: got one file for {', '.join(architectures)}; expected a folder that "
            f"`fedaux-pl pretrain --output` wrote, or {{{architectures[0]}: FILE, ...}}"
        )
    return {name: str(file_in(Path(option), name)) for name in architectures}


def file_in(folder: Path, architecture: str) -> Path:
    """Return the file of an architecture in a folder of several."""
    return folder / f"{architecture.replace('/', '_')}.safetensors"


def check_names(given: Mapping[str, object], architectures: Sequence[str]) -> None:
    """Raise a ConfigurationError for an h_0 of another architecture, or a missing one."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"h_0: got {type(given).__name__}; expected weights by architecture, such as "
            f"{{'{architectures[0]}': module}}"
        )
    for name in given:
        if name not in architectures:
            raise ConfigurationError(
                f"h_0: got one of {name}{did_you_mean(name, architectures)}; expected "
                f"{', '.join(architectures)}"
            )
    missing = [name for name in architectures if name not in given]
    if given and missing:
        raise ConfigurationError(
            f"h_0: got none of {', '.join(missing)}; expected one of every architecture, or none"
        )


def read_h0(given: GivenH0, model: nn.Module) -> tuple[dict[str, Tensor], list[str]]:
    """Return the weights of h for a model, in its precision, on the CPU, and what was left out.

    Files are those of ``save_backbone``, Lightning checkpoints of ``SimCLR`` and
    ``LanguageModeling``, and state dicts, those of torchvision and timm included, whose heads are
    left out. A ConfigurationError tells what does not fit.
    """
    source = "h_0"
    state: str | Path | State
    if isinstance(given, nn.Module):
        state = given.state_dict()
    elif isinstance(given, Mapping):
        state = given
    else:
        source = f"h_0 of {given}"
        path = Path(given)
        if not path.is_file():
            raise ConfigurationError(f"there is no file {path.absolute()}: correct pretraining.h0")
        state = given if _is_safetensors(path) else _read_state(path)
    target = copy.deepcopy(model).cpu()
    try:
        left_out = load_backbone(target, state)
    except ValueError as error:
        raise ConfigurationError(f"{source}: {error}") from error
    return backbone_state(copy_state(target)), left_out


def check_unchanged(
    given: Mapping[str, GivenH0],
    restored: Mapping[str, State],
    students: Mapping[str, nn.Module],
) -> None:
    """Raise a ConfigurationError if another h_0 is given than that of the checkpoint.

    Args:
        given: What ``federation.h0`` was set to, by architecture.
        restored: The h_0 of a checkpoint; empty in a new run.
        students: The network of each architecture.
    """
    for name, weights in restored.items():
        if name in given and not same_weights(read_h0(given[name], students[name])[0], weights):
            raise ConfigurationError(
                f"the checkpoint already has an h_0 for {name}, and a resumed run keeps it: remove "
                "`federation.h0`"
            )


def same_weights(one: State, other: State) -> bool:
    """Return whether two state dicts are equal bit for bit."""
    if one.keys() != other.keys():
        return False
    return all(torch.equal(tensor, other[key].to(tensor.device)) for key, tensor in one.items())


def _is_safetensors(path: Path) -> bool:
    """Return whether JSON follows the eight bytes of a length; the file may have any name."""
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def _read_state(path: Path) -> State:
    try:
        content = load_tensor_file(path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path} cannot be read as weights ({first_line(error)}): give safetensors, a "
            "Lightning checkpoint of SimCLR, or a state dict that torch.save wrote"
        ) from error
    state = content
    for name in ("state_dict", "model"):  # torchvision's training script writes "model"
        if isinstance(state, dict) and isinstance(state.get(name), dict):
            state = state[name]
    is_state = isinstance(state, dict) and all(isinstance(v, Tensor) for v in state.values())
    if not is_state:
        raise ConfigurationError(f"{path} holds no state dict: give the weights of a network alone")
    prefixed = {k: v for k, v in state.items() if k.startswith(_BACKBONE)}
    return {k.removeprefix(_BACKBONE): v for k, v in prefixed.items()} or state
