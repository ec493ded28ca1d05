"""The logits of absent clients, which keep teaching.

In a round with few clients, none of them may know some of the classes. Reusing the logits of every
client that ever took part needs no further communication, training or privacy budget.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from zlib import crc32

from torch import Tensor

from fedaux_pl.functional import pack_logits
from fedaux_pl.processes import Processes

DEVICE_LIMIT = 2**30  # bytes of logits that stay on the device; the rest is moved to host memory
LIMIT = 8 * 2**30  # bytes in all processes; beyond it, the longest absent clients are forgotten

MOST_CLIENTS = 1000  # that are remembered, in all processes


@dataclass(frozen=True)
class RememberedLogits:
    """The logits of one client in the last round in which it took part.

    ``logits`` holds f_i(x) by the name of the data, see ``pack_logits``.
    """

    round: int
    logits: Mapping[str, Tensor]


@dataclass(eq=False)
class TeacherMemory:
    """The last logits of every client that ever taught.

    ``remember`` collects the logits of a round, and ``commit`` stores them when the round is over,
    so that a failed round leaves the memory unchanged. If several processes share the clients, each
    process stores the logits that it has computed. ``forgotten`` is how many clients the last
    ``commit`` has dropped to stay within the limits.
    """

    device_limit: int = DEVICE_LIMIT
    limit: int = LIMIT
    most_clients: int = MOST_CLIENTS
    stored: dict[int, RememberedLogits] = field(default_factory=dict)
    forgotten: int = 0
    _pending: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def remember(self, client: int, part: str, logits: Tensor) -> None:
        """Collect a client's logits on one part of the data, until ``commit`` or ``discard``."""
        self._pending.setdefault(client, {})[part] = pack_logits(logits)

    def absent(self, part: str, present: Collection[int]) -> dict[int, RememberedLogits]:
        """The memory of this process's absent clients that have logits on one part of the data."""
        return {
            client: memory
            for client, memory in self.stored.items()
            if client not in present and part in memory.logits
        }

    def last_rounds(
        self, part: str, present: Collection[int], processes: Processes
    ) -> dict[int, int]:
        """The last round of each absent client, of all processes."""
        absent = self.absent(part, present)
        return processes.merge({client: absent[client].round for client in absent})

    def discard(self) -> None:
        """Drop the logits that were collected since the last ``commit``."""
        self._pending.clear()

    def commit(
        self, round_: int, present: Collection[int], processes: Processes | None = None
    ) -> None:
        """Store the collected logits of a round.

        The older logits of all ``present`` clients, of all processes, are dropped here, whichever
        process stores the new ones.
        """
        for client in present:
            self.stored.pop(client, None)
        tensors = chain.from_iterable(memory.logits.values() for memory in self.stored.values())
        used = sum(tensor.nbytes for tensor in tensors if tensor.device.type != "cpu")
        for client, logits in sorted(self._pending.items()):
            if used + _bytes(logits) > self.device_limit:
                logits = {part: tensor.cpu() for part, tensor in logits.items()}
            else:
                used += _bytes(logits)
            self.stored[client] = RememberedLogits(round_, logits)
        self._pending.clear()
        self.forgotten = 0
        self._forget_oldest(processes or Processes())

    def _forget_oldest(self, processes: Processes) -> None:
        """Drop the clients with the longest absence until all processes are within the limits.

        Of clients with the same absence a random order decides, a function of round and client.
        """
        entries = {}
        for client, memory in self.stored.items():
            order = crc32(f"{memory.round} {client}".encode())
            entries[client] = memory.round, order, client, _bytes(memory.logits)
        everyone = sorted(processes.merge(entries).values())
        total = sum(size for *_, size in everyone)
        for index, (*_, client, size) in enumerate(everyone[:-1]):
            if total <= self.limit and len(everyone) - index <= self.most_clients:
                break
            total -= size
            self.forgotten += self.stored.pop(client, None) is not None

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
        """Restore what ``state_dict`` returned."""
        self.stored = {client: RememberedLogits(**memory) for client, memory in state.items()}


def _bytes(logits: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in logits.values())
