"""Image encoders of the transformers library as classifiers f = g o h."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.models.adapted_network import AdaptedNetwork
from fedaux_pl.models.encoder import (
    Pooling,
    check_encoder,
    config_values,
    find_config,
    load_encoder,
    load_from,
)
from fedaux_pl.models.image_classifier import Constants, InputNormalization
from fedaux_pl.models.registry import register

IMAGE_TYPES = (
    *("aimv2_vision_model", "beit", "bit", "chinese_clip_vision_model", "clip_vision_model"),
    *("convnext", "convnextv2", "cvt", "data2vec-vision", "deit", "dinat", "dinov2"),
    *("dinov2_with_registers", "dinov3_convnext", "dinov3_vit", "donut-swin", "efficientnet"),
    *("focalnet", "glpn", "hgnet_v2", "hiera", "ijepa", "levit", "maskformer-swin"),
    *("metaclip_2_vision_model", "mlcd", "mlcd_vision_model", "mobilenet_v1", "mobilenet_v2"),
    *("mobilevit", "mobilevitv2", "pixio", "pixtral", "poolformer", "pvt", "pvt_v2", "radio"),
    *("regnet", "resnet", "segformer", "siglip2_vision_model", "siglip_vision_model"),
    *("swiftformer", "swin", "swin2sr", "swinv2", "textnet", "vit", "vit_mae", "vit_msn"),
    *("vitdet", "yolos"),
)
"""Model types that are built from their configuration alone; others can load a part from a file."""
_CLASS_TOKENS = ("cls_token", "class_embedding")  # what the library calls them


@register("image_encoder")
class ImageEncoder(AdaptedNetwork):
    """An image encoder of the transformers library, such as ViT or DINOv2, with a linear head.

    Args:
        num_classes: Number of outputs, at least 1.
        source: A folder with ``config.json``, ``preprocessor_config.json`` and weights, which is
            read without the network, or a name on the hub.
        config: In place of a source, the configuration of an encoder with random weights, such as
            {hidden_size: 64}; ``model_type`` is ``vit`` by default.
        pooling: h(x) is the last layer's state of the class token, ``cls``, or the ``mean`` of the
            states of all tokens. Of feature maps it is the mean, whatever the pooling.
        pretrained: Whether to load the weights of the source; otherwise they are random.
        in_channels: Number of channels of the images.
        mean: See ``InputNormalization``; by default, as ``std``, that of the source's image
            processor.
        std: Likewise.

    Examples:
        >>> import torch
        >>> sizes = {"hidden_size": 8, "intermediate_size": 16, "image_size": 32}
        >>> layers = {"num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = ImageEncoder(num_classes=3, config={**sizes, **layers}).eval()
        >>> model(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        num_classes: int,
        *,
        source: str | Path | None = None,
        config: Mapping[str, Any] | None = None,
        pooling: Pooling = "cls",
        pretrained: bool = True,
        in_channels: int = 3,
        mean: Constants | None = None,
        std: Constants | None = None,
    ) -> None:
        constants: dict[str, Any] = {"mean": mean, "std": std}
        ImageEncoder.check_options(source=source, config=config, pooling=pooling, **constants)
        settings = find_config(source, {"model_type": "vit", **(config or {})})
        if source is not None and (mean is None or std is None):
            published = _read_constants(source)
            constants = {k: published[k] if v is None else v for k, v in constants.items()}
        encoder, origin = load_encoder(settings, source if pretrained else None)
        network = _PooledStates(encoder, pooling)
        dim = getattr(settings, "hidden_size", None) or settings.hidden_sizes[-1]
        name = str(source or settings.model_type)
        super().__init__(
            num_classes, network, int(dim), name=name, in_channels=in_channels, **constants
        )
        self.origin = origin
        self._constants = constants

    @classmethod
    def check_options(
        cls,
        *,
        source: str | Path | None = None,
        config: Mapping[str, Any] | None = None,
        pooling: Pooling = "cls",
        in_channels: int = 3,
        mean: Constants | None = None,
        std: Constants | None = None,
        **_: Any,
    ) -> None:
        """Raise the constructor's errors for wrong options, without loading anything."""
        check_encoder(source, config, pooling)
        InputNormalization(in_channels, mean, std)

    def recipe(self) -> dict[str, Any]:
        """Return the options that create this encoder elsewhere, without its source."""
        network: Any = self.network
        options = {
            "config": config_values(network.encoder.config),
            "pooling": network.pooling,
            "in_channels": self.normalize.in_channels,
            "pretrained": False,
            **self._constants,
        }
        return {"name": "image_encoder", "options": options}


class _PooledStates(nn.Module):
    """One vector for each image from the states of an encoder's last layer."""

    def __init__(self, encoder: Any, pooling: Pooling) -> None:
        super().__init__()
        kind = type(encoder).__name__
        if encoder.main_input_name != "pixel_values":
            raise ValueError(
                f"{kind} reads {encoder.main_input_name}, not images alone; choose an encoder such "
                "as ViT, DINOv2, Swin, ConvNeXt or CLIP's vision model."
            )
        self.encoder = encoder
        self.pooling = pooling
        self._has_class_token = any(
            name.endswith(_CLASS_TOKENS) for name, _ in encoder.named_parameters()
        )

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.encoder(pixel_values=x).last_hidden_state
        if states.ndim == 4:  # feature maps
            return states.mean(dim=(2, 3))
        if self.pooling == "mean":
            return states.mean(dim=1)
        if not self._has_class_token:
            raise ValueError("the encoder has no class token: set pooling to mean")
        return states[:, 0]


def _read_constants(source: str | Path) -> dict[str, list[float]]:
    """Return mean and std of the image processor that belongs to an encoder."""
    from transformers import AutoImageProcessor

    remedy = "set mean and std in model_options, for pixels in [0, 1]"
    try:
        processor = load_from(AutoImageProcessor.from_pretrained, source)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{source} has no readable preprocessor_config.json, which tells how images are "
            f"normalized: add it, or {remedy}"
        ) from error
    if not processor.do_normalize:
        return {"mean": [0.0] * 3, "std": [1.0] * 3}
    if not math.isclose(processor.rescale_factor, 1 / 255):
        raise ConfigurationError(
            f"preprocessor_config.json of {source}: got rescale_factor "
            f"{processor.rescale_factor:g}; expected 1 / 255: {remedy}"
        )
    return {"mean": list(processor.image_mean), "std": list(processor.image_std)}
