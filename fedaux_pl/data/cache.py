"""Tensors cached on disk by content: decoded images, token ids, results of the preparation."""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaux_pl.data.foreign_files import reason_of
from fedaux_pl.files import check_archive, locked, write_atomically

FORMAT = 1


def fingerprint(files: Iterable[Path]) -> str:
    """The SHA-256 of the paths, sizes and modification times of files, in the given order.

    It changes if a file is added, removed, renamed or rewritten; contents are not read.
    """
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        digest.update(f"{file.absolute()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def tensor_digest(*tensors: Tensor) -> str:
    """The SHA-256 of the contents, shapes and dtypes of tensors, on any device."""
    return _checksum({str(index): tensor.cpu() for index, tensor in enumerate(tensors)})


def cached(
    folder: Path, key: Mapping[str, str | int], build: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Loads the tensors of a key from disk, or builds and saves them.

    Processes that need the same tensors at the same time build them once: the others wait. A
    damaged file, or one of another key, is replaced with a warning. If ``folder`` is not writable,
    the file is written to the user's cache folder.

    Args:
        folder: The folder of the file, :func:`user_cache` unless the user has chosen one: a cache
            among the data would look like data to other programs.
        key: Everything that determines the tensors; "kind" is the prefix of the file name.
        build: Builds the tensors by name.
    """
    found, _ = _load(folder, key)  # without the lock: files are complete, and readers need not wait
    if found is None:
        with cache_lock(folder, key):
            found = load_cached(folder, key)
            if found is None:
                found = save_cached(folder, key, build())
    return found


@contextmanager
def cache_lock(
    folder: Path, key: Mapping[str, str | int], on_wait: Callable[[], object] | None = None
) -> Iterator[None]:
    """Holds the lock of a key, in which its tensors are loaded, or built and saved.

    Args:
        folder: The folder of the file.
        key: The key.
        on_wait: Called at once and then every minute while another process holds the lock.
    """

    def wait() -> None:
        print(f"waiting for another run that computes {key['kind']} in {folder}")
        if on_wait is not None:
            on_wait()

    _, paths = _candidates(folder, key)
    failures = []
    with ExitStack() as stack:
        for path in paths:
            try:
                stack.enter_context(locked(path.with_name(f".{path.name}.lock"), wait))
                break
            except OSError as error:
                failures.append(f"{path.parent}: {error}")
        else:
            warnings.warn(
                f"the cache cannot be locked, so another run may compute {key['kind']} as well: "
                + "; ".join(failures),
                stacklevel=3,
            )
        yield


def load_cached(folder: Path, key: Mapping[str, str | int]) -> dict[str, Tensor] | None:
    """Loads the tensors of a key; None if there is no usable file."""
    found, failures = _load(folder, key)
    for failure in failures:
        warnings.warn(f"{failure} and is built again", stacklevel=3)
    return found


def save_cached(
    folder: Path, key: Mapping[str, str | int], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Saves the tensors of a key, with a warning if no folder is writable, and returns them."""
    text, paths = _candidates(folder, key)
    tensors = {entry: tensor.contiguous() for entry, tensor in tensors.items()}
    content = {"format": FORMAT, "key": text, "sha256": _checksum(tensors), "tensors": tensors}
    failures = []
    for path in paths:
        try:
            write_atomically(path, lambda file: torch.save(content, file))
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            failures.append(f"{path.parent}: {error}")
        else:
            return tensors
    warnings.warn(
        "the data could not be cached and is built again next time: " + "; ".join(failures),
        stacklevel=3,
    )
    return tensors


def _load(folder: Path, key: Mapping[str, str | int]) -> tuple[dict[str, Tensor] | None, list[str]]:
    """The tensors of a key, if there is a usable file; why the files before it are not."""
    text, paths = _candidates(folder, key)
    failures = []
    for path in paths:
        if path.is_file():
            try:
                return _read(path, text), []
            # a damaged file can raise nearly any exception in the unpickler; none may stop a run
            except Exception as error:
                failures.append(f"the cache file {path} cannot be used ({reason_of(error)})")
    return None, failures


def _candidates(folder: Path, key: Mapping[str, str | int]) -> tuple[str, list[Path]]:
    """The key as text, and the paths where its file can be."""
    text = json.dumps(dict(key), sort_keys=True)
    name = f"{key['kind']}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.pt"
    return text, list(dict.fromkeys([folder / name, user_cache() / name]))


def user_cache() -> Path:
    """The user's cache folder, ``$XDG_CACHE_HOME/fedaux_pl`` or ``~/.cache/fedaux_pl``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedaux_pl"


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for entry, tensor in sorted(tensors.items()):
        digest.update(f"{entry}\0{tensor.dtype}\0{tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().numpy().reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _read(path: Path, key: str) -> dict[str, Tensor]:
    check_archive(path)
    content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError("not written by this version of fedaux_pl")
    if content["key"] != key:
        raise ValueError("it belongs to other data")
    tensors: dict[str, Tensor] = content["tensors"]
    if content["sha256"] != _checksum(tensors):
        raise ValueError("its checksum does not match")
    return tensors
