"""Soft labels that teachers find while students learn from those that are there.

A step of a student needs the labels of one batch. So teachers are asked for chunks of rows in the
order in which the first epoch comes to them, a chunk ahead of the student. On CUDA both work at
the same time: the small kernels of a student leave much of a GPU idle, which those of teachers
fill, and the student's go first. On a CPU they take turns.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn

from fedaux_pl.data import TensorBatches
from fedaux_pl.engine.graphs import PRIORITY

CHUNK = 4096
"""The rows of a chunk, unless a model wants many more at a time."""

AHEAD = 1
"""Chunks that teachers have been asked for beyond the one from which a student learns."""


class Lesson:
    """The soft labels of a round, and when they are asked for.

    The stream on which a lesson is made is that of the teachers. A student has one of its own, see
    ``attended``; the lesson has it wait for each chunk. What teachers allocate is read by them and,
    until ``attended`` ends, by the student, so that no memory changes hands before.

    Args:
        batches: Those of the students: inputs and soft labels, the latter to be written here.
        label: The soft labels of some rows of D_distill; of all of them for None.
        examine: Called once, after the last chunk, with the teachers' stream at hand: measures
            how good they are, as tensors, for which nobody waits.
        by_row: Whether rows may be asked for in parts. If not, all of them are the first chunk.
        chunk: Rows that teachers are asked for at a time, where that is more than a batch.
    """

    def __init__(
        self,
        batches: TensorBatches,
        label: Callable[[Tensor | None], Tensor],
        examine: Callable[[], Mapping[str, Tensor]],
        by_row: bool,
        chunk: int = CHUNK,
    ) -> None:
        self.batches = batches
        self.targets = batches.tensors[1]
        self._label = label
        self._examine = examine
        self._batches = max(1, chunk // batches.batch_size) if by_row else len(batches)
        self._chunks = _chunks(batches, self._batches) if by_row else [None]
        self._measured: Mapping[str, Tensor] = {}
        self._asked = self._awaited = 0
        self._ready: list[torch.cuda.Event] = []
        device = self.targets.device
        self._teachers = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def before(self, number: int) -> None:
        """Has the labels of a batch of the first epoch there, as far as the current stream sees.

        Before the last of its batches all rows have been asked for, those too that this epoch
        leaves out, so that further epochs and students find everything.
        """
        needed = number // self._batches + 1
        while self._asked < min(needed + AHEAD, len(self._chunks)):
            self._ask()
        for event in self._ready[self._awaited : needed]:
            torch.cuda.current_stream(self.targets.device).wait_event(event)
        self._awaited = max(self._awaited, needed)

    def finish(self) -> Mapping[str, Tensor]:
        """Asks for what is missing, and gives what was measured."""
        while self._asked < len(self._chunks):
            self._ask()
        return self._measured

    def _ask(self) -> None:
        rows = self._chunks[self._asked]
        with torch.cuda.stream(self._teachers):  # without one, nothing
            labels = self._label(rows).to(self.targets.dtype)
            if rows is None:
                self.targets.copy_(labels)
            else:
                self.targets.index_copy_(0, rows, labels)
            if self._teachers is not None:
                self._ready.append(self._teachers.record_event())  # type: ignore[no-untyped-call]
            self._asked += 1
            if self._asked == len(self._chunks):
                self._measured = self._examine()

    @contextmanager
    def attended(self) -> Iterator[None]:
        """Within it students learn; on CUDA on a stream of their own, joined whatever happens."""
        student = None
        if self._teachers is not None:
            student = _student_stream(self.targets.device, PRIORITY)
            student.wait_stream(self._teachers)
        self.batches.before = self.before
        try:
            with torch.cuda.stream(student):
                yield
        finally:
            self.batches.before = None
            if self._teachers is not None and student is not None:
                self._teachers.wait_stream(student)


def chunk_of(models: Iterable[nn.Module]) -> int:
    """How many rows these models are best asked for at a time, where there shall be several."""
    return max(CHUNK, *(int(getattr(model, "rows_at_once", 0)) // 8 for model in models))


def _chunks(batches: TensorBatches, each: int) -> list[Tensor | None]:
    """The rows of so many batches of the first epoch at a time; the last with what it leaves out.

    Within a chunk they rise: labels do not depend on it, and inputs are read in their order.
    """
    plan, count = batches.positions(0), len(batches.tensors[0])
    parts = [torch.cat(plan[start : start + each]) for start in range(0, len(plan), each)]
    if sum(len(part) for part in parts) < count:
        left = torch.ones(count, dtype=torch.bool, device=parts[-1].device)
        left[torch.cat(plan)] = False
        parts[-1] = torch.cat([parts[-1], left.nonzero().flatten()])
    return [part.sort().values for part in parts]


@cache
def _student_stream(device: torch.device, priority: int) -> torch.cuda.Stream:
    """The same in every round, so that what students free is there for those of the next."""
    return torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
