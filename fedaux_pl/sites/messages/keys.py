"""The request ``keys`` and its answer: a site makes a key for an attempt at a secure sum."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedaux_pl.sites import wire
from fedaux_pl.sites.secure_sum import MAX_ATTEMPT, MAX_SITES, read_key_message
from fedaux_pl.sites.wire import Message, expect


@dataclass(frozen=True)
class KeysRequest:
    """Which secure sum and which attempt, and over how many sites the server plans it."""

    digest: str
    attempt: int
    sites: int


def write_request(digest: str, attempt: int, sites: int) -> Message:
    """Write the request to the sites of a secure sum."""
    return Message({"sum": digest, "attempt": attempt, "sites": sites})


def read_request(request: Message) -> KeysRequest:
    """Read the request."""
    fields = request.fields
    return KeysRequest(
        digest=str(fields.get("sum", "")),
        attempt=wire.read_count(fields, "attempt", MAX_ATTEMPT),
        sites=wire.read_count(fields, "sites", MAX_SITES),
    )


def write_answer(key_message: Mapping[str, str]) -> tuple[dict[str, Any], bytes]:
    """Write the plain values of the answer, which has no tensors."""
    return {"keys": dict(key_message)}, wire.write_tensors({})


def read_answer(
    answer: Message, name: str, digest: str, attempt: int, pins: Mapping[str, str]
) -> Any:
    """Return the key message of the site ``name`` as it was sent, after all checks."""
    key_message = answer.fields.get("keys")
    sender = read_key_message(key_message, digest, attempt, pins).name
    expect(sender == name, "its key message is that of another site")
    return key_message
