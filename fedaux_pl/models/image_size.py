"""The smallest images that a network can use."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

_LARGEST = 256  # of the sizes that are tried


class ImageSizeProbe:
    """Finds out whether a layer of a network would halve a feature map of a single pixel.

    Such a layer reads one pixel and padding: most of its weights are never used, and deeper layers
    see nothing of where things are in the image.

    Args:
        model: The network, which stays as it is.
        dtype: That of its images.

    Examples:
        >>> from fedaux_pl.models import create_model
        >>> probe = ImageSizeProbe(create_model("resnet8", num_classes=10, width=0.125))
        >>> probe.is_too_small((3, 4, 4)), probe.smallest_size(channels=3)
        (True, 5)
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype = torch.uint8) -> None:
        self._model = copy.deepcopy(model).eval()
        device = next(model.parameters()).device
        self._options: dict[str, Any] = {"dtype": dtype, "device": device}
        self._found_single_pixel = False
        for layer in self._model.modules():
            if _has_stride(layer):
                layer.register_forward_pre_hook(self._look)

    def _look(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        maps = inputs[0] if inputs else None
        if isinstance(maps, Tensor) and 1 in maps.shape[-2:]:
            self._found_single_pixel = True

    def is_too_small(self, input_shape: Sequence[int]) -> bool:
        """Return whether images of shape (C, H, W) are too small."""
        self._found_single_pixel = False
        with torch.no_grad():
            self._model(torch.zeros(1, *input_shape, **self._options))
        return self._found_single_pixel

    def smallest_size(self, channels: int) -> int | None:
        """Return the smallest height and width that is not too small; None above 256 pixels."""
        for size in range(1, _LARGEST + 1):
            try:
                if not self.is_too_small((channels, size, size)):
                    return size
            except Exception:  # noqa: S112 - a network can raise anything for other sizes
                continue
        return None


def _has_stride(layer: nn.Module) -> bool:
    if not isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
        return False
    stride = layer.stride
    return any(step > 1 for step in (stride if isinstance(stride, tuple) else (stride,)))
