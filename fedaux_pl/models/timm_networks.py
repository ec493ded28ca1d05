"""Any network of timm by name, such as ``timm/resnet10t``, where timm is installed."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from fedaux_pl.errors import ConfigurationError, did_you_mean, first_line
from fedaux_pl.models.adapted_network import (
    AdaptedNetwork,
    Constants,
    check_common_options,
    constants_for,
)


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
                f"the weights of {self.full_name} cannot be downloaded ({first_line(error)}): "
                "leave out model_options.weights"
            ) from error
        except (ValueError, AssertionError, RuntimeError, TypeError) as error:
            raise ValueError(
                f"{self.full_name} cannot be created for images of size {image_size} "
                f"({first_line(error)}); change `size` of the data source, or choose another."
            ) from error
        if weights:
            mean = constants_for(config.mean, in_channels) if mean is None else mean
            std = constants_for(config.std, in_channels) if std is None else std
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
        check_common_options(options, switches=("weights", "pretrained"))
