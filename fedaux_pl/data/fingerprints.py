"""Fingerprints of private data: hashes with a secret key, which only this machine can compute.

A hash without a key would reveal private data: somebody who knows all records except one could try
candidates for the last record until the hash matches.
"""

import hashlib
import re
import secrets
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.data.lazy_inputs import Inputs, chunks
from fedaux_pl.errors import DataError
from fedaux_pl.files import KEY_FILE, create_secret, state_folder
from fedaux_pl.lightning import rank_zero_warn

_KEY_BYTES = 32
_RECORD_BYTES = 8
_KEYED = re.compile(r"keyed:(\w+):")


def machine_key() -> bytes:
    """Return the secret key of this machine, created at the first call.

    If the state folder is not writable, a warning says so, and only this process uses the key.
    """
    path = state_folder() / KEY_FILE
    try:
        create_secret(path, _KEY_BYTES)
    except OSError as error:
        return _process_key(str(error))
    try:
        key = path.read_bytes()
        if len(key) != _KEY_BYTES:
            raise OSError(f"it has {len(key)} bytes, not {_KEY_BYTES}")
    except OSError as error:
        raise DataError(
            f"the key of this machine's fingerprints, {path}, cannot be read ({error}): restore "
            "it, or delete it and accept that earlier runs and releases are no longer recognized"
        ) from error
    return key


@cache
def _process_key(reason: str) -> bytes:
    rank_zero_warn(
        f"the key of this machine's fingerprints cannot be stored ({reason}): the data of this run "
        "cannot be recognized later; make the folder writable, or set XDG_STATE_HOME"
    )
    return secrets.token_bytes(_KEY_BYTES)


def key_id(key: bytes) -> str:
    """Return the public name of a key: a short hash of the key."""
    return hashlib.blake2b(key, digest_size=4, person=b"key id").hexdigest()


def keyed_fingerprint(key: bytes, *tensors: Inputs) -> str:
    """Hash the contents, shapes and dtypes of tensors with a key: "keyed:<key id>:<digest>"."""
    digest = hashlib.blake2b(key=key, digest_size=32)
    for tensor in tensors:
        hash_tensor(digest, tensor)
    return f"keyed:{key_id(key)}:{digest.hexdigest()}"


def hash_tensor(digest: Any, tensor: Inputs) -> None:
    """Add the dtype, the shape and the contents of a tensor to a hash."""
    digest.update(f"{tensor.dtype}\0{tuple(tensor.shape)}\n".encode())
    for chunk in chunks(tensor):
        digest.update(chunk.cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def have_other_keys(one: object, other: object) -> bool:
    """Return whether both are fingerprints with different keys, which cannot be compared."""
    first = _KEYED.match(str(one))
    second = _KEYED.match(str(other))
    return first is not None and second is not None and first[1] != second[1]


def record_digests(inputs: Inputs, labels: Tensor | None, key: bytes) -> NDArray[np.uint64]:
    """Hash each of N records with a key: its input, its label if given, their dtypes and shapes.

    Returns:
        The hashes, shape (N,).
    """
    fields = [inputs] if labels is None else [inputs, labels]
    kinds = [f"{field.dtype}\0{tuple(field.shape[1:])}\n" for field in fields]
    hash_of_kinds = hashlib.blake2b("".join(kinds).encode(), key=key, digest_size=_RECORD_BYTES)
    digests = bytearray()
    rows = [chain.from_iterable(map(_rows, chunks(field))) for field in fields]
    for record in zip(*rows, strict=True):
        digest = hash_of_kinds.copy()
        for row in record:
            digest.update(row)
        digests += digest.digest()
    return np.frombuffer(bytes(digests), dtype="<u8").astype(np.uint64)


def _rows(tensor: Tensor) -> NDArray[np.uint8]:
    """Return the bytes of each row of a tensor, shape (N, bytes)."""
    rows = tensor.cpu()[:, None].flatten(1).contiguous()
    return np.asarray(rows.view(torch.uint8).numpy())
