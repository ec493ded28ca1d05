"""The samples of an epoch, for steps that are recorded once and replayed.

A recorded step reads from fixed places, so that everything it needs to find its next batch lies on
the device: the tensors, the order of the epoch and how far it has come. The host only starts one
step after another.
"""

import torch
from torch import Tensor

from fedaux_pl.data import TensorBatches


class Samples:
    """Batches of one training after another, from places that seldom change.

    Tensors are read where they are. Those that come from elsewhere the next time, such as the soft
    labels of another round, or the data of another client where clients do not share theirs, are
    copied to a place of our own from then on.
    """

    def __init__(self) -> None:
        self.count = 0
        """How many samples the epoch has."""
        self._places: list[Tensor] = []
        self._own: set[int] = set()  # which of them are copies
        self._order = torch.empty(0, 0, dtype=torch.long)
        self._at = torch.empty(0, dtype=torch.long)

    def begin(self, batches: TensorBatches, epoch: int) -> bool:
        """Puts an epoch in place, and says whether it lies elsewhere than the one before.

        Args:
            batches: The data and how it is shuffled.
            epoch: Which epoch of it.
        """
        moved = self._place(batches.tensors)
        order = batches.order(epoch)
        self.count = len(order)
        rows = max(len(batches), -(-len(batches.tensors[0]) // batches.batch_size))
        if (
            self._order.device != order.device
            or self._order.shape[1] != batches.batch_size
            or len(self._order) < rows
        ):
            self._order = order.new_zeros(rows, batches.batch_size)
            self._at = order.new_zeros(1)
            moved = True
        self._order.view(-1)[: self.count].copy_(order)
        self._at.zero_()
        return moved

    def take(self, size: int) -> tuple[Tensor, ...]:
        """The next batch, without the host knowing which it is."""
        index = self._order.index_select(0, self._at).view(-1)[:size]
        self._at += 1
        return tuple(place.index_select(0, index) for place in self._places)

    def _place(self, tensors: tuple[Tensor, ...]) -> bool:
        if len(tensors) != len(self._places) or not all(map(_alike, tensors, self._places)):
            self._places, self._own = list(tensors), set()
            return True
        moved = False
        for number, (tensor, place) in enumerate(zip(tensors, self._places, strict=True)):
            if number not in self._own and _is_same(tensor, place):
                continue
            if number not in self._own or len(tensor) > len(place):
                rows = max(len(tensor), len(place))
                self._places[number] = tensor.new_empty(rows, *tensor.shape[1:])
                self._own.add(number)
                moved = True
            self._places[number][: len(tensor)].copy_(tensor)
        return moved


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether samples are of the same kind, however many there are."""
    return (one.shape[1:], one.dtype, one.device) == (other.shape[1:], other.dtype, other.device)


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same part of memory."""
    return (one.data_ptr(), one.shape, one.stride()) == (
        other.data_ptr(),
        other.shape,
        other.stride(),
    )
