"""A cache on disk for decoded images, token ids and the results of a run's preparation."""

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedaux_pl.data.fingerprints import hash_tensor, machine_key
from fedaux_pl.data.input_checks import reason_of
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.files import create_folder, is_user_cache, locked, write_atomically
from fedaux_pl.tensor_files import load_tensor_file

CacheKey = dict[str, str | int]
"""Everything that determines cached tensors. "kind" is also the prefix of the file name."""
FORMAT = 1
LIMIT = "FEDAUX_PL_CACHE_GB"
"""The environment variable with the limit of the user's cache in GB; 0 caches nothing there."""
_DEFAULT_LIMIT = 20


def fingerprint(files: Iterable[Path]) -> str:
    """Hash the paths, inodes, sizes and change times of files, in their order, with a secret key.

    The contents are not read: the system sets the change time (ctime) at every write and, unlike
    the modification time, no program can set it back.
    """
    digest = hashlib.blake2b(key=machine_key(), digest_size=32)
    for file in files:
        status = file.stat()
        state = status.st_ino, status.st_size, status.st_ctime_ns
        digest.update(os.fsencode(file.absolute()) + f"\0{state}\n".encode())
    return digest.hexdigest()


def tensor_digest(*tensors: Inputs, **named: Inputs) -> str:
    """Return the SHA-256 of the contents, shapes and dtypes of tensors, whatever their device."""
    entries = named | {str(index): tensor for index, tensor in enumerate(tensors)}
    digest = hashlib.sha256()
    for entry, tensor in sorted(entries.items()):
        digest.update(f"{entry}\0".encode())
        hash_tensor(digest, tensor)
    return digest.hexdigest()


def cached(
    folder: Path, key: CacheKey, build: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Load the tensors of a key from disk, or build and save them.

    If several processes need the same tensors at the same time, one builds them and the others
    wait. A damaged file, or a file of another key, is replaced with a warning. The file contains a
    hash of the key with this machine's secret, so that nobody else can confirm a guess of the key.
    """
    if is_off(folder):
        return build()
    text = json.dumps(key, sort_keys=True).encode()
    identity = hashlib.blake2b(text, key=machine_key(), digest_size=32).hexdigest()
    key = {"kind": key["kind"], "identity": identity}
    # first without the lock: a file that exists is complete, so that readers need not wait
    tensors = load_cached(folder, key, warn=False)
    if tensors is None:
        with cache_lock(folder, key):
            tensors = load_cached(folder, key)
            if tensors is None:
                tensors = save_cached(folder, key, build())
    return tensors


@contextmanager
def cache_lock(
    folder: Path, key: CacheKey, on_wait: Callable[[], object] | None = None
) -> Iterator[None]:
    """Hold the lock of a key while its tensors are loaded, or built and saved.

    While another process holds the lock, ``on_wait`` is called at once and then every minute.
    """

    def wait() -> None:
        print(f"waiting for another run that computes {key['kind']} in {folder}")
        if on_wait is not None:
            on_wait()

    path, _ = _locate(folder, key)
    with ExitStack() as stack:
        try:
            create_folder(folder, private=True)
            stack.enter_context(locked(path.with_name(f".{path.name}.lock"), wait))
        except OSError as error:
            reason = f"so another run may compute {key['kind']} as well ({error})"
            warnings.warn(f"the cache cannot be locked, {reason}", stacklevel=3)
        yield


def has_cached(folder: Path, key: CacheKey) -> bool:
    """Return whether there is a file of a key, even if it is damaged."""
    return os.path.isfile(_locate(folder, key)[0])  # False as well if another user has the folder


def load_cached(folder: Path, key: CacheKey, warn: bool = True) -> dict[str, Tensor] | None:
    """Load the tensors of a key; return None if there is no file, or if it cannot be used.

    A file that cannot be used causes a warning, unless ``warn`` is false.
    """
    path, text = _locate(folder, key)
    if not has_cached(folder, key):
        return None
    try:
        content: Any = load_tensor_file(path)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError("not written by this version of fedaux_pl")
        if content["key"] != text:
            raise ValueError("it belongs to other data")
        tensors: dict[str, Tensor] = content["tensors"]
        if content["sha256"] != tensor_digest(**tensors):
            raise ValueError("its checksum does not match")
    # the content of a foreign file can raise nearly any exception, and none may stop a run
    except Exception as error:
        if warn:
            reason = f"cannot be used ({reason_of(error)}) and is built again"
            warnings.warn(f"the cache file {path} {reason}", stacklevel=3)
        return None
    with suppress(OSError):
        # sets the time of its last use, for _evict: some file systems do not record reads
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    return tensors


def save_cached(folder: Path, key: CacheKey, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Save the tensors of a key and return them; a failure to save causes a warning."""
    path, text = _locate(folder, key)
    tensors = {entry: tensor.contiguous() for entry, tensor in tensors.items()}
    content = {
        "format": FORMAT,
        "key": text,
        "sha256": tensor_digest(**tensors),
        "tensors": tensors,
    }
    is_limited = is_user_cache(folder)
    size = sum(tensor.nbytes for tensor in tensors.values())
    try:
        if is_limited and size > _limit():
            raise OSError(f"{size / 1e9:.1f} GB are above the limit, {LIMIT}")
        write_atomically(path, lambda file: torch.save(content, file), private=True)
        if is_limited:
            _evict(path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        reason = f"and is built again next time: {error}"
        warnings.warn(f"the data could not be cached in {folder} {reason}", stacklevel=3)
    return tensors


def is_off(folder: Path) -> bool:
    """Return whether a folder caches nothing: the user's cache does so if its limit is 0."""
    return is_user_cache(folder) and not _limit()


def _locate(folder: Path, key: CacheKey) -> tuple[Path, str]:
    """Return the path of a key's file, and the key as text."""
    text = json.dumps(key, sort_keys=True)
    return folder / f"{key['kind']}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.pt", text


def _limit() -> float:
    """Return the limit of the user's cache in bytes."""
    text = os.environ.get(LIMIT, str(_DEFAULT_LIMIT))
    with suppress(ValueError):
        limit = float(text)
        if limit >= 0:
            return limit * 1e9
    raise ConfigurationError(
        f"the environment variable {LIMIT}: got {text!r}; expected the limit of the cache in GB, "
        "0 for no cache"
    )


def _evict(newest: Path) -> None:
    """Remove the least recently used files until the user's cache is within its limit."""
    used = {}
    for file in newest.parent.glob("*.pt"):
        with suppress(FileNotFoundError):  # another process may have removed it
            used[file] = file.stat()
    total = 0
    if newest in used:
        total = used.pop(newest).st_size
    for file in sorted(used, key=lambda file: used[file].st_atime_ns, reverse=True):
        total += used[file].st_size
        if total > _limit():
            file.unlink(missing_ok=True)
