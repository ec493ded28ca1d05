"""Batches of tensors that are already in memory."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fedaux_pl.data.input_checks import check_setting
from fedaux_pl.functional import derive_seed


class TensorBatches:
    """Iterate over batches of tensors by index, without worker processes or collation.

    Can replace a DataLoader under a Lightning Trainer. The order depends on ``seed`` and the epoch
    only. Each iteration advances the epoch by one, unless ``set_epoch`` (which the Trainer calls)
    sets it.

    Args:
        tensors: Tensors with the same first dimension N, on the same device; a batch is a tuple
            with one slice of each.
        batch_size: Samples per batch, at least 1.
        shuffle: Whether to draw a new order in every epoch.
        seed: The seed of the orders.
        smallest: The last batch is dropped if it has fewer samples. Training uses 2, because
            BatchNorm cannot normalize a single sample.
        subset: The positions of the samples to use; None for all. So the batches of a client need
            no copy of its data.

    Examples:
        >>> import torch
        >>> from fedaux_pl.data import TensorBatches
        >>> inputs, labels = torch.arange(5), torch.arange(5) % 2
        >>> [len(y) for x, y in TensorBatches(inputs, labels, batch_size=2)]
        [2, 2, 1]
        >>> batches = TensorBatches(inputs, batch_size=2, shuffle=True, seed=0, smallest=2)
        >>> len(batches), [len(x) for (x,) in batches]
        (2, [2, 2])
    """

    def __init__(
        self,
        *tensors: Tensor,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        smallest: int = 1,
        subset: Tensor | None = None,
    ) -> None:
        sizes = [len(tensor) for tensor in tensors]
        check_setting("tensors", sizes, len(set(sizes)) == 1, "have the same first dimension")
        check_setting("batch_size", batch_size, batch_size >= 1, "be at least 1")
        self.tensors = tensors
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.smallest = smallest
        self.subset = subset
        self.epoch = 0

    batch_sampler = None  # the Trainer reads both samplers of a DataLoader

    @property
    def sampler(self) -> "TensorBatches":
        """The object whose ``set_epoch`` the Trainer calls."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = epoch

    @property
    def num_samples(self) -> int:
        """The number of samples of an epoch, small last batches included."""
        return len(self.tensors[0] if self.subset is None else self.subset)

    def __len__(self) -> int:
        full, rest = divmod(self.num_samples, self.batch_size)
        return full + (rest >= max(self.smallest, 1))

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        positions = self.positions(self.epoch)
        self.epoch += 1
        for index in positions:
            yield tuple(tensor[index] for tensor in self.tensors)

    def positions(self, epoch: int) -> tuple[Tensor, ...]:
        """The positions of the samples of each batch, on the device of the tensors."""
        order = self.order(epoch)
        return torch.split(order, self.batch_size) if len(order) else ()

    def order(self, epoch: int) -> Tensor:
        """The positions of all samples of an epoch, batch after batch."""
        count = self.num_samples
        if self.shuffle:
            # on the CPU, so that the order does not depend on the device
            generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
            order = torch.randperm(count, generator=generator)
        else:
            order = torch.arange(count)
        if self.subset is not None:
            order = self.subset[order]
        # one copy to the device for all batches
        return order[: len(self) * self.batch_size].to(self.tensors[0].device)
