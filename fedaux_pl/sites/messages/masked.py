"""The request ``masked`` and its answer: a site sends its masked vector of a secure sum."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedaux_pl.sites import wire
from fedaux_pl.sites.ledger_keys import MASKED_VECTOR
from fedaux_pl.sites.secure_sum import MAX_ATTEMPT, SentVector
from fedaux_pl.sites.wire import Message


@dataclass(frozen=True)
class MaskedRequest:
    """Which secure sum and which attempt, and the key messages of all its sites, unchecked."""

    digest: str
    attempt: int
    key_messages: object


def write_request(
    digest: str, attempt: int, key_messages: Sequence[Mapping[str, str]], length: int
) -> Message:
    """Write the request to the sites of an attempt, whose vectors have this length."""
    fields = {"sum": digest, "attempt": attempt, "messages": list(key_messages)}
    template = {MASKED_VECTOR: torch.empty(length, dtype=torch.int64)}
    return Message(fields, answer_template=template)


def read_request(request: Message) -> MaskedRequest:
    """Read the request; the session of the attempt checks the key messages."""
    fields = request.fields
    return MaskedRequest(
        digest=str(fields.get("sum", "")),
        attempt=wire.read_count(fields, "attempt", MAX_ATTEMPT),
        key_messages=fields.get("messages"),
    )


def write_answer(transcript: str, masked: Tensor) -> tuple[dict[str, Any], bytes]:
    """Write the plain values and the tensor of the answer."""
    return {"transcript": transcript}, wire.write_tensors({MASKED_VECTOR: masked})


def read_answer(answer: Message, request: Message) -> SentVector:
    """Read the transcript and the masked vector."""
    vector = wire.read_tensors(answer.body, request.answer_template)[MASKED_VECTOR]
    return str(answer.fields.get("transcript")), vector
