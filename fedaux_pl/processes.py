"""The processes that share the work of a run, and the few ways in which they talk."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

_T = TypeVar("_T")
_K = TypeVar("_K")


class Processes:
    """All processes of a run, seen from one of them; by default there is no other.

    Alone, every method gives back what it is given, so that code for many needs no case for one.
    Every method but ``share`` and ``part`` must be called by all processes, in the same order.

    Args:
        rank: Which of them this one is, 0 ... world_size - 1.
        world_size: How many there are.
        device: Where this process works.
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

    def share(self, items: Sequence[_T]) -> Sequence[_T]:
        """The items that are this process's to work on, of what is the same list in all of them."""
        return items[self.rank :: self.world_size]

    def part(self, count: int) -> slice:
        """Which of so many samples are this process's: as equal parts as can be, one after another.

        Where there are fewer samples than processes, some have none.
        """
        return slice(
            count * self.rank // self.world_size, count * (self.rank + 1) // self.world_size
        )

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sums over all processes, by one reduction.

        Args:
            tensors: Of the same shapes in every process; added up in the widest type among them.
        """
        if self.world_size == 1 or not tensors:
            return list(tensors)
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])  # promotes the types
        dist.all_reduce(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [
            part.view(tensor.shape).to(tensor.dtype)
            for part, tensor in zip(parts, tensors, strict=True)
        ]

    def gather(self, thing: _T) -> list[_T]:
        """What each process gives, in the order of their ranks; tensors come to this one's device.

        It travels pickled: meant for numbers, heads and states, not for data sets.
        """
        if self.world_size == 1:
            return [thing]
        given: list[Any] = [None] * self.world_size
        dist.all_gather_object(given, _packed(thing))
        # what a process has given keeps its identity there
        return [
            thing if rank == self.rank else self._unpacked(content)
            for rank, content in enumerate(given)
        ]

    def merge(self, own: Mapping[_K, _T]) -> dict[_K, _T]:
        """The entries of all processes together, which have different keys."""
        return {key: value for part in self.gather(own) for key, value in part.items()}

    def broadcast(self, thing: _T) -> _T:
        """What the first process gives; what the others give is not looked at."""
        if self.world_size == 1:
            return thing
        content = [_packed(thing) if self.first else None]
        dist.broadcast_object_list(content, src=0)
        return thing if self.first else self._unpacked(content[0])

    def _unpacked(self, content: Any) -> Any:
        # from a process of this same run, so that it may hold more than tensors
        return torch.load(io.BytesIO(content), map_location=self._location, weights_only=False)

    def _location(self, storage: Any, location: str) -> Any:
        """What lay on another process's device belongs on this one's; the rest stays on the CPU."""
        return storage if location == "cpu" else storage.to(device=self.device)


def _packed(thing: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()
