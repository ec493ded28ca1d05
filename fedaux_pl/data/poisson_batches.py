"""Batches of DP-SGD: every step draws each sample on its own, with the same probability."""

import math
import os
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedaux_pl.data.augmentation import Augmentation
from fedaux_pl.data.lazy_inputs import Inputs, read_batches
from fedaux_pl.functional import derive_seed

Draw = Callable[[int], npt.NDArray[np.uint64]]
"""Returns so many random integers below 2^64."""


def secret_integers(count: int) -> npt.NDArray[np.uint64]:
    """Return integers from the operating system's random source."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


class PoissonBatches:
    """Iterate over batches whose sizes vary; one can be empty.

    Args:
        tensors: Tensors or lazy inputs with the same first dimension, as of ``TensorBatches``.
        rate: The probability with which a sample is in a batch.
        steps: The batches of an epoch.
        subset: The positions of the samples to use.
        seed: The seed of all draws; None to draw from the operating system.
        augmentation: Changes of each image by random numbers of its own; None for none.

    Examples:
        >>> images = torch.arange(100)
        >>> batches = PoissonBatches(images, rate=0.1, steps=3, subset=torch.arange(50), seed=0)
        >>> [len(x) for (x,) in batches]
        [5, 8, 8]
    """

    def __init__(
        self,
        *tensors: Inputs,
        rate: float,
        steps: int,
        subset: Tensor,
        seed: int | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.tensors = tensors
        self.rate = rate
        self.steps = steps
        self.subset = subset
        self.seed = seed
        self.augmentation = augmentation
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps

    @property
    def expected_size(self) -> int:
        """The expected number of samples of a batch, at least 1."""
        return max(1, round(self.rate * len(self.subset)))

    @property
    def size_step(self) -> int:
        """The standard deviation of the size of a batch, rounded up to a multiple of 8."""
        return 8 * math.ceil(math.sqrt(self.expected_size) / 8)

    @property
    def batch_size(self) -> int:
        """More samples than a batch has: the probability of a larger one is below 1e-30."""
        return self.expected_size + 16 * self.size_step

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        positions, numbers = self.draw_epoch(self.epoch)
        self.epoch += 1
        device = self.tensors[0].device
        positions = [index.to(device) for index in positions]
        inputs = read_batches(self.tensors[0], positions)
        for index, images, drawn in zip(positions, inputs, numbers, strict=True):
            if self.augmentation is not None and len(images):
                images = self.augmentation(images, drawn.to(device))
            yield (images, *(tensor[index] for tensor in self.tensors[1:]))

    def draw_epoch(self, epoch: int) -> tuple[list[Tensor], list[Tensor]]:
        """Draw the batches of an epoch, on the CPU.

        Returns the positions of the samples of each batch, shape (N,), and the random numbers of
        their augmentation, shape (N, numbers).
        """
        draw = self._random_source(epoch)
        positions = [self._draw_batch(draw) for _ in range(self.steps)]
        columns = 0 if self.augmentation is None else self.augmentation.numbers
        numbers = []
        for index in positions:
            integers = draw(len(index) * columns) >> np.uint64(33)  # below 2^31
            drawn = integers.astype(np.int64).reshape(len(index), columns)
            numbers.append(torch.from_numpy(drawn))
        return positions, numbers

    def positions(self, epoch: int) -> list[Tensor]:
        """The positions of the samples of each batch, on the CPU."""
        return self.draw_epoch(epoch)[0]

    def _random_source(self, epoch: int) -> Draw:
        if self.seed is None:
            return secret_integers
        generator = np.random.default_rng(derive_seed(self.seed, epoch))
        return lambda count: generator.integers(2**64, size=count, dtype=np.uint64)

    def _draw_batch(self, draw: Draw) -> Tensor:
        largest = min(int(self.rate * 2**64), 2**64) - 1
        is_drawn = draw(len(self.subset)) <= np.uint64(largest)
        return self.subset[torch.from_numpy(is_drawn)]
