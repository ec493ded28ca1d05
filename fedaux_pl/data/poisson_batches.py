"""Batches of DP-SGD: every step draws each sample on its own, with the same probability."""

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

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        draw = self._random_source()
        device = self.tensors[0].device
        positions = [self._draw_batch(draw).to(device) for _ in range(self.steps)]
        self.epoch += 1
        inputs = read_batches(self.tensors[0], positions)
        for index, images in zip(positions, inputs, strict=True):
            if self.augmentation is not None and len(images):
                images = self._augment(images, self.augmentation, draw)
            yield (images, *(tensor[index] for tensor in self.tensors[1:]))

    def _random_source(self) -> Draw:
        if self.seed is None:
            return secret_integers
        generator = np.random.default_rng(derive_seed(self.seed, self.epoch))
        return lambda count: generator.integers(2**64, size=count, dtype=np.uint64)

    def _draw_batch(self, draw: Draw) -> Tensor:
        largest = min(int(self.rate * 2**64), 2**64) - 1
        is_drawn = draw(len(self.subset)) <= np.uint64(largest)
        return self.subset[torch.from_numpy(is_drawn)]

    @staticmethod
    def _augment(images: Tensor, augmentation: Augmentation, draw: Draw) -> Tensor:
        shape = len(images), augmentation.numbers
        numbers = (draw(shape[0] * shape[1]) >> np.uint64(33)).astype(np.int64).reshape(shape)
        return augmentation(images, torch.from_numpy(numbers).to(images.device))
