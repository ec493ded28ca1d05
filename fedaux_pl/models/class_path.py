"""Networks of one's own by class path, such as ``my_package.MyNet``."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from fedaux_pl.errors import did_you_mean
from fedaux_pl.models.adapted_network import AdaptedNetwork
from fedaux_pl.models.classifier import Classifier

_OPTIONS = ("in_channels", "mean", "std")  # of AdaptedNetwork


class OwnNetwork(AdaptedNetwork):
    """Any module with ``features`` and ``head`` as f = g o h, on standardized images."""

    def __init__(self, num_classes: int, network: nn.Module, name: str, **options: Any) -> None:
        missing = [part for part in ("features", "head") if not hasattr(network, part)]
        dim = getattr(network, "feature_dim", None)
        if not missing and dim is None:
            dim = getattr(network.head, "in_features", None)
            missing += [] if dim else ["feature_dim (or a head with in_features)"]
        if missing or dim is None:
            raise ValueError(
                f"{name} lacks {', '.join(missing)}; a model needs features(x) -> (N, d), a head "
                "and feature_dim = d (see docs/extending.md)."
            )
        super().__init__(num_classes, network, int(dim), name=name, **options)
        head = network.head
        outputs = getattr(head, "out_features", num_classes)
        if outputs != num_classes:
            raise ValueError(
                f"the head of {name} has {outputs} outputs, but there are {num_classes} classes; "
                "use num_classes in its constructor."
            )
        self.head = head  # type: ignore[assignment]
        network.head = nn.Identity()  # the entries of the head begin with "head."

    def extract(self, x: Tensor) -> Tensor:
        """Map standardized images to the features of the network."""
        # contiguous, for networks that call view(): a fast normalization returns a slice
        features: Tensor = self.network.features(x.contiguous())  # type: ignore[operator]
        return features


class OwnFactory:
    """Creates a network of a class that is no :class:`Classifier`, and adapts it.

    Its options are those of the class, with ``in_channels``, ``mean`` and ``std``.

    Args:
        name: The class path, for messages.
        kind: The class, which takes ``num_classes``.
    """

    def __init__(self, name: str, kind: type[nn.Module]) -> None:
        self.name, self.kind = name, kind
        self.own = inspect.signature(kind).parameters
        common = inspect.signature(AdaptedNetwork).parameters
        added = [common[option] for option in _OPTIONS if option not in self.own]
        last = [p for p in self.own.values() if p.kind is p.VAR_KEYWORD]
        first = [p.replace(kind=p.KEYWORD_ONLY) for p in self.own.values() if p not in last]
        self.__signature__ = inspect.Signature([*first, *added, *last])

    def __call__(self, num_classes: int, **options: Any) -> OwnNetwork:
        """Create the network and its head."""
        passed = {k: v for k, v in options.items() if k in self.own or k not in _OPTIONS}
        network = self.kind(num_classes=num_classes, **passed)
        adapted = {option: options[option] for option in _OPTIONS if option in options}
        return OwnNetwork(num_classes, network, self.name, **adapted)


def find_class(name: str) -> Callable[..., nn.Module]:
    """Import the class of a network by its class path; return it, or what adapts it.

    Raises:
        ValueError: If there is no such class, or if it is not an architecture.
    """
    module_name, _, class_name = name.rpartition(".")
    try:
        module = import_module(module_name)
    except Exception as error:  # the module's own code runs: of any class
        own = isinstance(error, ModuleNotFoundError) and error.name in _parents(module_name)
        reason = "" if own else f" ({type(error).__name__}: {error})"
        raise ValueError(
            f"model {name!r}: the module {module_name} cannot be imported{reason}; correct the "
            "name, or add its folder to the Python path (PYTHONPATH=FOLDER)."
        ) from error
    members: Mapping[str, Any] = vars(module)
    kind: Any = members.get(class_name)
    if not _is_network(kind):
        classes = [other for other, member in members.items() if _is_network(member)]
        got = "is no torch.nn.Module" if class_name in members else "does not exist"
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


def _is_network(member: Any) -> bool:
    return isinstance(member, type) and issubclass(member, nn.Module)


def _parents(module: str) -> list[str]:
    """The names of a module and of the packages that it is in."""
    parts = module.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
