"""Batches of samples that are in memory or are read from disk."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedaux_pl.data.augmentation import Augmentation
from fedaux_pl.data.lazy_inputs import Inputs, LazyInputs, read_batches
from fedaux_pl.errors import check_setting
from fedaux_pl.functional import derive_seed


class TensorBatches:
    """Iterate over batches of tensors by index, without worker processes or collation.

    It can replace a DataLoader under a Lightning Trainer. The order depends only on ``seed`` and on
    the number of the epoch. Every iteration starts the next epoch; ``set_epoch``, which the Trainer
    calls, sets the number of the epoch.

    Args:
        tensors: Tensors with the same first dimension N, on the same device. The first holds the
            inputs, which can also be LazyInputs. A batch is a tuple with some rows of each tensor.
        batch_size: The number of samples in a batch, at least 1.
        shuffle: Whether every epoch has a new order.
        seed: The seed of the orders and of the augmentation.
        smallest: The smallest batch: if fewer samples are left at the end of an epoch, they are
            dropped. Training uses 2, because BatchNorm cannot normalize a single sample.
        subset: The positions of the samples to use, such as the samples of one client; None for
            all samples.
        augmentation: Random changes of the inputs, images (N, C, H, W); None for no changes.

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
        *tensors: Inputs,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        smallest: int = 1,
        subset: Tensor | None = None,
        augmentation: Augmentation | None = None,
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
        self.augmentation = augmentation
        self.epoch = 0

    batch_sampler = None  # the Trainer reads this attribute and ``sampler`` of a DataLoader

    @property
    def sampler(self) -> "TensorBatches":
        """The object whose ``set_epoch`` the Trainer calls."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that the next iteration yields."""
        self.epoch = epoch

    @property
    def num_samples(self) -> int:
        """The number of samples in an epoch, including a last batch that is dropped."""
        return len(self.tensors[0] if self.subset is None else self.subset)

    def __len__(self) -> int:
        full_batches, rest = divmod(self.num_samples, self.batch_size)
        has_last_batch = rest >= max(self.smallest, 1)
        return full_batches + has_last_batch

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        epoch = self.epoch
        positions = self.positions(epoch)
        self.epoch += 1
        for index, inputs in zip(positions, self.read_inputs(epoch, positions), strict=True):
            yield (inputs, *(tensor[index] for tensor in self.tensors[1:]))

    @property
    def reads_before_steps(self) -> bool:
        """Whether each batch must be read before the training step that uses it.

        A captured CUDA step can itself read inputs that are on the device and augment them by given
        random numbers. It can neither read lazy inputs nor run a transform of torchvision, which
        draws random numbers of its own.
        """
        if isinstance(self.tensors[0], LazyInputs):
            return True
        if self.augmentation is None:
            return False
        return not all(count for _, count in self.augmentation.steps)

    def read_inputs(self, epoch: int, positions: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the augmented inputs of each batch, given the positions of its samples."""
        numbers = self.random_numbers(epoch)
        for batch, inputs in enumerate(read_batches(self.tensors[0], positions)):
            if self.augmentation is not None and numbers is not None:
                seed = derive_seed(self.seed, epoch, 1, batch)
                inputs = self.augmentation(inputs, numbers[batch, : len(inputs)], seed)
            yield inputs

    def random_numbers(self, epoch: int) -> Tensor | None:
        """The random integers that an epoch's augmentation uses; None without an augmentation.

        Their shape is (batches, batch size, integers for each image).
        """
        if self.augmentation is None:
            return None
        generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch, 0))
        shape = len(self), self.batch_size, self.augmentation.numbers
        return torch.randint(2**31, shape, generator=generator).to(self.tensors[0].device)

    def positions(self, epoch: int) -> tuple[Tensor, ...]:
        """The positions of the samples in each batch of an epoch, on the device of the tensors."""
        order = self.order(epoch)
        return torch.split(order, self.batch_size) if len(order) else ()

    def order(self, epoch: int) -> Tensor:
        """The positions of all samples of an epoch in their order, on the device of the tensors."""
        count = self.num_samples
        if self.shuffle:
            # drawn on the CPU, so that the order does not depend on the device
            generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
            order = torch.randperm(count, generator=generator)
        else:
            order = torch.arange(count)
        if self.subset is not None:
            order = self.subset[order]
        # copied to the device once, not once for each batch
        return order[: len(self) * self.batch_size].to(self.tensors[0].device)


def shuffled_batches(
    *tensors: Inputs,
    batch_size: int,
    seed: int,
    subset: Tensor | None = None,
    augmentation: Augmentation | None = None,
) -> TensorBatches:
    """Return batches for training, in a new order in every epoch.

    A last batch of a single sample is dropped, because BatchNorm cannot normalize a single sample;
    it is kept if there is no other sample. The arguments are described at ``TensorBatches``.
    """
    count = len(tensors[0] if subset is None else subset)
    return TensorBatches(
        *tensors,
        batch_size=batch_size,
        shuffle=True,
        seed=seed,
        smallest=min(2, count),
        subset=subset,
        augmentation=augmentation,
    )


def batches_in_order(inputs: Inputs, *others: Tensor) -> TensorBatches:
    """Return batches for an evaluation, in order; batches of large images are smaller."""
    # cuDNN tries its kernels anew for each batch size: 2,000 divides 10,000 test images
    return TensorBatches(inputs, *others, batch_size=fit_batch_size(2000, inputs))


def fit_batch_size(size: int, inputs: Inputs) -> int:
    """Return the batch size for predictions: ``size``, or less for images above 32 x 32 pixels.

    A batch of larger images has about as many pixels, but at least 64 images.
    """
    pixels = math.prod(inputs.shape[2:]) if inputs.ndim == 4 else 1
    return min(size, max(64, size * 32 * 32 // pixels))
