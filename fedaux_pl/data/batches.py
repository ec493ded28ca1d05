"""Batches straight from tensors that already lie where they are needed."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fedaux_pl.functional import derive_seed


class TensorBatches:
    """Iterates over batches of tensors by index: no worker process, no item-by-item collation.

    Stands wherever a DataLoader may stand under a Lightning Trainer. The order is a function of
    ``seed`` and the epoch alone: every pass over it counts one epoch on, unless somebody, like
    the Trainer, says by ``set_epoch`` which one it is.

    Args:
        tensors: Tensors with the same first dimension N, on the same device; a batch is a tuple
            with a part of each.
        batch_size: Samples of a batch, at least 1.
        shuffle: Whether to draw a new order in every epoch.
        seed: What the orders are derived from.
        smallest: A last batch with fewer samples than this is left out. BatchNorm cannot
            normalise a single sample, so training uses 2; shuffled, another one stays out each
            time.
        rank: The share of the data that this process takes, 0 ... world_size - 1.
        world_size: The number of equal shares. What does not divide is left out of the epoch.
        subset: The positions of the samples to take; None for all. A client's batches come
            straight out of everybody's data, which need no copy for it.
    """

    def __init__(
        self,
        *tensors: Tensor,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        smallest: int = 1,
        rank: int = 0,
        world_size: int = 1,
        subset: Tensor | None = None,
    ) -> None:
        if not tensors or any(len(tensor) != len(tensors[0]) for tensor in tensors):
            sizes = [len(tensor) for tensor in tensors]
            raise ValueError(f"tensors must have the same first dimension, but have {sizes}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, but is {batch_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must lie in 0 ... {world_size - 1}, but is {rank}")
        self.tensors = tensors
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.smallest = smallest
        self.rank = rank
        self.world_size = world_size
        self.subset = subset
        self.epoch = 0

    batch_sampler = None  # a DataLoader has one or the other, and the Trainer looks at both

    @property
    def sampler(self) -> "TensorBatches":
        """Where the Trainer looks for ``set_epoch``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next pass is."""
        self.epoch = epoch

    @property
    def num_samples(self) -> int:
        """How many samples there are to take from, in all processes together."""
        return len(self.tensors[0] if self.subset is None else self.subset)

    def __len__(self) -> int:
        full, rest = divmod(self.num_samples // self.world_size, self.batch_size)
        return full + (rest >= max(self.smallest, 1))

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        positions = self.positions(self.epoch)
        self.epoch += 1
        for index in positions:
            yield tuple(tensor[index] for tensor in self.tensors)

    def positions(self, epoch: int) -> tuple[Tensor, ...]:
        """Where the samples of each batch of an epoch are, on the device of the tensors."""
        order = self.order(epoch)
        return torch.split(order, self.batch_size) if len(order) else ()

    def order(self, epoch: int) -> Tensor:
        """The same one batch after another."""
        order = self._order(epoch)
        if self.subset is not None:
            order = self.subset[order]
        # one transfer to the device for all batches
        return order[: len(self) * self.batch_size].to(self.tensors[0].device)

    def _order(self, epoch: int) -> Tensor:
        count = self.num_samples
        if self.shuffle:
            # Drawn on the CPU: another device must not give another order.
            generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
            order = torch.randperm(count, generator=generator)
        else:
            order = torch.arange(count)
        return order[self.rank :: self.world_size][: count // self.world_size]
