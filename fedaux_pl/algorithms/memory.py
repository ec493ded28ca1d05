"""The logits of absent clients, which keep teaching.

In a round with few clients, none of them may know some of the classes. Reusing the logits of every
client that ever took part needs no further communication, training or privacy budget.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from zlib import crc32

from torch import Tensor

from fedaux_pl.functional import pack_logits
from fedaux_pl.processes import Processes

MOST_CLIENTS = 1000  # that are remembered, in all processes
MOST_BYTES = 8 * 2**30  # of their logits, in all processes
DEVICE_BYTES = 2**30  # if the logits of that many clients take more, they are in host memory


@dataclass(frozen=True)
class RememberedTeacher:
    """The logits of a client in the last round in which it took part."""

    round: int
    logits: Mapping[str, Tensor]  # f_i(x) by the name of the data, see ``pack_logits``

    @property
    def bytes(self) -> int:
        """The memory that the logits take."""
        return sum(tensor.nbytes for tensor in self.logits.values())


TeacherMemory = dict[int, RememberedTeacher]
"""The remembered teachers by client; with several processes, those that this one has trained."""


def remember(memory: TeacherMemory, client: int, round_: int, part: str, logits: Tensor) -> None:
    """Store a client's logits on one part of the data in place of those of earlier rounds."""
    packed = pack_logits(logits)
    if packed.nbytes * MOST_CLIENTS > DEVICE_BYTES:
        packed = packed.cpu()
    earlier = memory.get(client)
    parts = earlier.logits if earlier is not None and earlier.round == round_ else {}
    memory[client] = RememberedTeacher(round_, {**parts, part: packed})


def absent_clients(
    memory: TeacherMemory, part: str, present: Collection[int], processes: Processes
) -> list[int]:
    """Return the remembered clients of all processes that are not present, in order."""
    absent = [
        client
        for client, teacher in memory.items()
        if part in teacher.logits and client not in present
    ]
    return sorted(chain.from_iterable(processes.gather(absent)))


def forget(
    memory: TeacherMemory, round_: int, present: Collection[int], processes: Processes
) -> int:
    """Forget what is outdated after a round; return how many clients this process has dropped.

    The earlier logits of a client that another process has trained now are outdated. Beyond the
    limits the clients with the longest absence are dropped. Of clients with the same absence a
    random order decides, a function of round and client.
    """
    for client in present:
        if client in memory and memory[client].round != round_:
            del memory[client]
    entries = {}
    for client, teacher in memory.items():
        order = crc32(f"{teacher.round} {client}".encode())
        entries[client] = teacher.round, order, client, teacher.bytes
    forgotten = 0
    total = 0
    latest_first = sorted(processes.merge(entries).values(), reverse=True)
    for index, (_, _, client, size) in enumerate(latest_first):
        total += size
        is_beyond = index >= MOST_CLIENTS or total > MOST_BYTES
        if index > 0 and is_beyond and memory.pop(client, None) is not None:
            forgotten += 1
    return forgotten
