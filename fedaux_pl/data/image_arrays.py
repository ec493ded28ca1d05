"""Arrays of images as tensors of shape (N, C, H, W), and their size.

The pixels must stay as they are, bit for bit, because the ledgers of real sites recognize records
by digests of their pixels.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedaux_pl.errors import DataError

_CHUNK = 512  # images that are converted to float at a time: 57 MB at 96 x 96 x 3


def from_array(array: NDArray[Any], what: str, floats: bool = False) -> Tensor:
    """Turn images of shape (N, C, H, W), (N, H, W, C) or (N, H, W) into (N, C, H, W).

    The last dimension holds the channels if its size is 1 or 3 and that of the second is neither.

    Args:
        array: The images, uint8.
        what: The name of the array in messages.
        floats: Whether float32 is also accepted.
    """
    if array.dtype != np.uint8 and not (floats and array.dtype == np.float32):
        raise DataError(
            f"{what}: got {array.dtype}; expected uint8 with values 0 ... 255"
            f"{', or floats' if floats else ''}: scale it to 0 ... 255 and convert it to uint8"
        )
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or not 1 <= array.shape[1] <= 4:
        raise DataError(
            f"{what}: got shape {array.shape}; expected (N, C, H, W) with 1 to 4 channels, "
            "(N, H, W, C) with 1 or 3, or (N, H, W)"
        )
    if array.size == 0:
        raise DataError(f"{what} holds no images: its shape is {array.shape}")
    return torch.from_numpy(np.ascontiguousarray(array))


def resize(images: Tensor, size: int) -> Tensor:
    """Scale the central square of images, uint8 (N, C, H, W), to (N, C, size, size)."""
    height, width = images.shape[-2:]
    side = min(height, width)
    top = (height - side) // 2
    left = (width - side) // 2
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
