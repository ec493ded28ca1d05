"""The logits of absent clients, which keep teaching.

In a round with few clients, none of them may know some of the classes. The server has computed the
logits of every client that ever took part. Reusing them needs no further communication, training
or privacy budget.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DEVICE_LIMIT = 2**30
"""Bytes of logits that stay on the device; the rest is moved to host memory."""

LIMIT = 8 * 2**30
"""Bytes of logits in all; beyond it, the clients with the longest absence are forgotten."""


@dataclass(frozen=True)
class RememberedLogits:
    """The logits of one client in the last round in which it took part.

    Attributes:
        round: The number of that round.
        logits: f_i(x) by the name of the data, half precision.
    """

    round: int
    logits: Mapping[str, Tensor]


class TeacherMemory:
    """The last logits of every client that ever taught.

    ``remember`` collects the logits of a round, and ``commit`` stores them when the round is over,
    so that a failed round leaves the memory unchanged. If several processes share the clients, each
    process stores the logits that it has computed.

    Args:
        device_limit: Bytes that may stay on the device.
        limit: Bytes in all.

    Attributes:
        stored: The logits of each client.
        forgotten: How many clients the last ``commit`` has dropped to stay within the limit.
    """

    def __init__(self, device_limit: int = DEVICE_LIMIT, limit: int = LIMIT) -> None:
        self.device_limit = device_limit
        self.limit = limit
        self.stored: dict[int, RememberedLogits] = {}
        self.forgotten = 0
        self._pending: dict[int, dict[str, Tensor]] = {}

    def remember(self, client: int, part: str, logits: Tensor) -> None:
        """Collects a client's logits on one part of the data, until ``commit`` or ``discard``."""
        self._pending.setdefault(client, {})[part] = logits.detach().half()

    def absent_teachers(
        self, part: str, present: Collection[int], round_: int, device: torch.device
    ) -> Iterator[tuple[int, int, Tensor]]:
        """The id, the age in rounds and the logits of each absent client, ordered by id.

        Args:
            part: The name of the data.
            present: The clients of the round.
            round_: The number of the round.
            device: Where the logits are needed.
        """
        for client, memory in sorted(self.stored.items()):
            if client not in present and part in memory.logits:
                logits = memory.logits[part].to(device, torch.float32)
                yield client, round_ - memory.round, logits

    def discard(self) -> None:
        """Drops the logits that were collected since the last ``commit``."""
        self._pending.clear()

    def commit(self, round_: int, present: Collection[int]) -> None:
        """Stores the collected logits.

        Args:
            round_: The number of the round.
            present: Its clients, of all processes. The older logits of all of them are dropped
                here, whichever process stores the new ones.
        """
        for client in present:
            self.stored.pop(client, None)
        used = sum(
            tensor.nbytes
            for memory in self.stored.values()
            for tensor in memory.logits.values()
            if tensor.device.type != "cpu"
        )
        for client, logits in sorted(self._pending.items()):
            if used + _bytes(logits) > self.device_limit:
                logits = {part: tensor.cpu() for part, tensor in logits.items()}
            else:
                used += _bytes(logits)
            self.stored[client] = RememberedLogits(round_, logits)
        self._pending.clear()
        self.forgotten = 0
        while self.bytes > self.limit and len(self.stored) > 1:
            oldest = min(self.stored, key=lambda client: (self.stored[client].round, client))
            del self.stored[oldest]
            self.forgotten += 1

    @property
    def bytes(self) -> int:
        """The bytes that this process stores."""
        return sum(_bytes(memory.logits) for memory in self.stored.values())

    def state_dict(self) -> dict[int, dict[str, Any]]:
        """The memory as plain values and tensors, for a checkpoint."""
        return {
            client: {"round": memory.round, "logits": dict(memory.logits)}
            for client, memory in self.stored.items()
        }

    def load_state_dict(self, state: Mapping[int, Mapping[str, Any]]) -> None:
        """Restores what ``state_dict`` returned."""
        self.stored = {
            client: RememberedLogits(memory["round"], dict(memory["logits"]))
            for client, memory in state.items()
        }


def _bytes(logits: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in logits.values())
