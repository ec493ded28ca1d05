"""Any network for images as a classifier f = g o h: of torchvision, of timm, or by class path."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from fedaux_pl.class_paths import import_class
from fedaux_pl.errors import ConfigurationError, did_you_mean, first_line
from fedaux_pl.models.classifier import Classifier, check_int
from fedaux_pl.models.image_classifier import Constants, ImageClassifier, InputNormalization

_ADDED = ("in_channels", "mean", "std")  # options of ImageClassifier that an own class may lack
_NETWORK = "network."  # begins the state-dict entries of h
_SMALL = 64  # images with fewer pixels on a side get ResNet's stem for small images
_AUXILIARY_HEADS = ("AuxLogits", "aux1", "aux2")  # of Inception and GoogLeNet
_Size = tuple[int, int] | None


class AdaptedNetwork(ImageClassifier):
    """A linear head g on the outputs of any network for images.

    Args:
        network: Maps standardized images to features of shape (N, feature_dim), or to maps that
            have so many values. Its state-dict entries begin with ``network.``.
        name: What messages call it.
        head: The network's own head; its method ``features`` is then called in place of it.
        library_heads: The names of the heads that the network has in its library.
        **options: ``in_channels``, ``mean`` and ``std``, see ``InputNormalization``.
    """

    def __init__(
        self,
        num_classes: int,
        network: nn.Module,
        feature_dim: int,
        *,
        name: str,
        head: nn.Linear | None = None,
        library_heads: Sequence[str] = (),
        **options: Any,
    ) -> None:
        super().__init__(num_classes, feature_dim, **options)
        self._library_heads = tuple(f"{path}." for path in library_heads)
        self._has_given_constants = {"mean", "std"} <= options.keys()
        self.network = network
        self.name = name
        self._has_features = head is not None
        if head is not None:
            self.head = head
            network.head = nn.Identity()  # the entries of the head begin with "head."
        self._readable: set[tuple[int, ...]] = set()  # shapes of images that were tried

    def features(self, x: Tensor) -> Tensor:
        """Map images (see ``InputNormalization``) to features of shape (N, feature_dim)."""
        x = self.normalize(x)
        if self._has_features:
            # contiguous, for networks that call view(): a fast normalization returns a slice
            return torch.flatten(self.network.features(x.contiguous()), 1)  # type: ignore[operator]
        return torch.flatten(self.network(x), 1)

    def from_library(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights that have the library's names in the names of this model, in order.

        Names of the library's heads begin with ``head.`` then. Weights in other names stay as they
        are. The library's are made for images of its own mean and std: a ValueError tells that the
        model was created without.
        """
        known = self.state_dict().keys()
        has_library_names = any(_NETWORK + key in known for key in state)
        if not has_library_names or not self._library_heads:
            return dict(state)
        if not self._has_given_constants:
            choice = "true" if self.name.startswith("timm/") else "DEFAULT"
            raise ValueError(
                f"these weights have the names of {self.name}, which expects images of another "
                f"mean and std than {self.normalize.extra_repr()}; set model_options.weights to "
                f"{choice} for those of its library, or set both mean and std."
            )
        named = {}
        for key, weights in state.items():
            prefix = "head." if key.startswith(self._library_heads) else _NETWORK
            named[prefix + key] = weights
        return named

    def check_inputs(self, x: Tensor) -> None:
        """Raise an error for images that the network misreads; one of every new size is tried."""
        super().check_inputs(x)
        size = tuple(x.shape[2:])
        if not len(x) or size in self._readable:
            return
        modes = {module: module.training for module in self.modules()}
        device = next(self.parameters()).device  # a teacher has no head
        self.eval()
        try:
            with torch.no_grad():
                shape = tuple(self.features(x[:1].to(device)).shape)
            expected = (1, self.feature_dim)
            reason = "" if shape == expected else f"features have shape {shape}, not {expected}"
        except Exception as error:  # of any class: it is another package's network
            reason = first_line(error)
        finally:
            for module, mode in modes.items():
                module.training = mode
        if reason:
            raise ValueError(
                f"{self.name} cannot read images of {size[0]}x{size[1]} pixels ({reason}); enlarge "
                "them with `size` of the data source, or choose a model for small images, such as "
                "resnet8 or torchvision/resnet18, or correct features(x) of a network of your own."
            )
        self._readable.add(size)


