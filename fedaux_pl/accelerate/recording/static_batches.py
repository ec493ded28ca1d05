"""Batches for captured steps, which read the same memory in every replay."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fedaux_pl.accelerate.context import ceil_div
from fedaux_pl.data import TensorBatches
from fedaux_pl.data.augmentation import Augmentation
from fedaux_pl.data.lazy_inputs import Inputs, LazyInputs
from fedaux_pl.models.encoder import Encoder


class StaticBatches:
    """The batches of consecutive trainings, read from static memory on the device.

    The data, the order of the epoch and the index of the next batch are tensors at fixed addresses.
    Inputs are read in place as long as every epoch has the same ones; from their second version on
    they are copied into a buffer. Targets, small and new in each round, are copied from the start.
    A buffer grows to the size of the largest tensor. Of inputs in host memory or on disk, and of
    those that a module augments, which may synchronize with the host, the buffer holds one batch,
    which ``fetch`` fills before a step.
    """

    def __init__(self) -> None:
        self.num_samples = 0  # of the epoch
        self._data: list[Tensor] = []
        self._buffers: set[int] = set()  # indices of ``_data`` that are copies
        self._order = torch.empty(0, 0, dtype=torch.long)  # (batches, batch size)
        self._next = torch.empty(0, dtype=torch.long)
        self._read: Iterator[Tensor] | None = None  # the batches of inputs, if steps do not read it
        self._augmentation: Augmentation | None = None
        self._numbers = torch.empty(0, 0, 0, dtype=torch.long)  # (batches, batch size, numbers)

    def load_epoch(self, batches: TensorBatches, epoch: int) -> bool:
        """Load an epoch; return whether an address changed, so that captured steps are void."""
        self._augmentation = batches.augmentation
        self._read = None
        if batches.reads_before_steps:
            self._read = batches.read_inputs(epoch, batches.positions(epoch))
        moved = self._load_data(batches.tensors, batches.batch_size)
        order = batches.order(epoch)
        self.num_samples = len(order)
        size = batches.batch_size
        rows = max(len(batches), ceil_div(len(batches.tensors[0]), size))
        is_other = self._order.device != order.device or self._order.shape[1] != size
        if is_other or len(self._order) < rows:
            self._order = order.new_zeros(rows, size)
            self._next = order.new_zeros(1)
            moved = True
        self._order.view(-1)[: self.num_samples].copy_(order)
        self._next.zero_()
        numbers = batches.random_numbers(epoch)
        if numbers is not None:
            if len(self._numbers) < rows:
                self._numbers = numbers.new_zeros(rows, *numbers.shape[1:])
                moved = True
            self._numbers[: len(numbers)].copy_(numbers)
        return moved

    def fetch(self) -> None:
        """Read the next batch of inputs that steps do not read; called before a step."""
        if self._read is not None:
            batch = next(self._read)
            self._data[0][: len(batch)].copy_(batch, non_blocking=True)

    def next_batch(self, size: int) -> tuple[Tensor, ...]:
        """Return the first ``size`` samples of the next batch."""
        index = self._order.index_select(0, self._next).view(-1)[:size]
        inputs, *targets = self._data
        if self._read is not None:
            x = inputs[:size]
        else:
            x = inputs.index_select(0, index)
            if self._augmentation is not None:
                numbers = self._numbers.index_select(0, self._next)
                x = self._augmentation(x, numbers[0, :size])
        self._next += 1
        return x, *(tensor.index_select(0, index) for tensor in targets)

    def count_tokens(self, encoder: Encoder) -> list[int]:
        """Sum the lengths of the texts of each full batch; wait for the device once."""
        lengths = encoder.lengths(self._data[0]).clamp(min=1)
        full = self.num_samples // self._order.shape[1]
        counts: list[int] = lengths[self._order[:full]].sum(dim=1).tolist()
        return counts

    def _load_data(self, tensors: tuple[Inputs, ...], batch_size: int) -> bool:
        if [*map(_format, tensors)] != [*map(_format, self._data)]:
            first, *targets = tensors
            if self._read is not None or isinstance(first, LazyInputs):
                size = (batch_size, *first.shape[1:])
                first = torch.empty(size, dtype=first.dtype, device=first.device)
            self._data = [first, *(tensor[:].clone() for tensor in targets)]
            self._buffers = set(range(1, len(tensors)))
            return True
        moved = False
        for number, (tensor, known) in enumerate(zip(tensors, self._data, strict=True)):
            if isinstance(tensor, LazyInputs) or (number == 0 and self._read is not None):
                continue
            is_buffer = number in self._buffers
            if not is_buffer and _memory(tensor) == _memory(known):
                continue
            if not is_buffer or len(tensor) > len(known):
                rows = max(len(tensor), len(known))
                self._data[number] = tensor.new_empty(rows, *tensor.shape[1:])
                self._buffers.add(number)
                moved = True
            self._data[number][: len(tensor)].copy_(tensor)
        return moved


def _format(tensor: Inputs) -> tuple[object, ...]:
    """Return the shape of samples, dtype and device."""
    return tensor.shape[1:], tensor.dtype, tensor.device


def _memory(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()
