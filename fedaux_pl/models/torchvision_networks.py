"""Any classifier of torchvision by name, such as ``torchvision/resnet18``."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torchvision
from torch import nn
from torchvision.models import ResNet

from fedaux_pl.errors import ConfigurationError, did_you_mean, first_line
from fedaux_pl.models.adapted_network import (
    AdaptedNetwork,
    Constants,
    check_common_options,
    constants_for,
    replace_channels,
    take_head,
)
from fedaux_pl.models.arguments import check_int

SMALL = 64
"""Images with fewer pixels on a side get ResNet's stem for small images."""


@cache
def torchvision_names() -> tuple[str, ...]:
    """The names of torchvision's classifiers, without the prefix."""
    return tuple(torchvision.models.list_models(module=torchvision.models))


@dataclass(frozen=True)
class TorchvisionFactory:
    """Creates a classifier of torchvision as f = g o h.

    The last linear layer becomes ``head``, all others are ``features``. Auxiliary outputs (of
    GoogLeNet and Inception) are left out. ResNets (ResNeXt and Wide ResNet are some) read images
    of less than 64 pixels by a 3x3 convolution with stride 1 and without max-pooling, as is usual
    for CIFAR. A Vision Transformer is created for the size of the images.

    Args:
        name: A name of :func:`torchvision_names`.

    Raises:
        ValueError: If torchvision has no such classifier.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name not in torchvision_names():
            raise ValueError(
                f"torchvision has no classifier {self.name!r}"
                f"{did_you_mean(self.name, torchvision_names())}; pass torchvision/ and one of "
                f"{', '.join(torchvision_names())}."
            )

    def __call__(
        self,
        num_classes: int,
        *,
        in_channels: int = 3,
        image_size: int | Sequence[int] | None = None,
        small_images: bool | None = None,
        weights: str | None = None,
        pretrained: bool = True,
        mean: Constants | None = None,
        std: Constants | None = None,
    ) -> AdaptedNetwork:
        """Create the network, with random weights unless ``weights`` are named.

        Args:
            num_classes: Number of outputs, at least 1.
            in_channels: Number of channels of the images. With another number than 3, the first
                convolution uses its filters of red, green and blue in turn.
            image_size: The height and width of the images; None if not known.
            small_images: Whether a ResNet gets the stem for small images; None if and only if the
                images are known to have less than 64 pixels on a side.
            weights: The name of torchvision's weights, such as ``DEFAULT`` or ``IMAGENET1K_V1``,
                which are downloaded; None for random weights.
            pretrained: Whether to load them. A federation passes what its method says: True for
                methods that start from pre-trained models.
            mean: See :class:`InputNormalization`; by default that of the weights, if there are any.
            std: See :class:`InputNormalization`; by default that of the weights, if there are any.
        """
        self.check_options(
            in_channels=in_channels,
            image_size=image_size,
            small_images=small_images,
            weights=weights,
            mean=mean,
            std=std,
        )
        size = _height_and_width(image_size)
        chosen = self._weights(weights)
        network = self._build(num_classes, size, chosen if pretrained else None)
        _remove_auxiliary_outputs(network)
        dim = take_head(network, self.full_name).in_features
        loaded = chosen is not None and pretrained
        replace_channels(network, in_channels, keep_response=loaded)
        if small_images is None:
            small_images = isinstance(network, ResNet) and size is not None and min(size) < SMALL
        if small_images:
            self._shrink_stem(network, keep=loaded)
        defaults = _constants(network, chosen, in_channels)
        return AdaptedNetwork(
            num_classes,
            network,
            dim,
            name=self.full_name,
            in_channels=in_channels,
            mean=defaults[0] if mean is None else mean,
            std=defaults[1] if std is None else std,
            needs=self._needs(),
        )

    @property
    def full_name(self) -> str:
        """The name with its prefix."""
        return f"torchvision/{self.name}"

    def check_options(self, **options: Any) -> None:
        """Raise the errors of a call for wrong options, without building or loading anything."""
        check_common_options(options, switches=("small_images", "pretrained"))
        _height_and_width(options.get("image_size"))
        self._weights(options.get("weights"))

    def _weights(self, name: str | None) -> Any:
        """The entry of torchvision's enumeration; None for no weights."""
        if name is None:
            return None
        known: Any = torchvision.models.get_model_weights(self.name).__members__
        if str(name).upper() not in known:
            raise ValueError(
                f"{self.full_name} has no weights {name!r}{did_you_mean(str(name), known)}; pass "
                f"one of {', '.join(known)}, or leave it out for random weights."
            )
        return known[str(name).upper()]

    def _build(self, num_classes: int, size: tuple[int, int] | None, weights: Any) -> nn.Module:
        options: dict[str, Any] = {"weights": weights, "progress": False}
        if weights is None:  # with weights, their number of classes: the head is replaced anyway
            options["num_classes"] = check_int("num_classes", num_classes)
            if self.name in ("googlenet", "inception_v3"):
                options["init_weights"] = True  # the default, with a warning
        if size is not None and self.name.startswith("vit_"):
            if size[0] != size[1]:
                raise ValueError(f"{self.full_name} reads square images only, not of size {size}.")
            options["image_size"] = size[0]
        if size is not None and self.name.startswith("maxvit"):
            options["input_size"] = size
        try:
            network: nn.Module = torchvision.models.get_model(self.name, **options)
        except OSError as error:  # URLError is one
            raise ConfigurationError(
                f"the weights {weights} of {self.full_name} cannot be downloaded ({error}): leave "
                "out model_options.weights, or put the file "
                f"{weights.url.rpartition('/')[2]} into {torch.hub.get_dir()}/checkpoints"
            ) from error
        except (ValueError, AssertionError, RuntimeError) as error:
            raise ValueError(
                f"{self.full_name} cannot be created for images of size {size} "
                f"({first_line(error)}){self._needs()}; change `size` of the data source, or "
                "choose another model."
            ) from error
        return network

    def _needs(self) -> str:
        if self.name.startswith("vit_"):
            return ": their size must be a multiple of the size of its patches"
        height, width = torchvision.models.get_model_weights(self.name).DEFAULT.meta["min_size"]
        return f": it is made for at least {height}x{width} pixels" if height > 1 else ""

    def _shrink_stem(self, network: nn.Module, *, keep: bool) -> None:
        if not isinstance(network, ResNet):
            raise ValueError(
                f"small_images is for ResNets, and {self.full_name} is none; leave it out."
            )
        old = network.conv1
        new = nn.Conv2d(old.in_channels, old.out_channels, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
        if keep:
            new.weight.data.copy_(old.weight[:, :, 2:5, 2:5])  # the center of a 7x7 filter
        network.conv1, network.maxpool = new, nn.Identity()


def _height_and_width(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    values = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(values) != 2:
        raise ValueError(f"image_size={size!r} must be one number or (height, width).")
    return check_int("image_size", values[0]), check_int("image_size", values[1])


def _remove_auxiliary_outputs(network: Any) -> None:
    for name in ("AuxLogits", "aux1", "aux2"):
        if getattr(network, name, None) is not None:
            setattr(network, name, None)
            network.aux_logits = False
    if hasattr(network, "transform_input"):
        network.transform_input = False  # see _constants


def _constants(network: Any, weights: Any, in_channels: int) -> tuple[Any, Any]:
    """The mean and standard deviation that weights were trained with; None without weights."""
    if weights is None:
        return None, None
    if hasattr(network, "transform_input"):  # trained with images in [-1, 1]
        return 0.5, 0.5
    transform = weights.transforms()
    mean, std = list(transform.mean), list(transform.std)
    return constants_for(mean, in_channels), constants_for(std, in_channels)