def find_class(name: str) -> Callable[..., nn.Module]:
    """Import the class of a network by its class path; return it, or a function that adapts it."""
    try:
        kind: Any = import_class(name, nn.Module)
    except ImportError as error:
        raise ValueError(f"model {name!r}: {error}.") from error
    parameters = inspect.signature(kind).parameters
    if "num_classes" not in parameters:
        raise ValueError(
            f"model {name!r} takes no num_classes, only {', '.join(parameters) or 'nothing'}; give "
            "its constructor the number of outputs as num_classes."
        )
    if issubclass(kind, Classifier):
        return kind  # type: ignore[no-any-return]

    def adapt(num_classes: int, **options: Any) -> AdaptedNetwork:
        passed = {k: v for k, v in options.items() if k in parameters or k not in _ADDED}
        network: Any = kind(num_classes=num_classes, **passed)
        head = getattr(network, "head", None)
        dim: Any = getattr(network, "feature_dim", None) or getattr(head, "in_features", None)
        has = {
            "features": hasattr(network, "features"),
            "head": head is not None,
            "feature_dim (or a head with in_features)": head is None or dim is not None,
        }
        missing = [attribute for attribute in has if not has[attribute]]
        if missing:
            raise ValueError(
                f"{name} lacks {', '.join(missing)}; a model needs features(x) -> (N, d), a head "
                "and feature_dim = d (see docs/extending.md)."
            )
        outputs = getattr(head, "out_features", num_classes)
        if outputs != num_classes:
            raise ValueError(
                f"the head of {name} has {outputs} outputs, but there are {num_classes} classes; "
                "use num_classes in its constructor."
            )
        added = {option: options[option] for option in _ADDED if option in options}
        return AdaptedNetwork(num_classes, network, int(dim), name=name, head=head, **added)

    common = inspect.signature(ImageClassifier).parameters
    last = [p for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    first = [p.replace(kind=p.KEYWORD_ONLY) for p in parameters.values() if p not in last]
    first += [common[option] for option in _ADDED if option not in parameters]
    adapt.__signature__ = inspect.Signature([*first, *last])  # type: ignore[attr-defined]
    return adapt


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
    Transformer is created for the size of the images. Names of timm may have the tag of weights, as
    ``resnet10t.c3_in1k``.
    """

    library: str
    name: str

    def __post_init__(self) -> None:
        known: Sequence[str] = torchvision_names()
        if self.library == "timm":
            if find_spec("timm") is None:
                raise ValueError(
                    f"model {self.full_name!r} needs timm, which is not installed; run `pip "
                    "install timm`, or choose one of torchvision, such as torchvision/resnet18."
                )
            known = [self.name] if _timm().is_model(self.name) else _timm().list_models()
        if self.name not in known:
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
            in_channels: Number of channels of the images. Other than 3, the first convolution uses
                its filters of red, green and blue in turn.
            image_size: The height and width of the images; None if not known.
            small_images: Whether a ResNet gets the stem for small images; None if and only if the
                images are known to have less than 64 pixels on a side.
            weights: The name of torchvision's weights, such as ``DEFAULT`` or ``IMAGENET1K_V1``;
                true for those of timm. They are downloaded, unless ``pretraining.h0`` of a
                federation is a file with them.
            pretrained: Whether to load them: a federation passes what its method says.
            mean: See ``InputNormalization``; by default, as ``std``, that of the weights, if any.
            std: Likewise.
        """
        size = _height_and_width(image_size)
        chosen = self._find_weights(weights)
        loads = bool(weights) and pretrained
        if self.library == "timm":
            network, dim, heads = self._create_timm(in_channels, size, loads)
        else:
            trained = chosen if loads else None
            network, dim, heads = self._create_torchvision(num_classes, in_channels, size, trained)
        is_resnet = isinstance(network, torchvision.models.ResNet)
        if small_images is None:
            small_images = is_resnet and size is not None and min(size) < _SMALL
        if small_images:
            if not is_resnet:
                raise ValueError(
                    f"small_images is for ResNets of torchvision, and {self.full_name} is none; "
                    "leave it out."
                )
            _shrink_stem(network, keep=loads)
        constants = {} if chosen is None else _constants(chosen, in_channels)
        if hasattr(network, "transform_input"):  # GoogLeNet, Inception: trained in [-1, 1]
            constants = dict.fromkeys(constants, 0.5)
        if mean is not None:
            constants["mean"] = mean
        if std is not None:
            constants["std"] = std
        return AdaptedNetwork(
            num_classes,
            network,
            dim,
            name=self.full_name,
            library_heads=heads,
            in_channels=in_channels,
            **constants,
        )

    @property
    def full_name(self) -> str:
        """The name with its prefix."""
        return f"{self.library}/{self.name}"

    def check_options(self, **options: Any) -> None:
        """Raise an error for wrong options, without building or loading anything."""
        switches = ["small_images", "pretrained"]
        if self.library == "timm":
            switches.append("weights")
        for name in switches:
            value = options.get(name)
            if not isinstance(value, bool | None):
                raise TypeError(f"{name}={value!r} is a {type(value).__name__}; pass true or false")
        InputNormalization(options.get("in_channels", 3), options.get("mean"), options.get("std"))
        _height_and_width(options.get("image_size"))
        self._find_weights(options.get("weights"))

    def _find_weights(self, name: str | bool | None) -> Any:
        """Return timm's configuration, or the entry of torchvision's enumeration; None for none."""
        if self.library == "timm":
            return _timm().get_pretrained_cfg(self.name) if name else None
        if name is None:
            return None
        known: Any = torchvision.models.get_model_weights(self.name).__members__
        member = str(name).upper()
        if member not in known:
            raise ValueError(
                f"{self.full_name} has no weights {name!r}{did_you_mean(str(name), known)}; pass "
                f"one of {', '.join(known)}, or leave it out for random weights."
            )
        return known[member]

    def _create_torchvision(
        self,
        num_classes: int,
        in_channels: int,
        size: _Size,
        weights: Any,
    ) -> tuple[nn.Module, int, tuple[str, ...]]:
        """Return the network without its head, the number of features, the names of its heads."""
        options: dict[str, Any] = {"weights": weights, "progress": False}
        if weights is None:  # weights have their number of classes
            options["num_classes"] = check_int("num_classes", num_classes)
            if self.name in ("googlenet", "inception_v3"):
                options["init_weights"] = True  # the default, with a warning
        if size is not None and self.name.startswith("vit_"):
            if size[0] != size[1]:
                raise ValueError(f"{self.full_name} reads square images only, not of size {size}.")
            options["image_size"] = size[0]
        if size is not None and self.name.startswith("maxvit"):
            options["input_size"] = size
        network = self._call(torchvision.models.get_model, options, size)
        for name in _AUXILIARY_HEADS:
            if getattr(network, name, None) is not None:
                setattr(network, name, None)
                network.aux_logits = False
        if hasattr(network, "transform_input"):
            network.transform_input = False
        _replace_channels(network, in_channels, keep_response=weights is not None)
        path, head = _take_head(network, self.full_name)
        return network, head.in_features, (path, *_AUXILIARY_HEADS)

    def _create_timm(
        self, in_channels: int, size: _Size, loads: bool
    ) -> tuple[nn.Module, int, tuple[str, ...]]:
        options: dict[str, Any] = {"num_classes": 0, "in_chans": in_channels, "pretrained": loads}
        published = _timm().get_pretrained_cfg(self.name)
        if size is not None and published.fixed_input_size:
            options["img_size"] = size
        network = self._call(_timm().create_model, options, size)
        heads = published.classifier
        heads = (heads,) if isinstance(heads, str) else tuple(heads)
        return network, int(network.head_hidden_size), heads

    def _call(self, create: Callable[..., Any], options: dict[str, Any], size: _Size) -> Any:
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


def _shrink_stem(network: Any, *, keep: bool) -> None:
    old = network.conv1
    new = nn.Conv2d(old.in_channels, old.out_channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    if keep:
        new.weight.data.copy_(old.weight[:, :, 2:5, 2:5])  # the center of a 7x7 filter
    network.conv1 = new
    network.maxpool = nn.Identity()


def _timm() -> Any:
    import timm

    return timm


def _height_and_width(size: int | Sequence[int] | None) -> _Size:
    if size is None:
        return None
    values = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(values) != 2:
        raise ValueError(f"image_size: got {size!r}; expected one number or (height, width)")
    return check_int("image_size", values[0]), check_int("image_size", values[1])


def _constants(weights: Any, in_channels: int) -> dict[str, Any]:
    """Return mean and std of the weights' images; for other than RGB images the mean of each."""
    weights = weights.transforms() if hasattr(weights, "transforms") else weights  # torchvision's
    values = {"mean": list(weights.mean), "std": list(weights.std)}
    return {k: v if len(v) == in_channels else sum(v) / len(v) for k, v in values.items()}


def _replace_channels(network: nn.Module, in_channels: int, *, keep_response: bool) -> None:
    """Give the first convolution other input channels, with its filters in turn.

    For trained weights, ``keep_response`` scales them: a gray image has the same response.
    """
    name, old = next((n, m) for n, m in network.named_modules() if isinstance(m, nn.Conv2d))
    if old.in_channels == in_channels:
        return
    shape: dict[str, Any] = {k: getattr(old, k) for k in ("kernel_size", "stride", "padding")}
    new = nn.Conv2d(in_channels, old.out_channels, **shape, bias=old.bias is not None)
    scale = old.in_channels / in_channels if keep_response else 1.0
    channels = torch.arange(in_channels) % old.in_channels
    new.weight.data.copy_(scale * old.weight[:, channels])
    new.bias = old.bias
    network.set_submodule(name, new)


def _take_head(network: nn.Module, name: str) -> tuple[str, nn.Linear]:
    """Replace the last layer, which must be linear, by the identity; return its path and it."""
    *_, (parameter, _) = network.named_parameters()
    path = parameter.rpartition(".")[0]
    last = network.get_submodule(path)
    if not isinstance(last, nn.Linear):
        raise ValueError(
            f"{name} has no linear head: its last layer is {type(last).__name__}; choose a model "
            "that ends with nn.Linear, such as torchvision/resnet18."
        )
    network.set_submodule(path, nn.Identity())
    return path, last
