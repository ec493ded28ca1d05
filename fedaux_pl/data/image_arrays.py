"""The layout and size of arrays of images."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedaux_pl.errors import DataError

_CHUNK = 512  # images converted to float at a time: 57 MB at 96 x 96 x 3


def channels_first(array: NDArray[Any], what: str) -> NDArray[Any]:
    """Turns images of shape (N, C, H, W), (N, H, W, C) or (N, H, W) into (N, C, H, W).

    Channels are last if the last dimension is 1 or 3 and the second is neither. ``what`` names the
    array in the DataError for another shape, or without images.

    Example:
        >>> import numpy as np
        >>> channels_first(np.zeros((5, 8, 8, 3)), "images").shape
        (5, 3, 8, 8)
    """
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or not 1 <= array.shape[1] <= 4:
        raise DataError(
            f"{what} must have the shape (N, C, H, W) with 1 to 4 channels, (N, H, W, C) with 1 or "
            f"3, or (N, H, W), but has {array.shape}"
        )
    if array.size == 0:
        raise DataError(f"{what} holds no images: its shape is {array.shape}")
    return np.ascontiguousarray(array)


def resize(images: Tensor, size: int) -> Tensor:
    """Scales the central square of images, uint8 (N, C, H, W), to (N, C, size, size).

    The interpolation is bilinear and antialiased.
    """
    height, width = images.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = images[..., top : top + side, left : left + side]
    if side == size:
        return square.contiguous()
    result = torch.empty((*images.shape[:2], size, size), dtype=torch.uint8)
    for start in range(0, len(square), _CHUNK):
        # in float: the uint8 kernels round differently on different CPUs
        chunk = square[start : start + _CHUNK].float()
        scaled = functional.interpolate(chunk, (size, size), mode="bilinear", antialias=True)
        result[start : start + _CHUNK] = scaled.round_().clamp_(0, 255)
    return result
