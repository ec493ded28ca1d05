"""Any network for images as a classifier f = g o h, and networks of one's own by class path."""

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedaux_pl.errors import did_you_mean, first_line
from fedaux_pl.models.classifier import Classifier
from fedaux_pl.models.image_classifier import DEFAULT_MEAN, DEFAULT_STD, InputNormalization

Constants = float | Sequence[float]


class AdaptedNetwork(Classifier):
    """A linear head g on the outputs of any network for images.

    The network gets standardized images, see :class:`InputNormalization`.

    Args:
        num_classes: Number of outputs, at least 1.
        network: Maps standardized images to features of shape (N, feature_dim), or to maps that
            have so many values. Its state-dict entries begin with ``network.``.
        feature_dim: Length of the feature vector of an image.
        name: What messages call it.
        in_channels: Number of channels of the images.
        mean: See :class:`InputNormalization`; None for its default.
        std: See :class:`InputNormalization`; None for its default.
        head: The network's own head; its method ``features`` is then called in place of it.

    Example:
        >>> pixels = nn.Sequential(nn.AvgPool2d(4), nn.Flatten())
        >>> model = AdaptedNetwork(10, pixels, feature_dim=12, name="pixels")
        >>> model(torch.zeros(2, 3, 8, 8, dtype=torch.uint8)).shape
        torch.Size([2, 10])
    """

    inputs: ClassVar[Literal["images", "tokens"]] = "images"

    def __init__(
        self,
        num_classes: int,
        network: nn.Module,
        feature_dim: int,
        *,
        name: str,
        in_channels: int = 3,
        mean: Constants | None = None,
        std: Constants | None = None,
        head: nn.Linear | None = None,
    ) -> None:
        super().__init__(num_classes, feature_dim)
        self.normalize = InputNormalization(
            in_channels,
            DEFAULT_MEAN if mean is None else mean,
            DEFAULT_STD if std is None else std,
        )
        self.network = network
        self.name, self._has_features = name, head is not None
        if head is not None:
            self.head = head
            network.head = nn.Identity()  # the entries of the head begin with "head."
        self._readable: set[tuple[int, ...]] = set()  # shapes of images that were tried

    def features(self, x: Tensor) -> Tensor:
        """Map images (see :class:`InputNormalization`) to features of shape (N, feature_dim)."""
        x = self.normalize(x)
        if self._has_features:
            # contiguous, for networks that call view(): a fast normalization returns a slice
            return torch.flatten(self.network.features(x.contiguous()), 1)  # type: ignore[operator]
        return torch.flatten(self.network(x), 1)

    def check_inputs(self, x: Tensor) -> None:
        """Raise a ValueError or TypeError for images that the network cannot read, or misreads.

        One image of every new size passes through the network.
        """
        self.normalize.check_images(x)
        self.normalize.check_values(x)
        size = tuple(x.shape[2:])
        if len(x) and size not in self._readable:
            self._try(x[:1])
            self._readable.add(size)

    @torch.no_grad()
    def _try(self, x: Tensor) -> None:
        modes = {module: module.training for module in self.modules()}
        self.eval()
        try:
            shape = tuple(self.features(x.to(self.head.weight.device)).shape)
            reason = "" if shape == (1, self.feature_dim) else f"their features have shape {shape}"
        except Exception as error:  # of any class: it is another package's network
            reason = first_line(error)
        finally:
            for module, mode in modes.items():
                module.training = mode
        if reason:
            height, width = x.shape[2:]
            raise ValueError(
                f"{self.name} cannot read images of {height}x{width} pixels ({reason}); enlarge "
                "them with `size` of the data source, or choose a model for small images, such as "
                "resnet8 or torchvision/resnet18."
            )


def find_class(name: str) -> Callable[..., nn.Module]:
    """Import the class of a network by its class path; return it, or what adapts it.

    Raises:
        ValueError: If there is no such class, or if it is not an architecture.
    """
    module_name, _, class_name = name.rpartition(".")
    try:
        module = import_module(module_name)
    except Exception as error:  # the module's own code runs: of any class
        is_missing = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(
            f"{error.name}."
        )
        reason = "" if is_missing else f" ({type(error).__name__}: {error})"
        raise ValueError(
            f"model {name!r}: the module {module_name} cannot be imported{reason}; correct the "
            "name, or add its folder to the Python path (PYTHONPATH=FOLDER)."
        ) from error
    kind: Any = getattr(module, class_name, None)
    if not _is_network(kind):
        classes = [other for other, member in vars(module).items() if _is_network(member)]
        got = "does not exist" if kind is None else "is no torch.nn.Module"
        raise ValueError(
            f"model {name!r}: {class_name} {got} in {module_name}"
            f"{did_you_mean(class_name, classes)}; name a class of a network."
        )
    parameters = inspect.signature(kind).parameters
    if "num_classes" not in parameters:
        raise ValueError(
            f"model {name!r} takes no num_classes, only {', '.join(parameters) or 'nothing'}; give "
            "its constructor the number of outputs as num_classes."
        )
    return kind if issubclass(kind, Classifier) else OwnFactory(name, kind)


class OwnFactory:
    """Creates a network of a class that is no :class:`Classifier`, and adapts it.

    Its options are those of the class, with ``in_channels``, ``mean`` and ``std``.

    Args:
        name: The class path, for messages.
        kind: The class, which takes ``num_classes`` and has ``features`` and ``head``.
    """

    _OPTIONS = ("in_channels", "mean", "std")  # of AdaptedNetwork

    def __init__(self, name: str, kind: type[nn.Module]) -> None:
        self.name, self.kind = name, kind
        self.own = inspect.signature(kind).parameters
        common = inspect.signature(AdaptedNetwork).parameters
        added = [common[option] for option in self._OPTIONS if option not in self.own]
        last = [p for p in self.own.values() if p.kind is p.VAR_KEYWORD]
        first = [p.replace(kind=p.KEYWORD_ONLY) for p in self.own.values() if p not in last]
        self.__signature__ = inspect.Signature([*first, *added, *last])

    def __call__(self, num_classes: int, **options: Any) -> AdaptedNetwork:
        """Create the network and its head."""
        passed = {k: v for k, v in options.items() if k in self.own or k not in self._OPTIONS}
        network: Any = self.kind(num_classes=num_classes, **passed)
        head = getattr(network, "head", None)
        dim: Any = getattr(network, "feature_dim", None) or getattr(head, "in_features", None)
        parts = {"features": hasattr(network, "features"), "head": head is not None}
        parts["feature_dim (or a head with in_features)"] = head is None or dim is not None
        if missing := [part for part, is_there in parts.items() if not is_there]:
            raise ValueError(
                f"{self.name} lacks {', '.join(missing)}; a model needs features(x) -> (N, d), a "
                "head and feature_dim = d (see docs/extending.md)."
            )
        outputs = getattr(head, "out_features", num_classes)
        if outputs != num_classes:
            raise ValueError(
                f"the head of {self.name} has {outputs} outputs, but there are {num_classes} "
                "classes; use num_classes in its constructor."
            )
        adapted = {option: options[option] for option in self._OPTIONS if option in options}
        return AdaptedNetwork(num_classes, network, int(dim), name=self.name, head=head, **adapted)


def _is_network(member: Any) -> bool:
    return isinstance(member, type) and issubclass(member, nn.Module)
