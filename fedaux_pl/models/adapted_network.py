"""Networks of other packages and of one's own as classifiers f = g o h."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedaux_pl.errors import first_line
from fedaux_pl.models.arguments import check_int
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
        needs: What messages say about the images that it needs.

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
        needs: str = "",
    ) -> None:
        super().__init__(num_classes, feature_dim)
        self.normalize = InputNormalization(
            in_channels,
            DEFAULT_MEAN if mean is None else mean,
            DEFAULT_STD if std is None else std,
        )
        self.network = network
        self.name, self.needs = name, needs
        self._readable: set[tuple[int, ...]] = set()  # shapes of images that were tried

    def features(self, x: Tensor) -> Tensor:
        """Map images (see :class:`InputNormalization`) to features of shape (N, feature_dim)."""
        return torch.flatten(self.extract(self.normalize(x)), 1)

    def extract(self, x: Tensor) -> Tensor:
        """Map standardized images to the outputs of the network."""
        features: Tensor = self.network(x)
        return features

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
                f"{self.name} cannot read images of {height}x{width} pixels ({reason}){self.needs};"
                " enlarge them with `size` of the data source, or choose a model for small images,"
                " such as resnet8 or torchvision/resnet18."
            )


def check_common_options(options: Mapping[str, Any], switches: Sequence[str]) -> None:
    """Raise a ValueError or TypeError for wrong options that networks of other packages share.

    Args:
        options: The options; ``in_channels``, ``mean`` and ``std`` are checked.
        switches: The names of those that are true, false or None.
    """
    in_channels = check_int("in_channels", options.get("in_channels", 3))
    for name in switches:
        if not isinstance(value := options.get(name), bool | None):
            raise TypeError(f"{name}={value!r} is a {type(value).__name__}; pass true or false")
    given = {k: options[k] for k in ("mean", "std") if options.get(k) is not None}
    InputNormalization(in_channels, **given)


def constants_for(constants: Sequence[float], in_channels: int) -> Constants:
    """Return one constant for each channel; for other than RGB images their mean."""
    if in_channels == len(constants):
        return list(constants)
    return sum(constants) / len(constants)


def replace_channels(network: nn.Module, in_channels: int, *, keep_response: bool) -> None:
    """Give the first convolution of a network another number of input channels.

    It keeps its filters: those of red, green and blue, in turn.

    Args:
        network: A network whose first convolution has 3 input channels.
        in_channels: The new number.
        keep_response: Whether to scale the filters so that a gray image has the same response, for
            weights that were trained.
    """
    name, old = next((n, m) for n, m in network.named_modules() if isinstance(m, nn.Conv2d))
    if old.in_channels == in_channels:
        return
    new = nn.Conv2d(
        in_channels,
        old.out_channels,
        old.kernel_size,  # type: ignore[arg-type]
        old.stride,  # type: ignore[arg-type]
        old.padding,  # type: ignore[arg-type]
        bias=old.bias is not None,
    )
    with torch.no_grad():
        scale = old.in_channels / in_channels if keep_response else 1.0
        new.weight.copy_(scale * old.weight[:, torch.arange(in_channels) % old.in_channels])
        if old.bias is not None and new.bias is not None:
            new.bias.copy_(old.bias)
    network.set_submodule(name, new)


def take_head(network: nn.Module, name: str) -> nn.Linear:
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
