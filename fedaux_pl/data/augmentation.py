"""Augmentation: random changes of training images, on the device, in batches.

All random numbers follow from the seed of the batches, the epoch and the position in it, so that
they do not depend on the device, on the number of processes or on where a client trains.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaux_pl.class_paths import import_class
from fedaux_pl.errors import ConfigurationError, check_setting, did_you_mean, first_line
from fedaux_pl.functional import derive_seed
from fedaux_pl.functional.seeds import isolated_rng

AugmentationOption = str | dict[str, dict[str, Any]] | None
"""A short name or a class path, or a mapping of such names to their options, applied in turn."""

_TRIALS = 8  # with other seeds: a transform may do nothing by chance


def flip(images: Tensor, numbers: Tensor) -> Tensor:
    """Mirror each image (N, C, H, W) by a random integer, shape (N, 1), if it is odd."""
    return torch.where((numbers % 2 == 1)[:, :, None, None], images.flip(-1), images)


def crop_flip(images: Tensor, numbers: Tensor, padding: int | None = None) -> Tensor:
    """Pad each image (N, C, H, W) with zeros, cut out its former size, and mirror every second.

    Random integers (N, 3) determine where. Padding on each side is by default an eighth of the
    shorter side, at least 1 pixel.
    """
    count, channels, height, width = images.shape
    if padding is None:
        padding = max(1, min(height, width) // 8)
    mirrored = numbers[:, :1] % 2
    top, left = (numbers[:, 1:, None] % (2 * padding + 1)).unbind(dim=1)
    sample, channel, row, column = (
        torch.arange(size, device=images.device) for size in (count, channels, height, width)
    )
    rows = row + top
    columns = (column - (width - 1) * mirrored).abs() + left  # w - 1 - x where mirrored
    padded = F.pad(images, (padding,) * 4)
    return padded[
        sample[:, None, None, None],
        channel[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


_FUNCTIONS = {"flip": (flip, 1), "crop_flip": (crop_flip, 3)}  # with their numbers for each image
_MODULES = {"randaugment": "torchvision.transforms.v2.RandAugment"}
_NAMES = ", ".join((*_FUNCTIONS, *_MODULES))


@dataclass(frozen=True)
class Augmentation:
    """Random changes of images, one after another.

    ``flip`` and ``crop_flip`` change each image in its own way, by given numbers. A module changes
    a batch as it does: most of torchvision's treat all images of a batch alike. It draws from
    PyTorch's generators, which are seeded for each batch.
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
        """Return changed images; ``numbers`` are (N, ``numbers``), the seed is that of modules."""
        for position, (function, count) in enumerate(self.steps):
            if count:
                images = function(images, numbers[:, :count])
                numbers = numbers[:, count:]
            else:
                with isolated_rng(derive_seed(seed, position)):
                    images = function.to(images.device)(images)  # type: ignore[attr-defined]
        return images

    def check(self, images: Tensor, option: str) -> None:
        """Try the augmentation on images: it must keep shape and dtype, and follow the seed."""
        if images.ndim != 4:
            raise ConfigurationError(f"{option} is for images, but the data are texts: drop it")
        expected = f"{images.dtype} {tuple(images.shape)}"
        host = _host_generators()
        for seed in range(_TRIALS):
            generator = torch.Generator().manual_seed(seed)
            numbers = torch.randint(2**31, (len(images), self.numbers), generator=generator)
            numbers = numbers.to(images.device)
            try:
                first = self(images.clone(), numbers, seed)
                second = self(images.clone(), numbers, seed)
                got = f"{first.dtype} {tuple(first.shape)}"
            except Exception as error:  # of any class: it is another package's transform
                raise ConfigurationError(
                    f"{option} failed on a batch of images, a tensor on {images.device} "
                    f"({type(error).__name__}: {first_line(error)}): choose a transform of batches "
                    "of tensors without labels, of torchvision.transforms.v2 or your own"
                ) from error
            if got != expected:
                raise ConfigurationError(
                    f"{option} turns images {expected} into {got}: leave out changes of size, "
                    "conversions and normalization, which the model does"
                )
            if host != _host_generators() or not torch.equal(first, second):
                raise ConfigurationError(
                    f"{option} draws random numbers that a seed of PyTorch does not determine, so "
                    "that no run could be repeated: use torch.rand, not random or numpy"
                )


def check_option(option: AugmentationOption) -> None:
    """Raise a ValueError for an option of a wrong type; nothing is imported."""
    is_allowed = isinstance(option, str | None)
    if isinstance(option, Mapping):
        is_allowed = all(isinstance(values, Mapping | None) for values in option.values())
    expected = (
        f"be {_NAMES}, a class path, or a mapping such as "
        "{torchvision.transforms.v2.RandomErasing: {p: 0.5}}"
    )
    check_setting("augmentation", option, is_allowed, expected)


def class_paths(option: AugmentationOption) -> list[str]:
    """Return the class paths of an option, but not those of torchvision."""
    names = _options_by_name(option)
    return [name for name in names if "." in name and not name.startswith("torchvision.")]


def _options_by_name(option: AugmentationOption) -> dict[str, dict[str, Any]]:
    return {option: {}} if isinstance(option, str) else option or {}


def _create_step(name: str, options: Mapping[str, Any]) -> tuple[Callable[..., Tensor], int]:
    if name in _FUNCTIONS:
        function, count = _FUNCTIONS[name]
        return partial(function, **options), count
    try:
        kind = import_class(_MODULES.get(name, name), nn.Module)
    except ImportError as error:
        meant = did_you_mean(name, (*_FUNCTIONS, *_MODULES))
        raise ConfigurationError(
            f"augmentation {name} is no torch.nn.Module{meant}: choose "
            f"{_NAMES}, a class of torchvision.transforms.v2 or your own "
            f"({error})"
        ) from error
    try:
        return kind(**options), 0
    except Exception as error:  # of any class: the code of another package runs
        raise ConfigurationError(
            f"augmentation {name} cannot be created with {dict(options)} ({first_line(error)}): "
            "correct its options"
        ) from error


def _host_generators() -> tuple[Any, ...]:
    """The states of the generators that a seed of PyTorch does not reach."""
    state: Any = np.random.get_state()  # noqa: NPY002 - that one of others is meant
    return random.getstate(), state[1].tobytes(), state[2]
