"""Teachers that are remembered: what absent clients last said goes on teaching.

In a round with few clients some classes are known to none of them. The server has seen what each
client that ever took part says about D_distill; keeping it sends nothing more, computes nothing
more and releases nothing more.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ON_DEVICE = 2**30  # bytes that stay where the logits were computed; what is beyond goes to the host
LIMIT = 8 * 2**30  # bytes in all; beyond, who was away for longest is forgotten


@dataclass(frozen=True)
class Remembered:
    """The last words of one client.

    Attributes:
        round: When it said them.
        logits: f_i(x) by the name of the data, half precision.
    """

    round: int
    logits: Mapping[str, Tensor]

    @property
    def bytes(self) -> int:
        """What it takes to remember them."""
        return sum(t.numel() * t.element_size() for t in self.logits.values())


class TeacherMemory:
    """The last logits of every client that ever taught.

    What is said in a round is taken down by ``hear`` and becomes memory by ``commit``, when the
    round is over: one that fails leaves no trace. Where several processes share the clients, each
    remembers those whom it heard.

    Args:
        on_device: Bytes that may stay on the device.
        limit: Bytes in all.

    Attributes:
        kept: What is remembered of each client.
        forgotten: How many were forgotten by the last ``commit``, for want of room.
    """

    def __init__(self, on_device: int = ON_DEVICE, limit: int = LIMIT) -> None:
        self.on_device = on_device
        self.limit = limit
        self.kept: dict[int, Remembered] = {}
        self.forgotten = 0
        self._heard: dict[int, dict[str, Tensor]] = {}

    def hear(self, client: int, part: str, logits: Tensor) -> None:
        """Takes down what a client says about a part of the data in this round."""
        self._heard.setdefault(client, {})[part] = logits.detach().half()

    def absent(
        self, part: str, present: Collection[int], round_: int, device: torch.device
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Clients that are away: id, rounds since they were there, logits; in the order of ids."""
        for client, memory in sorted(self.kept.items()):
            if client not in present and part in memory.logits:
                logits = memory.logits[part].to(device, torch.float32)
                yield client, round_ - memory.round, logits

    def discard(self) -> None:
        """Leaves out what was heard since the last ``commit``."""
        self._heard.clear()

    def commit(self, round_: int, present: Collection[int]) -> None:
        """Remembers what was heard; clients that others have heard are remembered there."""
        for client in present:
            self.kept.pop(client, None)
        used = sum(
            t.numel() * t.element_size()
            for memory in self.kept.values()
            for t in memory.logits.values()
            if t.device.type != "cpu"
        )
        for client, parts in sorted(self._heard.items()):
            size = sum(t.numel() * t.element_size() for t in parts.values())
            used += size
            if used > self.on_device:
                used -= size
                parts = {name: tensor.cpu() for name, tensor in parts.items()}
            self.kept[client] = Remembered(round_, parts)
        self._heard.clear()
        self.forgotten = 0
        while self.bytes > self.limit and len(self.kept) > 1:
            oldest = min(self.kept, key=lambda client: (self.kept[client].round, client))
            del self.kept[oldest]
            self.forgotten += 1

    @property
    def bytes(self) -> int:
        """What this process remembers."""
        return sum(memory.bytes for memory in self.kept.values())

    def plain(self) -> dict[int, dict[str, Any]]:
        """All of it as plain values and tensors, for a checkpoint."""
        return {
            client: {"round": memory.round, "logits": dict(memory.logits)}
            for client, memory in self.kept.items()
        }

    def restore(self, plain: Mapping[int, Mapping[str, Any]]) -> None:
        """Takes up what ``plain`` gave."""
        self.kept = {
            client: Remembered(memory["round"], dict(memory["logits"]))
            for client, memory in plain.items()
        }
