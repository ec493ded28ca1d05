"""The base class of all architectures for images, and the normalization of their inputs."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedaux_pl.models.classifier import Classifier, check_int, check_real

Constants = float | Sequence[float]
DEFAULT_MEAN = 0.5
DEFAULT_STD = 0.25
_ROUNDING = 1e-3  # how far a resized image may leave [0, 1]


class InputNormalization(nn.Module):
    """Convert images to standardized floats, (x - mean) / std.

    Images are uint8 in 0..255, which are divided by 255 first, or floats in [0, 1]. The result has
    the dtype of the module. The constants are neither sent nor averaged, and the defaults do not
    depend on data: statistics of the clients' images would be an unaccounted release. Pass those of
    public data, or ``mean=0, std=1`` for floats that are normalized already.

    Args:
        in_channels: Number of channels of the images.
        mean: One number, or one per channel; None for the default.
        std: One number, or one per channel, greater than zero; None for the default.

    Examples:
        >>> normalize = InputNormalization(in_channels=1)
        >>> normalize(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)).flatten().tolist()
        [-2.0, 2.0]
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        in_channels: int = 3,
        mean: Constants | None = DEFAULT_MEAN,
        std: Constants | None = DEFAULT_STD,
    ) -> None:
        super().__init__()
        self.in_channels = check_int("in_channels", in_channels)
        for name, given, default in (("mean", mean, DEFAULT_MEAN), ("std", std, DEFAULT_STD)):
            value = default if given is None else given
            values = value if isinstance(value, Sequence) else [value]
            numbers = [check_real(name, number, positive=name == "std") for number in values]
            if values is value and len(values) != in_channels:
                raise ValueError(
                    f"{name}={value!r} has {len(values)} values for in_channels={in_channels}; "
                    f"pass one number or {in_channels} of them."
                )
            constants = torch.tensor(numbers).view(1, -1, 1, 1)
            self.register_buffer(name, constants, persistent=False)
        self.is_identity = bool((self.mean == 0).all() and (self.std == 1).all())

    def forward(self, x: Tensor) -> Tensor:
        """Standardize a batch of images of shape (N, in_channels, H, W)."""
        self.check_images(x)
        scale = 255 if x.dtype == torch.uint8 else 1
        return (x.to(self.mean.dtype) / scale - self.mean) / self.std

    def check_images(self, x: Tensor) -> None:
        """Raise an error unless inputs are images of shape (N, in_channels, H, W)."""
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise ValueError(
                f"expected images of shape (N, {self.in_channels}, H, W), got {tuple(x.shape)}; "
                "add a missing batch dimension with x.unsqueeze(0), put the channels second, or "
                "create the model with in_channels set to the number of channels of the images."
            )
        if x.dtype != torch.uint8 and not x.is_floating_point():
            raise TypeError(
                f"images have dtype {x.dtype}; pass torch.uint8 in 0..255 or floats in [0, 1]."
            )

    def extra_repr(self) -> str:
        """Return the constants, for ``repr``."""
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


class ImageClassifier(Classifier):
    """A classifier that standardizes its images, see ``InputNormalization``."""

    inputs: ClassVar[Literal["images", "tokens"]] = "images"

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        *,
        in_channels: int = 3,
        mean: Constants | None = None,
        std: Constants | None = None,
    ) -> None:
        super().__init__(num_classes, feature_dim)
        self.normalize = InputNormalization(in_channels, mean, std)

    def check_inputs(self, x: Tensor) -> None:
        """Raise a ValueError or TypeError for images that ``InputNormalization`` misreads."""
        self.normalize.check_images(x)
        hint = ", or create the model with mean=0, std=1 for images that are standardized already"
        check_pixels(x, unit_range=not self.normalize.is_identity, hint=hint)


class FeatureClassifier(ImageClassifier):
    """A linear head g on the features h(x) of a convolutional network.

    A subclass calls the constructor of ``ImageClassifier``, builds its layers and implements
    ``feature_map``, with ``feature_dim`` channels. With BatchNorm, training needs more than one
    image per batch where the last feature map is 1x1, as it is for 8x8 images; ``norm="group"``
    works with one image.

    Examples:
        A custom architecture, which ``@register("onelayer")`` would make available by name.

        >>> class OneLayer(FeatureClassifier):
        ...     def __init__(self, num_classes, width=16):
        ...         super().__init__(num_classes, feature_dim=width)
        ...         self.conv = nn.Conv2d(3, width, 3)
        ...
        ...     def feature_map(self, x):
        ...         return self.conv(x).relu()
        >>> model = OneLayer(num_classes=10)
        >>> x = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
        >>> model.features(x).shape, model(x).shape
        (torch.Size([4, 16]), torch.Size([4, 10]))
    """

    @abstractmethod
    def feature_map(self, x: Tensor) -> Tensor:
        """Map standardized images to feature maps of shape (N, feature_dim, H', W')."""

    def features(self, x: Tensor) -> Tensor:
        """Map images (see ``InputNormalization``) to features of shape (N, feature_dim)."""
        maps = self.feature_map(self.normalize(x))
        return torch.flatten(nn.functional.adaptive_avg_pool2d(maps, 1), 1)


def check_pixels(x: Tensor, *, unit_range: bool, hint: str = "") -> None:
    """Raise a ValueError for floating-point images with NaN or, in unit range, beyond [0, 1].

    ``hint`` is what else the caller could do, for the message.
    """
    if not x.is_floating_point() or not x.numel():
        return
    low, high = torch.stack(torch.aminmax(x)).tolist()
    if not math.isfinite(low + high):
        raise ValueError("the images hold NaN or infinity; remove or repair those that do.")
    if unit_range and (low < -_ROUNDING or high > 1 + _ROUNDING):
        raise ValueError(
            f"floating-point images: got {low:.4g} to {high:.4g}; expected [0, 1]: pass uint8 "
            f"images, or divide by 255{hint}"
        )
