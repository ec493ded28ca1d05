"""Any network of timm by name, such as ``timm/resnet10t``, where timm is installed."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from fedaux_pl.errors import ConfigurationError, did_you_mean
from fedaux_pl.models.adapted_network import AdaptedNetwork, Constants
from fedaux_pl.models.arguments import check_int
from fedaux_pl.models.image_classifier import InputNormalization


@dataclass(frozen=True)
class TimmFactory:
    """Creates a network of timm as f = g o h; its classifier becomes ``head``.

    Args:
        name: A name of timm, with or without the tag of its weights, as in ``resnet10t.c3_in1k``.

    Raises:
        ValueError: If timm is not installed, or has no such network.
    """

    name: str

    def __post_init__(self) -> None:
        if find_spec("timm") is None:
            raise ValueError(
                f"model {self.full_name!r} needs timm, which is not installed; run `pip install "
                "timm`, or choose a model of torchvision, such as torchvision/resnet18."
            )
        import timm

        if not timm.is_model(self.name):
            known = timm.list_models()
            raise ValueError(
                f"timm has no model {self.name!r}{did_you_mean(self.name, known)}; "
                f"timm.list_models() lists its {len(known)} models."
            )

    @property
    def full_name(self) -> str:
        """The name with its prefix."""
        return f"timm/{self.name}"

    def __call__(
        self,
        num_classes: int,
        *,
        in_channels: int = 3,
        image_size: int | Sequence[int] | None = None,
        weights: bool = False,
        pretrained: bool = True,
        mean: Constants | None = None,
        std: Constants | None = None,
    ) -> AdaptedNetwork:
        """Create the network.

        Args:
            num_classes: Number of outputs, at least 1.
            in_channels: Number of channels of the images.
            image_size: The height and width of the images, for networks of a fixed size.
            weights: Whether it starts from timm's weights, of the name's tag or the default ones,
                which are downloaded.
            pretrained: Whether to load them. A federation passes what its method says: True for
                methods that start from pre-trained models.
            mean: See :class:`InputNormalization`; by default that of the weights, if used.
            std: See :class:`InputNormalization`; by default that of the weights, if used.
        """
        import timm

        self.check_options(in_channels=in_channels, weights=weights, mean=mean, std=std)
        config: Any = timm.get_pretrained_cfg(self.name)
        options: dict[str, Any] = {"num_classes": 0, "in_chans": in_channels}
        if image_size is not None and config.fixed_input_size:
            options["img_size"] = image_size
        try:
            network: Any = timm.create_model(self.name, weights and pretrained, **options)
        except OSError as error:
            raise ConfigurationError(
                f"the weights of {self.full_name} cannot be downloaded ({_first_line(error)}): "
                "leave out model_options.weights"
            ) from error
        except (ValueError, AssertionError, RuntimeError, TypeError) as error:
            raise ValueError(
                f"{self.full_name} cannot be created for images of size {image_size} "
                f"({_first_line(error)}); change `size` of the data source, or choose another."
            ) from error
        if weights:
            mean = _for_channels(config.mean, in_channels) if mean is None else mean
            std = _for_channels(config.std, in_channels) if std is None else std
        return AdaptedNetwork(
            num_classes,
            network,
            int(network.head_hidden_size),
            name=self.full_name,
            in_channels=in_channels,
            mean=mean,
            std=std,
        )

    def check_options(self, **options: Any) -> None:
        """Raise the errors of a call for wrong options, without building or loading anything."""
        in_channels = check_int("in_channels", options.get("in_channels", 3))
        for name in ("weights", "pretrained"):
            if not isinstance(value := options.get(name), bool | None):
                raise TypeError(f"{name}={value!r} is a {type(value).__name__}; pass true or false")
        given = {k: options[k] for k in ("mean", "std") if options.get(k) is not None}
        InputNormalization(in_channels, **given)


def _for_channels(constants: Sequence[float], in_channels: int) -> Constants:
    """One constant for each channel; for other than RGB images their mean."""
    if in_channels == len(constants):
        return list(constants)
    return sum(constants) / len(constants)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
