"""Any network for images as a classifier f = g o h, and networks of one's own by class path."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.errors import did_you_mean, first_line
from fedaux_pl.models.classifier import Classifier
from fedaux_pl.models.image_classifier import ImageClassifier

_ADDED = ("in_channels", "mean", "std")  # options of ImageClassifier that an own class may lack


class AdaptedNetwork(ImageClassifier):
    """A linear head g on the outputs of any network for images.

    Args:
        num_classes: Number of outputs, at least 1.
        network: Maps standardized images to features of shape (N, feature_dim), or to maps that
            have so many values. Its state-dict entries begin with ``network.``.
        feature_dim: Length of the feature vector of an image.
        name: What messages call it.
        head: The network's own head; its method ``features`` is then called in place of it.
        **options: ``in_channels``, ``mean`` and ``std``, see ``ImageClassifier``.

    Examples:
        >>> pixels = nn.Sequential(nn.AvgPool2d(4), nn.Flatten())
        >>> model = AdaptedNetwork(10, pixels, feature_dim=12, name="pixels")
        >>> model(torch.zeros(2, 3, 8, 8, dtype=torch.uint8)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int,
        network: nn.Module,
        feature_dim: int,
        *,
        name: str,
        head: nn.Linear | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_classes, feature_dim, **options)
        self.network = network
        self.name, self._has_features = name, head is not None
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

    def check_inputs(self, x: Tensor) -> None:
        """Raise a ValueError or TypeError for images that the network cannot read, or misreads.

        One image of every new size passes through the network.
        """
        super().check_inputs(x)
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
    return kind if issubclass(kind, Classifier) else _adapter(name, kind)


def _adapter(name: str, kind: type[nn.Module]) -> Callable[..., AdaptedNetwork]:
    """Return a function that creates a network of the class ``kind`` and adapts it.

    Its options are those of the class, with ``in_channels``, ``mean`` and ``std``.
    """
    own = inspect.signature(kind).parameters

    def create(num_classes: int, **options: Any) -> AdaptedNetwork:
        passed = {k: v for k, v in options.items() if k in own or k not in _ADDED}
        network: Any = kind(num_classes=num_classes, **passed)
        head = getattr(network, "head", None)
        dim: Any = getattr(network, "feature_dim", None) or getattr(head, "in_features", None)
        parts = {"features": hasattr(network, "features"), "head": head is not None}
        parts["feature_dim (or a head with in_features)"] = head is None or dim is not None
        if missing := [part for part, is_there in parts.items() if not is_there]:
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
        adapted = {option: options[option] for option in _ADDED if option in options}
        return AdaptedNetwork(num_classes, network, int(dim), name=name, head=head, **adapted)

    common = inspect.signature(ImageClassifier).parameters
    last = [p for p in own.values() if p.kind is p.VAR_KEYWORD]
    first = [p.replace(kind=p.KEYWORD_ONLY) for p in own.values() if p not in last]
    added = [common[option] for option in _ADDED if option not in own]
    create.__signature__ = inspect.Signature([*first, *added, *last])  # type: ignore[attr-defined]
    return create


def _is_network(member: Any) -> bool:
    return isinstance(member, type) and issubclass(member, nn.Module)
