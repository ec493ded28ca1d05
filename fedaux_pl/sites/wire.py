"""How a message between server and site is written as bytes, and how it is read and checked.

A message has plain values, written as JSON, and a body of tensors, written by safetensors. The side
that receives a message compares it with what it expects before it uses any of it. A site that does
not answer states the reason by a code (see ``codes.py``) and never sends the text of an exception,
which could hold paths or data.
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
"""The largest number of characters of the plain values, as JSON."""

MAX_DEPTH = 32
"""How deep lists and mappings may be nested in the plain values."""


class RefusalError(FedauxError):
    """A message is refused: the other side learns the code, and the reason stays in our log."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def expect(holds: bool, reason: str, code: str = "message") -> None:
    """Raise a RefusalError with this code unless a message is as expected."""
    if not holds:
        raise RefusalError(code, reason)


@dataclass(frozen=True)
class Message:
    """A request or an answer.

    Attributes:
        fields: The plain values by name.
        body: The tensors, as `write_tensors` has written them.
        answer_template: Of a request: tensors with the names, shapes and dtypes that the tensors of
            the answer must have. They are not sent.
    """

    fields: Mapping[str, Any]
    body: bytes = b""
    answer_template: State = field(default_factory=dict)

    @property
    def fields_json(self) -> str:
        """The plain values as JSON."""
        return json.dumps(dict(self.fields))


def read_message(fields: object, body: bytes) -> Message:
    """Read a message; raise a RefusalError if its plain values are damaged."""
    if not isinstance(fields, str) or len(fields) > MAX_FIELDS:
        raise RefusalError("message", "it has no plain values, or too many")
    try:
        values = json.loads(fields)
    except (ValueError, RecursionError) as error:
        raise RefusalError("message", "its plain values are not JSON") from error
    expect(isinstance(values, dict), "its plain values have no names")
    level: list[Any] = [values]
    for _ in range(MAX_DEPTH):
        inner = (x.values() if isinstance(x, dict) else x for x in level)
        level = [value for x in inner for value in x if isinstance(value, dict | list)]
    expect(not level, f"its plain values are nested deeper than {MAX_DEPTH} levels")
    return Message(values, body)


def join_states(states: Mapping[str, State]) -> dict[str, Tensor]:
    """Return groups of tensors as one group, in which tensor ``a`` of group ``g`` is ``g/a``."""
    joined: dict[str, Tensor] = {}
    for name, state in states.items():
        joined |= {f"{name}/{key}": tensor for key, tensor in state.items()}
    return joined


def largest_body(template: State) -> int:
    """Return how many bytes tensors like these can need, with their names and shapes."""
    return sum(tensor.nbytes for tensor in template.values()) + 1024 * (len(template) + 1)


def write_tensors(tensors: State) -> bytes:
    """Write tensors to bytes.

    Examples:
        >>> content = write_tensors({"w": torch.ones(2)})
        >>> read_tensors(content, {"w": torch.zeros(2)})["w"]
        tensor([1., 1.])
    """
    # clones, because safetensors refuses tensors that share memory, as tied weights do
    content: bytes = save({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()})
    return content


def read_tensors(
    content: bytes, template: State, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Read finite tensors, in the order of a template.

    Raises a RefusalError unless their names, shapes and dtypes are those of the template.
    """
    most = largest_body(template)
    expect(len(content) <= most, f"it has {len(content)} bytes, but at most {most} are expected")
    try:
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError, OverflowError) as error:
        raise RefusalError("message", "its tensors are damaged or cut off") from error
    different = min(tensors.keys() ^ template.keys(), default="")
    expect(
        tensors.keys() == template.keys(),
        f"its tensors are not the expected ones: {different[:80]!r} is missing or unexpected",
    )
    for name, tensor in tensors.items():
        got, needed = (f"{t.dtype} of shape {tuple(t.shape)}" for t in (tensor, template[name]))
        expect(got == needed, f"{name} is {got}, but must be {needed}")
        is_finite = not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
        expect(is_finite, f"{name} holds NaN or infinity", "diverged")
    return {name: tensors[name].to(device) for name in template}


def read_number(fields: Mapping[str, Any], name: str, low: float, high: float) -> float:
    """Read a finite number; raise a RefusalError if it is missing or out of range."""
    value = fields.get(name)
    most = min(high, sys.float_info.max)  # an integer above it would not be finite as a float
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= most:
        raise RefusalError("message", f"{name} must be a finite number from {low:g} to {high:g}")
    return value


def read_count(fields: Mapping[str, Any], name: str, high: int = 2**40) -> int:
    """Read an integer from 0 to ``high``; raise a RefusalError if there is none."""
    value = read_number(fields, name, 0, high)
    expect(isinstance(value, int), f"{name} must be an integer")
    return int(value)


def read_size(answer: Message) -> int:
    """Read |D_i|, the number of records of a site."""
    size = read_count(answer.fields, "size")
    expect(size > 0, "it has no samples")
    return size


def read_basis(answer: Message) -> tuple[int, float | None]:
    """Read on how many samples an evaluation or a vote is based, and its epsilon.

    Without noise the epsilon is None.
    """
    fields = answer.fields
    count = read_count(fields, "count")
    expect(count > 0, "it has no samples")
    epsilon = None
    if fields.get("epsilon") is not None:
        epsilon = read_number(fields, "epsilon", math.ulp(0.0), math.inf)
    return count, epsilon
