"""Teachers that are remembered: the logits of clients that are absent in a round.

In a round with few clients, none of them may know some of the classes. The logits of every client
that ever took part can be used again, which needs no communication, training or privacy budget.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import chain
from zlib import crc32

from torch import Tensor

from fedaux_pl.functional import pack_logits
from fedaux_pl.processes import Processes

MOST_CLIENTS = 1000  # the largest number of remembered clients, over all processes
MOST_BYTES = 8 * 2**30  # the largest memory of their logits, over all processes
DEVICE_BYTES = 2**30  # if the logits of that many clients need more, they stay in host memory


@dataclass(frozen=True)
class RememberedTeacher:
    """The logits of a client in the last round in which it took part."""

    round: int
    logits: Mapping[str, Tensor]  # f_i(x) by part of the data, as ``pack_logits`` stores them

    @property
    def bytes(self) -> int:
        """The memory that the logits take."""
        return sum(tensor.nbytes for tensor in self.logits.values())


RememberedTeachers = dict[int, RememberedTeacher]
"""Remembered teachers by client. Each process remembers the clients that it has trained."""


@dataclass(frozen=True)
class TeacherMemory:
    """The remembered teachers of a run, which its checkpoint holds."""

    teachers: RememberedTeachers
    processes: Processes = field(default_factory=Processes)

    def remember(self, client: int, round_: int, part: str, logits: Tensor) -> None:
        """Store a client's logits on one part of the data, and forget those of earlier rounds."""
        packed = pack_logits(logits)
        if packed.nbytes * MOST_CLIENTS > DEVICE_BYTES:
            packed = packed.cpu()
        earlier = self.teachers.get(client)
        parts = earlier.logits if earlier is not None and earlier.round == round_ else {}
        self.teachers[client] = RememberedTeacher(round_, {**parts, part: packed})

    def absent(self, part: str, present: Collection[int]) -> list[int]:
        """Return the remembered clients of all processes, in order, except those present."""
        absent = [
            client
            for client, teacher in self.teachers.items()
            if part in teacher.logits and client not in present
        ]
        return sorted(chain.from_iterable(self.processes.gather(absent)))

    def forget(self, round_: int, present: Collection[int]) -> int:
        """Forget outdated logits after a round; return how many clients this process has dropped.

        If another process has trained a client in this round, the logits that this process
        remembers of the client are outdated. Beyond the limits of this file the clients that have
        been absent longest are dropped. Among equals a fixed function of round and client decides.
        """
        for client in present:
            if client in self.teachers and self.teachers[client].round != round_:
                del self.teachers[client]
        entries = {}
        for client, teacher in self.teachers.items():
            order = crc32(f"{teacher.round} {client}".encode())
            entries[client] = teacher.round, order, client, teacher.bytes
        dropped = 0
        total = 0
        latest_first = sorted(self.processes.merge(entries).values(), reverse=True)
        for index, (_, _, client, size) in enumerate(latest_first):
            total += size
            is_beyond = index >= MOST_CLIENTS or total > MOST_BYTES
            if index > 0 and is_beyond and self.teachers.pop(client, None) is not None:
                dropped += 1
        return dropped

    def metrics(self, dropped: int) -> dict[str, float]:
        """Return the size of the memory of all processes, and how many clients they dropped."""
        stored = sum(teacher.bytes for teacher in self.teachers.values())
        sizes = len(self.teachers), stored, dropped
        clients, stored, dropped = map(sum, zip(*self.processes.gather(sizes), strict=True))
        return {"memory/clients": clients, "memory/bytes": stored, "memory/forgotten": dropped}
