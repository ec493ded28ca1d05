"""Resizes batches of images."""

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 512  # images converted to float at a time: 57 MB at 96 x 96 x 3


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
    for start in range(0, len(square), CHUNK):
        # in float: the uint8 kernels round differently on different CPUs
        chunk = square[start : start + CHUNK].float()
        scaled = functional.interpolate(chunk, (size, size), mode="bilinear", antialias=True)
        result[start : start + CHUNK] = scaled.round_().clamp_(0, 255)
    return result
