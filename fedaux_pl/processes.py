"""The processes of a run, their threads, and how they exchange tensors and objects."""

import io
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

_T = TypeVar("_T")
_K = TypeVar("_K")
# Lightning sets the variable later, when it starts processes.
_OMP_NUM_THREADS = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else None
_SMALL = 500_000  # parameters
_MAX_THREADS = 4


def choose_threads(models: Iterable[nn.Module]) -> int:
    """Return the number of CPU threads of each process: OMP_NUM_THREADS, if set.

    Otherwise 1 if every network has less than 500,000 parameters, else the cores, at most 4. It
    depends neither on the load nor on the number of processes: it changes how sums are rounded.
    """
    if _OMP_NUM_THREADS is not None:
        return _OMP_NUM_THREADS
    sizes = [sum(p.numel() for p in model.parameters()) for model in models]
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return 1 if max(sizes) < _SMALL else min(cores, _MAX_THREADS)


class Processes:
    """All processes of a run, seen from one of them; by default there is only this one.

    With one process every method returns its argument, so callers need no special case.
    All processes must call every method except ``local`` and ``part``, in the same order.
    Floating-point numbers of clients are summed with ``in_order``, not with ``sum``, whose rounding
    depends on the number of processes.
    """

    def __init__(
        self, rank: int = 0, world_size: int = 1, device: torch.device | str = "cpu"
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device = torch.device(device)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def local(self, items: Sequence[_T]) -> Sequence[_T]:
        """Return the items that this process works on, of a list that all processes have."""
        return items[self.rank :: self.world_size]

    def part(self, count: int) -> slice:
        """Return which of ``count`` samples belong to this process; contiguous, perhaps none."""
        start = count * self.rank // self.world_size
        end = count * (self.rank + 1) // self.world_size
        return slice(start, end)

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums over all processes, by one reduction in the widest of the dtypes."""
        if self.world_size == 1 or not tensors:
            return list(tensors)
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])  # promotes the dtypes
        dist.all_reduce(flat)
        sums = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [
            total.view(tensor.shape).to(tensor.dtype)
            for total, tensor in zip(sums, tensors, strict=True)
        ]

    def in_order(
        self,
        order: Sequence[_K],
        local: Collection[_K],
        compute: Callable[[_K], Sequence[Tensor]],
        template: Callable[[_K], Sequence[Tensor]],
    ) -> Iterator[tuple[_K, Sequence[Tensor]]]:
        """Yield the tensors of all processes one item after another, in the same order in each.

        A sum over the items then has the same rounding errors whatever the number of processes.
        A process computes its next item before it waits for those of the others, and has at most
        two items in memory. Every process must iterate to the end. An item is ``local`` in one
        process. For an item of any process, ``template`` returns tensors of the same shapes and
        dtypes.
        """
        if self.world_size == 1:
            yield from ((item, compute(item)) for item in order)
            return
        owner: dict[_K, int] = {}
        for rank, items in enumerate(self.gather(list(local))):
            owner |= dict.fromkeys(items, rank)
        computed = (compute(item) for item in order if owner[item] == self.rank)
        upcoming = next(computed, ())
        for item in order:
            if owner[item] == self.rank:
                yield item, self._broadcast_tensors(upcoming, self.rank)
                upcoming = next(computed, ())
            else:
                yield item, self._broadcast_tensors(template(item), owner[item])

    def gather(self, value: _T) -> list[_T]:
        """Return the values of all processes by rank, pickled, with tensors on this device."""
        if self.world_size == 1:
            return [value]
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, _pickled(value))
        # This process gets its own object back, not a copy.
        return [
            value if rank == self.rank else self._unpickled(content)
            for rank, content in enumerate(gathered)
        ]

    def merge(self, entries: Mapping[_K, _T]) -> dict[_K, _T]:
        """Return the union of all processes' entries, which must have different keys."""
        union: dict[_K, _T] = {}
        for gathered in self.gather(entries):
            union |= gathered
        return union

    def broadcast(self, value: _T) -> _T:
        """Return the value of the first process; those of the others are ignored."""
        if self.world_size == 1:
            return value
        content = [_pickled(value) if self.first else None]
        dist.broadcast_object_list(content, src=0)
        return value if self.first else self._unpickled(content[0])

    def _broadcast_tensors(self, tensors: Sequence[Tensor], source: int) -> list[Tensor]:
        """The tensors of the process ``source``; those of the others give shapes and dtypes."""
        received: dict[int, Tensor] = {}
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            group = {i: tensor for i, tensor in enumerate(tensors) if tensor.dtype == dtype}
            flat = torch.cat([tensor.detach().flatten() for tensor in group.values()])
            flat = flat.to(self.device)
            dist.broadcast(flat, source)
            chunks = torch.split(flat, [tensor.numel() for tensor in group.values()])
            for (i, tensor), chunk in zip(group.items(), chunks, strict=True):
                received[i] = chunk.view(tensor.shape)
        return [received[index] for index in range(len(tensors))]

    def _unpickled(self, content: Any) -> Any:
        def move(storage: Any, location: str) -> Any:  # from another process's GPU to this one's
            return storage if location == "cpu" else storage.to(device=self.device)

        # weights_only=False: the sender is a process of this run and may send any object
        return torch.load(io.BytesIO(content), map_location=move, weights_only=False)


def _pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
