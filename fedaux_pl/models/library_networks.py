"""Classifiers of torchvision and timm by name, such as ``torchvision/resnet18``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torchvision
from torch import nn

from fedaux_pl.errors import ConfigurationError, did_you_mean, first_line
from fedaux_pl.models.adapted_network import AdaptedNetwork
from fedaux_pl.models.classifier import check_int
from fedaux_pl.models.image_classifier import Constants, InputNormalization

SMALL = 64
"""Images with fewer pixels on a side get ResNet's stem for small images."""


@cache
def torchvision_names() -> tuple[str, ...]:
    """Return the names of torchvision's classifiers, without the prefix."""
    return tuple(torchvision.models.list_models(module=torchvision.models))


@dataclass(frozen=True)
class LibraryFactory:
    """Create a classifier of torchvision or timm as f = g o h.

    The last linear layer becomes ``head``. Auxiliary outputs (of GoogLeNet and Inception) are left
    out. torchvision's ResNets (ResNeXt and Wide ResNet are some) read images of less than 64 pixels
    by a 3x3 convolution with stride 1 and without max-pooling, as is usual for CIFAR. A Vision
    Transformer is created for the size of the images.

    Args:
        library: ``torchvision`` or ``timm``.
        name: A name of the library; timm's may have the tag of weights, as ``resnet10t.c3_in1k``.

    Raises:
        ValueError: If the library is not installed, or has no such classifier.
    """

    library: str
    name: str

    def __post_init__(self) -> None:
        if self.library == "timm" and find_spec("timm") is None:
            raise ValueError(
                f"model {self.full_name!r} needs timm, which is not installed; run `pip install "
                "timm`, or choose a model of torchvision, such as torchvision/resnet18."
            )
        known: Sequence[str] = torchvision_names()
        if self.library == "timm":
            known = () if _timm().is_model(self.name) else _timm().list_models()
        if known and self.name not in known:
            raise ValueError(
                f"{self.library} has no classifier {self.name!r}{did_you_mean(self.name, known)}; "
                f"{self.library}'s list_models() lists them."
            )

    def __call__(
        self,
        num_classes: int,
        *,
        in_channels: int = 3,
        image_size: int | Sequence[int] | None = None,
        small_images: bool | None = None,
        weights: str | bool | None = None,
        pretrained: bool = True,
        mean: Constants | None = None,
        std: Constants | None = None,
    ) -> AdaptedNetwork:
        """Create the network, with random weights unless ``weights`` are asked for.

        Args:
            num_classes: Number of outputs, at least 1.
            in_channels: Number of channels of the images. With another number than 3, the first
                convolution uses its filters of red, green and blue in turn.
            image_size: The height and width of the images; None if not known.
            small_images: Whether a ResNet gets the stem for small images; None if and only if the
                images are known to have less than 64 pixels on a side.
            weights: The name of torchvision's weights, such as ``DEFAULT`` or ``IMAGENET1K_V1``;
                true for those of timm. They are downloaded.
            pretrained: Whether to load them. A federation passes what its method says: True for
                methods that start from pre-trained models.
            mean: See ``InputNormalization``; by default that of the weights, if there are any.
            std: See ``InputNormalization``; by default that of the weights, if there are any.
        """
        size = _height_and_width(image_size)
        wanted = _Request(num_classes, in_channels, size, weights, bool(weights) and pretrained)
        create = self._create_timm if self.library == "timm" else self._create_torchvision
        network, dim, constants = create(wanted)
        if small_images is None:
            is_small = size is not None and min(size) < SMALL
            small_images = isinstance(network, torchvision.models.ResNet) and is_small
        if small_images:
            self._shrink_stem(network, keep=wanted.loads)
        constants |= {k: v for k, v in (("mean", mean), ("std", std)) if v is not None}
        return AdaptedNetwork(
            num_classes, network, dim, name=self.full_name, in_channels=in_channels, **constants
        )

    @property
    def full_name(self) -> str:
        """The name with its prefix."""
        return f"{self.library}/{self.name}"

    def check_options(self, **options: Any) -> None:
        """Raise an error for wrong options, without building or loading anything."""
        switches = ["small_images", "pretrained", *(["weights"] if self.library == "timm" else [])]
        for name in switches:
            if not isinstance(value := options.get(name), bool | None):
                raise TypeError(f"{name}={value!r} is a {type(value).__name__}; pass true or false")
        given = {k: options[k] for k in ("mean", "std") if options.get(k) is not None}
        InputNormalization(options.get("in_channels", 3), **given)
        _height_and_width(options.get("image_size"))
        if self.library == "torchvision":
            self._find_weights(options.get("weights"))

    def _find_weights(self, name: str | bool | None) -> Any:
        """Return the entry of torchvision's enumeration; None for no weights."""
        if name is None:
            return None
        known: Any = torchvision.models.get_model_weights(self.name).__members__
        if str(name).upper() not in known:
            raise ValueError(
                f"{self.full_name} has no weights {name!r}{did_you_mean(str(name), known)}; pass "
                f"one of {', '.join(known)}, or leave it out for random weights."
            )
        return known[str(name).upper()]

    def _create_torchvision(self, wanted: "_Request") -> tuple[nn.Module, int, dict[str, Any]]:
        """Return the network without its head, the number of features, the weights' constants."""
        chosen = self._find_weights(wanted.weights)
        options: dict[str, Any] = {"weights": chosen if wanted.loads else None, "progress": False}
        if not wanted.loads:  # weights have their number of classes
            options["num_classes"] = check_int("num_classes", wanted.num_classes)
            if self.name in ("googlenet", "inception_v3"):
                options["init_weights"] = True  # the default, with a warning
        if (size := wanted.size) is not None and self.name.startswith("vit_"):
            if size[0] != size[1]:
                raise ValueError(f"{self.full_name} reads square images only, not of size {size}.")
            options["image_size"] = size[0]
        if size is not None and self.name.startswith("maxvit"):
            options["input_size"] = size
        network = self._call(torchvision.models.get_model, options, size)
        for name in ("AuxLogits", "aux1", "aux2"):
            if getattr(network, name, None) is not None:
                setattr(network, name, None)
                network.aux_logits = False
        _replace_channels(network, wanted.in_channels, keep_response=wanted.loads)
        constants = {} if chosen is None else _constants(chosen.transforms(), wanted.in_channels)
        if hasattr(network, "transform_input"):
            network.transform_input = False
            constants = dict.fromkeys(constants, 0.5)  # trained with images in [-1, 1]
        return network, _take_head(network, self.full_name).in_features, constants

    def _create_timm(self, wanted: "_Request") -> tuple[nn.Module, int, dict[str, Any]]:
        config = _timm().get_pretrained_cfg(self.name)
        options: dict[str, Any] = {"num_classes": 0, "in_chans": wanted.in_channels}
        if wanted.size is not None and config.fixed_input_size:
            options["img_size"] = wanted.size
        options["pretrained"] = wanted.loads
        network = self._call(_timm().create_model, options, wanted.size)
        constants = _constants(config, wanted.in_channels) if wanted.weights else {}
        return network, int(network.head_hidden_size), constants

    def _call(
        self, create: Callable[..., Any], options: dict[str, Any], size: tuple[int, int] | None
    ) -> Any:
        """Let the library create the network; its errors name the remedy."""
        try:
            return create(self.name, **options)
        except OSError as error:  # URLError is one
            raise ConfigurationError(
                f"the weights of {self.full_name} cannot be downloaded ({first_line(error)}): "
                "leave out model_options.weights, or put their file into the library's cache "
                f"({torch.hub.get_dir()}/checkpoints for torchvision)"
            ) from error
        except (AssertionError, RuntimeError, TypeError) as error:
            raise ValueError(
                f"{self.full_name} cannot be created for images of size {size} "
                f"({first_line(error)}); change `size` of the data source, or choose another model."
            ) from error

    def _shrink_stem(self, network: nn.Module, *, keep: bool) -> None:
        if not isinstance(network, torchvision.models.ResNet):
            raise ValueError(
                f"small_images is for ResNets of torchvision, and {self.full_name} is none; leave "
                "it out."
            )
        old = network.conv1
        new = nn.Conv2d(old.in_channels, old.out_channels, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
        if keep:
            new.weight.data.copy_(old.weight[:, :, 2:5, 2:5])  # the center of a 7x7 filter
        network.conv1, network.maxpool = new, nn.Identity()


@dataclass(frozen=True)
class _Request:
    """What a library is asked to create; ``loads`` is whether the weights are loaded."""

    num_classes: int
    in_channels: int
    size: tuple[int, int] | None
    weights: str | bool | None
    loads: bool


def _timm() -> Any:
    import timm

    return timm


def _height_and_width(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    values = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(values) != 2:
        raise ValueError(f"image_size={size!r} must be one number or (height, width).")
    return check_int("image_size", values[0]), check_int("image_size", values[1])


def _constants(weights: Any, in_channels: int) -> dict[str, Any]:
    """Return mean and std of the weights' images; for other than RGB images the mean of each."""
    values = {"mean": list(weights.mean), "std": list(weights.std)}
    return {k: v if len(v) == in_channels else sum(v) / len(v) for k, v in values.items()}


def _replace_channels(network: nn.Module, in_channels: int, *, keep_response: bool) -> None:
    """Give the first convolution another number of input channels, with its filters in turn.

    For weights that were trained, ``keep_response`` scales the filters so that a gray image has the
    same response.
    """
    name, old = next((n, m) for n, m in network.named_modules() if isinstance(m, nn.Conv2d))
    if old.in_channels == in_channels:
        return
    shape: dict[str, Any] = {k: getattr(old, k) for k in ("kernel_size", "stride", "padding")}
    new = nn.Conv2d(in_channels, old.out_channels, **shape, bias=old.bias is not None)
    with torch.no_grad():
        scale = old.in_channels / in_channels if keep_response else 1.0
        new.weight.copy_(scale * old.weight[:, torch.arange(in_channels) % old.in_channels])
        if old.bias is not None and new.bias is not None:
            new.bias.copy_(old.bias)
    network.set_submodule(name, new)


def _take_head(network: nn.Module, name: str) -> nn.Linear:
    """Replace the last layer of a network, which must be linear, by the identity; return it."""
    layers = [(n, m) for n, m in network.named_modules() if any(True for _ in m.parameters(False))]
    where, last = layers[-1]
    if not isinstance(last, nn.Linear):
        raise ValueError(
            f"{name} has no linear head: its last layer is {type(last).__name__}; choose a model "
            "that ends with nn.Linear, such as torchvision/resnet18."
        )
    network.set_submodule(where, nn.Identity())
    return last
