"""Augmentation: random changes of training images, on the device, in batches.

All random numbers follow from the seed of the batches, the epoch and the position in it, so that
they do not depend on the device, on the number of processes or on where a client trains.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms import v2

from fedaux_pl.errors import ConfigurationError, check_setting, did_you_mean, first_line
from fedaux_pl.functional import derive_seed
from fedaux_pl.functional.seeds import isolated_rng

AugmentationOption = str | dict[str, dict[str, Any]] | None
"""A name, or a mapping of names to their options, applied in turn."""

_TRIALS = 8  # with other seeds: a transform may do nothing by chance


def flip(images: Tensor, numbers: Tensor) -> Tensor:
    """Mirror each image (N, C, H, W) by a random integer, shape (N, 1), if it is odd."""
    return torch.where((numbers % 2 == 1)[:, :, None, None], images.flip(-1), images)


def crop(images: Tensor, numbers: Tensor, padding: int | None = None) -> Tensor:
    """Pad each image (N, C, H, W) with zeros and cut out its former size.

    Random integers (N, 2) determine where. Padding on each side is by default an eighth of the
    shorter side, at least 1 pixel.
    """
    count, channels, height, width = images.shape
    if padding is None:
        padding = max(1, min(height, width) // 8)
    top, left = (numbers[:, :, None] % (2 * padding + 1)).unbind(dim=1)
    sample, channel, row, column = (
        torch.arange(size, device=images.device) for size in (count, channels, height, width)
    )
    rows = row + top
    columns = column + left
    padded = F.pad(images, (padding,) * 4)
    return padded[
        sample[:, None, None, None],
        channel[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def crop_flip(images: Tensor, numbers: Tensor, padding: int | None = None) -> Tensor:
    """Crop each image, and mirror it by the first of its three random integers, shape (N, 3)."""
    return flip(crop(images, numbers[:, 1:], padding), numbers[:, :1])


# with their numbers for each image
_FUNCTIONS = {"flip": (flip, 1), "crop": (crop, 2), "crop_flip": (crop_flip, 3)}
_NAMES = ", ".join(_FUNCTIONS)
_TRANSFORMS = "torchvision.transforms.v2."


@dataclass(frozen=True)
class Augmentation:
    """Random changes of images, one after another.

    ``flip``, ``crop`` and ``crop_flip`` change each image in its own way, by given numbers. Most
    transforms of torchvision treat all images of a batch alike. They draw from PyTorch's
    generators, which are seeded for each batch.
    """

    steps: tuple[tuple[Callable[..., Tensor], int], ...]  # and the numbers for each image, or 0

    @classmethod
    def create(cls, option: AugmentationOption) -> "Augmentation | None":
        """Create the augmentation of an option; None for none."""
        if not option:
            return None
        steps = _options_by_name(option).items()
        return cls(tuple(_create_step(name, options or {}) for name, options in steps))

    @property
    def numbers(self) -> int:
        """How many random numbers each image needs."""
        return sum(count for _, count in self.steps)

    @torch.no_grad()
    def __call__(self, images: Tensor, numbers: Tensor, seed: int = 0) -> Tensor:
        """Return changed images; ``numbers`` are (N, ``numbers``), the seed is for transforms."""
        for position, (function, count) in enumerate(self.steps):
            if count:
                images = function(images, numbers[:, :count])
                numbers = numbers[:, count:]
            else:
                with isolated_rng(derive_seed(seed, position)):
                    images = function.to(images.device)(images)  # type: ignore[attr-defined]
        return images

    def check(self, images: Tensor, option: str) -> None:
        """Try the augmentation on images: it must keep their shape and dtype."""
        if images.ndim != 4:
            raise ConfigurationError(f"{option} is for images, but the data are texts: drop it")
        expected = f"{images.dtype} {tuple(images.shape)}"
        for seed in range(_TRIALS):
            generator = torch.Generator().manual_seed(seed)
            numbers = torch.randint(2**31, (len(images), self.numbers), generator=generator)
            numbers = numbers.to(images.device)
            try:
                changed = self(images.clone(), numbers, seed)
                got = f"{changed.dtype} {tuple(changed.shape)}"
            except Exception as error:  # of any class: it is another package's transform
                raise ConfigurationError(
                    f"{option} failed on a batch of images, a tensor on {images.device} "
                    f"({type(error).__name__}: {first_line(error)}): choose a transform of batches "
                    "of tensors without labels"
                ) from error
            if got != expected:
                raise ConfigurationError(
                    f"{option} turns images {expected} into {got}: leave out changes of size, "
                    "conversions and normalization, which the model does"
                )


def check_option(option: AugmentationOption) -> None:
    """Raise a ValueError for an option of a wrong type; nothing is imported."""
    is_allowed = isinstance(option, str | None)
    if isinstance(option, Mapping):
        is_allowed = all(isinstance(values, Mapping | None) for values in option.values())
    expected = (
        f"be {_NAMES}, a class of torchvision.transforms.v2, or a mapping such as "
        "{torchvision.transforms.v2.RandomErasing: {p: 0.5}}"
    )
    check_setting("augmentation", option, is_allowed, expected)


def _options_by_name(option: AugmentationOption) -> dict[str, dict[str, Any]]:
    return {option: {}} if isinstance(option, str) else option or {}


def _create_step(name: str, options: Mapping[str, Any]) -> tuple[Callable[..., Tensor], int]:
    if name in _FUNCTIONS:
        function, count = _FUNCTIONS[name]
        return partial(function, **options), count
    kind: Any = getattr(v2, name.removeprefix(_TRANSFORMS), None)
    is_transform = isinstance(kind, type) and issubclass(kind, v2.Transform)
    if not name.startswith(_TRANSFORMS) or not is_transform:
        known = [*_FUNCTIONS, *(_TRANSFORMS + other for other in vars(v2))]
        raise ConfigurationError(
            f"augmentation: got {name}{did_you_mean(name, known)}; expected {_NAMES} or a "
            f"class of torchvision.transforms.v2, such as {_TRANSFORMS}RandAugment"
        )
    try:
        return kind(**options), 0
    except Exception as error:  # of any class: the code of another package runs
        raise ConfigurationError(
            f"augmentation {name} cannot be created with {dict(options)} ({first_line(error)}): "
            "correct its options"
        ) from error
