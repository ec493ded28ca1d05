"""Secure sums: the server learns the sum of the sites' integer vectors, but no single vector.

Each pair of sites agrees on a mask that one of them adds and the other subtracts, modulo 2^64. All
messages pass through the server, in two steps: first keys, then masked vectors. This file has only
the protocol: its callers take care of the transport, the noise and the ledger. One attempt of three
sites in one process:

    >>> keys = {name: Ed25519PrivateKey.generate() for name in ("site-1", "site-2", "site-3")}
    >>> pins = {name: pin(key) for name, key in keys.items()}
    >>> agreement = hashlib.sha256(str(pins).encode()).hexdigest()
    >>> members = {name: Member(name, key, pins) for name, key in keys.items()}
    >>> messages = [member.create_key(agreement, attempt=1) for member in members.values()]
    >>> answers = {}
    >>> for name, member in members.items():
    ...     session = member.open(agreement, 1, messages)  # refuses a list that is not right
    ...     vector = torch.tensor([1, -2])  # with its noise, in the ledger
    ...     answers[name] = session.transcript, session.mask(vector)
    >>> add_masked(answers, list(members))
    tensor([ 3, -6])

Why a single masked vector reveals nothing: the masks of the honest sites are uniform among all
masks that sum up to zero, so the masked vectors are uniform given their sum. Every mask depends on
the hash of all key messages. So if sites were shown different lists of keys, their masks do not
cancel.

Pins state which signing key belongs to which site. Without pins a server could sign in the name of
every site and read all vectors.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaux_pl.errors import ConfigurationError, check_setting
from fedaux_pl.files import create_secret, state_folder
from fedaux_pl.sites.names import NAME, is_name
from fedaux_pl.sites.wire import RefusalError, expect

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise ConfigurationError(
        "secure sums need cryptography: run pip install -e '.[sites]' in the clone of fedaux-pl"
    ) from error

TAG = "fedaux secure sum 1"
"""The start of everything that is signed or hashed. All versions must use the same text."""
MAX_SITES = 1000
MAX_ATTEMPT = 2**40
SentVector = tuple[str, Tensor]
"""The transcript and the masked vector of an attempt."""
_KEY_BYTES = 32
_HEX_DIGITS = {"key": 64, "signer": 64, "signature": 128}


def signing_key(name: str) -> Ed25519PrivateKey:
    """Return the signing key of a site on this machine, and create it at the first call."""
    if not is_name(name):
        raise ConfigurationError(f"the name of a site: got {name!r}; expected to {NAME}")
    path = state_folder() / "signing" / f"{name}.key"
    create_secret(path, _KEY_BYTES)
    content = path.read_bytes()
    if len(content) != _KEY_BYTES:
        raise ConfigurationError(
            f"the signing key {path} has {len(content)} bytes; expected {_KEY_BYTES}: restore it, "
            "or delete it and agree on a new pin (fedaux-pl sites pin)"
        )
    return Ed25519PrivateKey.from_private_bytes(content)


def pin(key: Ed25519PrivateKey) -> str:
    """Return the pin of a signing key: its public key, as 64 hexadecimal digits."""
    return key.public_key().public_bytes_raw().hex()


@dataclass(frozen=True)
class KeyMessage:
    """The key of a site in one attempt."""

    name: str
    key: str  # its X25519 public key, made for this attempt
    signer: str  # its Ed25519 public key, the pin
    signature: str = ""

    def statement(self, agreement: str, attempt: int) -> bytes:
        """Return what is signed: its parts are separated by spaces, which no part can contain."""
        return f"{TAG} {agreement} {attempt} {self.name} {self.key} {self.signer}".encode()


def read_key_message(
    message: object, agreement: str, attempt: int, pins: Mapping[str, str]
) -> KeyMessage:
    """Read a key message, whoever has sent it.

    Raises a RefusalError if the message is damaged, if its site has no such pin, or if it is not
    signed for this agreement and this attempt.
    """
    values = message if isinstance(message, Mapping) else {}
    names = [field.name for field in fields(KeyMessage)]
    texts: dict[str, Any] = {name: values.get(name) for name in names}
    is_text = all(isinstance(text, str) for text in texts.values())
    expect(is_text, f"a key message must have the texts {', '.join(names)}")
    keys = KeyMessage(**texts)
    expect(is_name(keys.name), "a key message has an impossible name")
    for name, digits in _HEX_DIGITS.items():
        # lower case only, so that each key has one spelling
        is_hex = re.fullmatch(f"[0-9a-f]{{{digits}}}", texts[name])
        expect(is_hex is not None, f"{name} of {keys.name} must be {digits} hex digits")
    expect(
        pins.get(keys.name) == keys.signer,
        f"{keys.name} signs with {keys.signer}, but pins has {pins.get(keys.name, 'none')}: "
        "compare what fedaux-pl sites pin prints there, not over the server",
    )
    try:
        signer = Ed25519PublicKey.from_public_bytes(bytes.fromhex(keys.signer))
        signer.verify(bytes.fromhex(keys.signature), keys.statement(agreement, attempt))
    except (InvalidSignature, ValueError) as error:
        raise RefusalError(
            "message", f"{keys.name} has not signed this key for this agreement and attempt"
        ) from error
    return keys


class Member:
    """One site in secure sums, attempt by attempt.

    Args:
        name: The name of the site.
        key: The signing key of the site.
        pins: The pin of each site, on which all sites have agreed.
        colluders: How many sites may show the server their masks and their noise.
    """

    def __init__(
        self, name: str, key: Ed25519PrivateKey, pins: Mapping[str, str], colluders: int = 1
    ) -> None:
        check_setting("colluders", colluders, colluders >= 1, "be at least 1")
        for text in pins.values():
            if not re.fullmatch("[0-9a-f]{64}", text):
                raise ConfigurationError(
                    f"pins: got {text!r}; expected 64 hex digits: see fedaux-pl sites pin"
                )
        if len(set(pins.values())) < len(pins):  # the owner of both would count as one colluder
            raise ConfigurationError("two sites have the same pin: each needs a key of its own")
        if pins.get(name) != pin(key):
            raise ConfigurationError(
                f"pins has {pins.get(name, 'none')} for {name}, whose key is {pin(key)}: let all "
                f"sites write '{name}: {pin(key)}' to the pins of the shared configuration"
            )
        self.name = name
        self.pins = dict(pins)
        self.colluders = colluders
        self.least = max(3, colluders + 2)
        self._signing = key
        self._last = 0
        self._pending: tuple[str, int, KeyMessage, X25519PrivateKey] | None = None

    def create_key(self, agreement: str, attempt: int, after: int = 0) -> dict[str, str]:
        """Make a fresh key for an attempt, and return the key message as plain values.

        Args:
            agreement: The digest of what this site has agreed on.
            attempt: The number of the attempt. The server chooses it; it must be larger than the
                numbers of all earlier attempts.
            after: The largest number of an attempt in the ledger.
        """
        last = max(self._last, after)
        is_next = type(attempt) is int and last < attempt <= MAX_ATTEMPT
        expect(is_next, f"the number of the attempt must be above {last}")
        secret = X25519PrivateKey.generate()
        public = secret.public_key().public_bytes_raw().hex()
        unsigned = KeyMessage(self.name, public, pin(self._signing))
        signature = self._signing.sign(unsigned.statement(agreement, attempt)).hex()
        message = replace(unsigned, signature=signature)
        self._last = attempt
        self._pending = (agreement, attempt, message, secret)
        return asdict(message)

    def open(self, agreement: str, attempt: int, messages: object) -> "Session":
        """Check the key messages of all sites of an attempt, and agree on a mask with each site.

        A key opens one session. Whatever is refused here, another attempt needs new keys from all
        sites.
        """
        if self._pending is None or self._pending[1] != attempt:
            raise RefusalError("message", "there is no unused key for this attempt")
        signed, attempt, message, secret = self._pending
        self._pending = None
        expect(signed == agreement, "the key was made for other settings", "settings")
        if not isinstance(messages, list | tuple) or len(messages) > MAX_SITES:
            raise RefusalError("message", f"keys must be a list of at most {MAX_SITES} sites")
        members = [read_key_message(keys, agreement, attempt, self.pins) for keys in messages]
        count = len(members)
        expect(message in members, "the list does not have this site's own key")
        names = {keys.name for keys in members}
        is_unique = len(names) == len({keys.key for keys in members}) == count
        expect(is_unique, "the list has a name or a key twice")
        needed = f"{self.least} or more, with up to {self.colluders} colluders"
        expect(count >= self.least, f"got {count} sites; expected {needed}", "limits")
        statements = sorted(keys.statement(agreement, attempt) for keys in members)
        transcript = hashlib.sha256(b"\n".join([TAG.encode(), *statements])).digest()
        others = [keys for keys in members if keys.name != self.name]
        masks = {keys.name: _agree(secret, transcript, self.name, keys) for keys in others}
        return Session(self.name, masks, transcript)


def _agree(secret: X25519PrivateKey, transcript: bytes, name: str, other: KeyMessage) -> bytes:
    """Return k_ij = HKDF-SHA256(X25519(i, j), salt = transcript, info = both names)."""
    try:
        shared = secret.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(other.key)))
    except ValueError as error:  # the shared secret would be zero, so everybody would know it
        raise RefusalError("message", f"the key of {other.name} is a point of low order") from error
    info = " ".join([TAG, "mask", *sorted([name, other.name])]).encode()
    return HKDF(SHA256(), _KEY_BYTES, salt=transcript, info=info).derive(shared)


class Session:
    """An attempt whose key messages are checked. It masks one vector.

    Attributes:
        names: The sorted names of the sites that take part.
        transcript: The hash of their key messages, in hexadecimal digits, which a site sends with
            its vector.
    """

    def __init__(self, name: str, keys: Mapping[str, bytes], transcript: bytes) -> None:
        self.names = sorted([name, *keys])
        self.transcript = transcript.hex()
        self._name = name
        self._keys = dict(keys)

    def mask(self, vector: Tensor) -> Tensor:
        """Return v_i + sum_{j > i} m_ij - sum_{j < i} m_ij modulo 2^64, once.

        The vector, int64 of shape (d,), includes the noise of this site. The residues are int64 (in
        two's complement), on the CPU. The keys are deleted.
        """
        if vector.dtype != torch.int64 or vector.ndim != 1:
            raise TypeError(
                f"got {vector.dtype} of shape {tuple(vector.shape)}; expected int64, 1d"
            )
        expect(bool(self._keys), "these keys have masked a vector: each masks one")
        keys = self._keys
        self._keys = {}
        total = vector.detach().cpu().numpy().view(np.uint64)
        zeros = bytes(total.nbytes)
        for other, key in keys.items():
            stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(zeros)
            mask = np.frombuffer(stream, "<u8")
            total = total + mask if self._name < other else total - mask
        return torch.from_numpy(total.view(np.int64))


def add_masked(answers: Mapping[str, SentVector], names: Sequence[str]) -> Tensor:
    """Return the sum of the sites' vectors modulo 2^64, at the server, int64 of shape (d,).

    Raises a RefusalError if an answer is missing, or if transcripts or lengths differ: then the
    masks would not cancel, and another attempt needs new keys.

    Args:
        answers: The transcript and the masked vector of each site.
        names: The sites whose key messages were sent to all sites.
    """
    missing = sorted({*names} ^ {*answers})
    expect(not missing, f"the answers and the list differ in {', '.join(missing)}")
    transcripts = {transcript for transcript, _ in answers.values()}
    expect(len(transcripts) == 1, "the sites have seen different lists of keys")
    vectors = [vector for _, vector in answers.values()]
    kinds = {(vector.dtype, vector.shape) for vector in vectors}
    expect(kinds == {(torch.int64, vectors[0].shape)}, "vectors must be int64 of one length")
    total = np.stack([vector.cpu().numpy().view(np.uint64) for vector in vectors]).sum(axis=0)
    return torch.from_numpy(total.view(np.int64))
