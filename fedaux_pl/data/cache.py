"""Keeps on disk what takes long to decode or to resize."""

import hashlib
import json
import os
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FORMAT = 1
FOLDER = ".fedaux_cache"


def fingerprint(files: Iterable[Path]) -> str:
    """A hash that changes whenever a file is added, removed, renamed, resized or rewritten.

    Args:
        files: The files, in an order that is itself part of the fingerprint.

    Returns:
        The SHA-256 of names, sizes and times of modification; contents are not read.
    """
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        digest.update(f"{file.absolute()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def tensor_digest(*tensors: Tensor) -> str:
    """The SHA-256 of the contents, shapes and types of tensors, wherever they are."""
    return _checksum({str(index): tensor.cpu() for index, tensor in enumerate(tensors)})


def cached(
    folder: Path, key: Mapping[str, str | int], build: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Returns what ``build`` returns, from disk where it was kept for the same key.

    A file that is damaged, or that was made for another key, is reported with a warning and
    replaced. Where ``folder`` cannot be written to, the user's own cache folder is used.

    Args:
        folder: Where to keep the file.
        key: Everything that determines the result; "kind" begins the name of the file.
        build: Makes the tensors.

    Returns:
        The tensors by name.
    """
    found = find(folder, key)
    return keep(folder, key, build()) if found is None else found


def find(folder: Path, key: Mapping[str, str | int]) -> dict[str, Tensor] | None:
    """The first half of ``cached``: what was kept for the key, or None."""
    text, places = _places(folder, key)
    for place in places:
        if place.is_file():
            try:
                return _read(place, text)
            # damage can surface as nearly any exception of the unpickler; none may stop a run
            except Exception as error:
                reason = str(error).partition("\n")[0] or type(error).__name__
                warnings.warn(
                    f"the cache file {place} cannot be used ({reason}) and is built again",
                    stacklevel=3,
                )
    return None


def keep(
    folder: Path, key: Mapping[str, str | int], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The second half of ``cached``: keeps tensors for the key, and returns them."""
    text, places = _places(folder, key)
    tensors = {entry: tensor.contiguous() for entry, tensor in tensors.items()}
    content = {"format": FORMAT, "key": text, "sha256": _checksum(tensors), "tensors": tensors}
    failures = []
    for place in places:
        try:
            _write(place, content)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            failures.append(f"{place.parent}: {error}")
        else:
            return tensors
    warnings.warn(
        "what was just loaded could not be kept for next time (" + "; ".join(failures) + ")",
        stacklevel=3,
    )
    return tensors


def _places(folder: Path, key: Mapping[str, str | int]) -> tuple[str, list[Path]]:
    """The key as text, and the files in which its result may be."""
    text = json.dumps(dict(key), sort_keys=True)
    name = f"{key['kind']}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.pt"
    return text, [folder / name, _user_folder() / name]


def _user_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedaux_pl"


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for entry, tensor in sorted(tensors.items()):
        digest.update(f"{entry}\0{tensor.dtype}\0{tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().numpy().reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _read(path: Path, key: str) -> dict[str, Tensor]:
    content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError("not written by this version of fedaux_pl")
    if content["key"] != key:
        raise ValueError("made from other data")
    tensors: dict[str, Tensor] = content["tensors"]
    if content["sha256"] != _checksum(tensors):
        raise ValueError("its checksum does not match")
    return tensors


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # under a name of its own first, so that another process never reads half a file; not by
    # tempfile, whose files nobody but their owner may read
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            torch.save(content, file)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
