"""Images of one size from images of another."""

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 512  # images that are held as floating point numbers at a time: 57 MB at 96 x 96 x 3


def resize(images: Tensor, size: int) -> Tensor:
    """Crops images to the square in their middle and scales that (bilinear, antialiased).

    Args:
        images: uint8 of shape (N, C, H, W).
        size: The height and width to reach.

    Returns:
        uint8 of shape (N, C, size, size).
    """
    height, width = images.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = images[..., top : top + side, left : left + side]
    if side == size:
        return square.contiguous()
    result = torch.empty((*images.shape[:2], size, size), dtype=torch.uint8)
    for start in range(0, len(square), CHUNK):
        # not on the bytes themselves: the kernels for uint8 differ between processors
        scaled = functional.interpolate(
            square[start : start + CHUNK].float(),
            size=(size, size),
            mode="bilinear",
            antialias=True,
        )
        result[start : start + CHUNK] = scaled.round_().clamp_(0, 255)
    return result
