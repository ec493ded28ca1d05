"""Tensors in safetensors files, which hold numbers and text only."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedaux_pl.errors import ConfigurationError


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Returns the content of a safetensors file."""
    from safetensors.torch import save

    # own memory for each: tensors that share some cannot be saved
    copies = {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}
    return save(copies, dict(metadata))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Reads a safetensors file: its tensors, on the CPU, and its metadata.

    Raises:
        ConfigurationError: If it is missing, damaged or of another format.
    """
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
