"""What server and sites send each other: JSON of plain values, and tensors as safetensors.

Each side checks what it gets against what it expects before it uses it. A site that does not
answer says why by a code, never by the text of an exception: that could hold paths or data.
"""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedaux_pl.errors import FedauxError
from fedaux_pl.functional.averaging import State

MAX_FIELDS = 2**20
"""The maximum characters of a message's plain values."""

MAX_DEPTH = 32
"""How deep its lists and names may nest."""

Reply = tuple[dict[str, Any], bytes, str]
"""What a site answers: plain values, tensors, and the guarantee, for its own log."""


class RefusalError(FedauxError):
    """A message that is not accepted: the code is for the other side, the reason for this log."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def expect(holds: bool, reason: str, code: str = "message") -> None:
    """Raise a RefusalError unless a message is as expected."""
    if not holds:
        raise RefusalError(code, reason)


@dataclass(frozen=True)
class Message:
    """A message: plain values, and tensors as `write_tensors` gives them."""

    fields: Mapping[str, Any]
    body: bytes = b""
    like: State = field(default_factory=dict)  # the tensors that an answer may have; not sent

    @property
    def sealed(self) -> str:
        """The plain values as JSON."""
        return json.dumps(dict(self.fields))


def read_message(fields: object, body: bytes) -> Message:
    """Read a message; raise a RefusalError if its plain values are damaged."""
    if not isinstance(fields, str) or len(fields) > MAX_FIELDS:
        raise RefusalError("message", "it has no plain values, or too many")
    try:
        values = json.loads(fields)
    except (ValueError, RecursionError) as error:
        raise RefusalError("message", "its plain values are no JSON") from error
    expect(isinstance(values, dict), "its plain values have no names")
    level: list[Any] = [values]
    for _ in range(MAX_DEPTH):
        inner = (x.values() if isinstance(x, dict) else x for x in level)
        level = [value for x in inner for value in x if isinstance(value, dict | list)]
    expect(not level, f"its plain values nest deeper than {MAX_DEPTH}")
    return Message(values, body)


def join_states(states: Mapping[str, State]) -> dict[str, Tensor]:
    """Return several groups of tensors as one; the names get that of their group in front."""
    joined: dict[str, Tensor] = {}
    for name, state in states.items():
        joined |= {f"{name}/{key}": tensor for key, tensor in state.items()}
    return joined


def largest_body(like: State) -> int:
    """Return the bytes that such tensors may need, with their names and shapes."""
    return sum(tensor.nbytes for tensor in like.values()) + 1024 * (len(like) + 1)


def write_tensors(tensors: State) -> bytes:
    """Write tensors to bytes.

    Examples:
        >>> content = write_tensors({"w": torch.ones(2)})
        >>> read_tensors(content, {"w": torch.zeros(2)})["w"]
        tensor([1., 1.])
    """
    # clones: safetensors refuses tensors that share memory, as tied weights do
    content: bytes = save({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()})
    return content


def read_tensors(
    content: bytes, like: State, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Read finite tensors that must have the names, shapes and dtypes of ``like``, in its order."""
    most = largest_body(like)
    expect(len(content) <= most, f"{len(content)} bytes where at most {most} are expected")
    try:
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError, OverflowError) as error:
        raise RefusalError("message", "its tensors are damaged or cut") from error
    other = min(tensors.keys() ^ like.keys(), default="")
    expect(tensors.keys() == like.keys(), f"other tensors than expected, such as {other[:80]!r}")
    for name, tensor in tensors.items():
        got, needed = (f"{t.dtype} of shape {tuple(t.shape)}" for t in (tensor, like[name]))
        expect(got == needed, f"{name} is {got}, but must be {needed}")
        is_finite = not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
        expect(is_finite, f"{name} holds NaN or infinity", "diverged")
    return {name: tensors[name].to(device) for name in like}


def read_number(fields: Mapping[str, Any], name: str, low: float, high: float) -> float:
    """Read a finite number; raise a RefusalError if it is missing or out of range."""
    value = fields.get(name)
    most = min(high, sys.float_info.max)  # finite, also as a float
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= most:
        raise RefusalError("message", f"{name} must be a finite number from {low:g} to {high:g}")
    return value


def read_count(fields: Mapping[str, Any], name: str, high: int = 2**40) -> int:
    """Read an integer from 0 on; raise a RefusalError if there is none."""
    value = read_number(fields, name, 0, high)
    expect(isinstance(value, int), f"{name} must be an integer")
    return int(value)


def read_basis(answer: Message) -> tuple[int, float | None]:
    """Read the number of samples behind an answer, and its epsilon, None without noise."""
    fields = answer.fields
    count = read_count(fields, "count")
    expect(count > 0, "it has no samples")
    epsilon = None
    if fields.get("epsilon") is not None:
        epsilon = read_number(fields, "epsilon", math.ulp(0.0), math.inf)
    return count, epsilon
