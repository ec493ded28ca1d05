"""The common interface of all architectures for images: f = g o h on pooled features."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedaux_pl.models.checks import check_positive_int, check_real
from fedaux_pl.models.classifier import Classifier
from fedaux_pl.models.fused import compute_dtype, fusable, reads_planes, weights_cast
from fedaux_pl.models.stem import ALIGNMENT, standardize

DEFAULT_MEAN = 0.5
DEFAULT_STD = 0.25


class InputNormalization(nn.Module):
    """Turn images into standardised floats, (x - mean) / std.

    Images are uint8 in 0..255, which are divided by 255 first, or floats, which are taken to be in
    [0, 1] already. The result has the dtype of the module (float32 unless it was converted); under
    autocast on CUDA devices it may have autocast's, which convolutions would turn it into.

    The defaults are fixed constants on purpose: the mean and standard deviation of the clients'
    images would be a release of private data of their own, and one that no privacy accounting
    here covers. Pass the statistics of public data instead, or ``mean=0, std=1`` if the floats
    are already normalised.

    The constants are buffers outside the state dict, so that they are neither sent nor averaged.

    Args:
        in_channels: Number of channels of the images.
        mean: What is subtracted, one number or one for each channel.
        std: What is divided by, one number or one for each channel, greater than zero.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        in_channels: int = 3,
        mean: float | Sequence[float] = DEFAULT_MEAN,
        std: float | Sequence[float] = DEFAULT_STD,
    ) -> None:
        super().__init__()
        self.in_channels = check_positive_int("in_channels", in_channels)
        for name, value, positive in (("mean", mean, False), ("std", std, True)):
            constants = _channel_constants(name, value, in_channels, positive=positive)
            self.register_buffer(name, constants, persistent=False)

    def forward(self, x: Tensor, *, planar: bool = False) -> Tensor:
        """Standardise a batch of images of shape (N, in_channels, H, W).

        Args:
            x: The images.
            planar: Whether what follows is fastest with each channel on its own in memory. It
                changes the layout of the result, at most.
        """
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
        if self._in_one_pass(x):
            return standardize(x, self.mean, self.std, compute_dtype(x), planar=planar)
        scale = 255 if x.dtype == torch.uint8 else 1
        return (x.to(self.mean.dtype) / scale - self.mean) / self.std

    def _in_one_pass(self, x: Tensor) -> bool:
        """Whether there is a kernel for what would be half a dozen of them."""
        return (
            fusable(x)
            and compute_dtype(x) in (torch.bfloat16, torch.float16)
            and torch.is_autocast_enabled(x.device.type)
            and self.mean.dtype == self.std.dtype == torch.float32
            and self.in_channels <= ALIGNMENT
            and x.numel() > 0
            and not x.requires_grad
        )

    def extra_repr(self) -> str:
        """Show the constants where the model is printed."""
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


class FeatureClassifier(Classifier):
    """A linear head g on the features h(x) of a convolutional network.

    A subclass builds its layers after calling this constructor and implements
    :meth:`feature_map`. With BatchNorm, training needs more than one image in a batch where the
    last feature map is 1x1, as it is for 8x8 images; ``norm="group"`` has no such need.

    Args:
        num_classes: Number of outputs, at least 1.
        feature_dim: Number of channels of the last feature map.
        in_channels: Number of channels of the images, 1 or 3 as a rule.
        mean: See :class:`InputNormalization`.
        std: See :class:`InputNormalization`.

    Attributes:
        feature_dim: Length of the feature vector of an image.
        head: The linear layer from the features to the outputs.
    """

    inputs: ClassVar[Literal["images", "tokens"]] = "images"

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        *,
        in_channels: int = 3,
        mean: float | Sequence[float] = DEFAULT_MEAN,
        std: float | Sequence[float] = DEFAULT_STD,
    ) -> None:
        super().__init__(num_classes, feature_dim)
        self.normalize = InputNormalization(in_channels, mean, std)

    @abstractmethod
    def feature_map(self, x: Tensor) -> Tensor:
        """Map standardised images to feature maps of shape (N, feature_dim, H', W')."""

    def features(self, x: Tensor) -> Tensor:
        """Map images (see :class:`InputNormalization`) to features of shape (N, feature_dim)."""
        with weights_cast(self, x):
            planar = type(self.normalize) is InputNormalization and reads_planes(self, x)
            images = self.normalize(x, planar=True) if planar else self.normalize(x)
            maps = self.feature_map(images)
        return torch.flatten(nn.functional.adaptive_avg_pool2d(maps, 1), 1)


def load_backbone(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load the weights of h, such as a pre-trained h_0, and leave the head g as it is.

    Args:
        model: A network f = g o h whose head is called ``head``.
        state: The state dict of h; entries of a head are passed over.

    Raises:
        ValueError: If the state is not that of this model's h.
    """
    own = {key: value for key, value in model.state_dict().items() if not of_head(key)}
    given = {key: value for key, value in state.items() if not of_head(key)}
    differing = sorted(
        key
        for key in own.keys() | given.keys()
        if key not in own or key not in given or own[key].shape != given[key].shape
    )
    if differing:
        raise ValueError(
            f"these weights are not of this architecture: {len(differing)} entries are missing, "
            f"unexpected or of another shape, the first being '{differing[0]}'; create the model "
            "with the name and options that the weights were trained with."
        )
    model.load_state_dict(given, strict=False)


def of_head(key: str) -> bool:
    """Whether an entry of a model's state dict belongs to its head g, not to h."""
    return key.startswith("head.")


def parameter_bytes(model: nn.Module) -> int:
    """Bytes that the parameters of a model take, without its buffers."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _channel_constants(
    name: str, value: float | Sequence[float], in_channels: int, *, positive: bool
) -> Tensor:
    """Return ``value`` as a tensor that broadcasts over (N, in_channels, H, W)."""
    values = list(value) if isinstance(value, Sequence) else [value]
    numbers = [check_real(name, v, positive=positive) for v in values]
    if isinstance(value, Sequence) and len(numbers) != in_channels:
        raise ValueError(
            f"{name}={value!r} has {len(numbers)} values for in_channels={in_channels}; "
            f"pass one number or {in_channels} of them."
        )
    return torch.tensor(numbers).view(1, -1, 1, 1)
