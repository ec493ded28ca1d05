"""Random resized crops of batches of images, each image with its own box.

Nothing here reads a value back to the host, and no shape depends on values.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# as in torchvision's RandomResizedCrop: how often a box is drawn before the central one is taken,
# and the largest ratio of its sides, either way
_TRIES = 10
_MAX_RATIO = 4 / 3
NUMBERS = 2 * _TRIES + 2  # random numbers that a box takes


class Boxes(NamedTuple):
    """One box in each of N images; every field is int64 of shape (N,).

    Args:
        top: First row.
        left: First column.
        height: Number of rows.
        width: Number of columns.
    """

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


def boxes_from(uniform: Tensor, height: int, width: int, min_scale: float) -> Boxes:
    """One box for each image from random numbers, like torchvision's RandomResizedCrop.

    The area is uniform between min_scale and 1 times that of the image, and the logarithm of the
    ratio of the sides uniform between those of 3/4 and 4/3. An image takes the first of 10 such
    boxes that fits, anywhere with equal probability; where none fits, the largest central box
    whose ratio is allowed.

    Args:
        uniform: float32 in [0, 1) of shape (NUMBERS, N).
        height: Rows of an image.
        width: Columns of an image.
        min_scale: Smallest area as a fraction of the image, in (0, 1].
    """
    area = height * width
    # sqrt(area / ratio) and sqrt(area * ratio), where the root of the ratio is between those of
    # 3/4 and 4/3
    side = uniform[:_TRIES].mul((1 - min_scale) * area).add_(min_scale * area).sqrt_()
    root = torch.pow(_MAX_RATIO, uniform[_TRIES : 2 * _TRIES] - 0.5)
    sides = torch.stack((side / root, side * root)).round_()
    misfits = (sides[0] > height) | (sides[1] > width)
    if min_scale * area < 1:  # or no side is rounded to 0
        misfits |= sides.amin(dim=0) < 1
    # argmin gives the first of several equal values
    first = misfits.view(torch.uint8).argmin(dim=0)
    box_height, box_width = sides.gather(1, first.expand(2, 1, -1))[:, 0]
    # a product with a number below 1 never rounds up to the next whole number, so that cut off it
    # stays within 0 ... height - box_height
    top = uniform[-2] * (height + 1 - box_height)
    left = uniform[-1] * (width + 1 - box_width)
    boxes = torch.stack((top, left, box_height, box_width)).long()

    rows, columns = min(height, round(width * _MAX_RATIO)), min(width, round(height * _MAX_RATIO))
    central = ((height - rows) // 2, (width - columns) // 2, rows, columns)
    none_fits = misfits.all(dim=0)
    return Boxes(*(x.masked_fill_(none_fits, y) for x, y in zip(boxes, central, strict=True)))


def _positions(start: Tensor, extent: Tensor, size: int, flip: Tensor | None = None) -> Tensor:
    """Where each of ``size`` output pixels lies along one side of the input, from -1 to 1.

    The extent pixels from start on are stretched over the size output pixels. A position outside
    the outermost pixel centres of the box is moved onto them, since what lies beside the box must
    not show in the crop.
    """
    start, extent = start[:, None].float(), extent[:, None].float()
    out = torch.arange(size, device=start.device, dtype=torch.float32)
    if flip is not None:
        out = torch.where(flip[:, None], size - 1 - out, out)
    inside = ((out + 0.5) * (extent / size) - 0.5).clamp_(min=0)
    pixel = torch.minimum(inside, extent - 1) + start
    return (2 * pixel + 1) / size - 1


def resized_crop(images: Tensor, boxes: Boxes, flip: Tensor) -> Tensor:
    """Cuts a box out of each image, scales it to the full size, and mirrors it where asked to.

    The interpolation is bilinear. As a box is never larger than its image, this always enlarges,
    and antialiasing would change nothing.

    Args:
        images: float32 of shape (N, C, H, W).
        boxes: The part of each image to keep.
        flip: Whether to mirror the crop left to right, bool of shape (N,).

    Returns:
        The crops, of the same shape as the images.
    """
    rows = _positions(boxes.top, boxes.height, images.shape[2])
    columns = _positions(boxes.left, boxes.width, images.shape[3], flip)
    shape = (len(images), *images.shape[2:])
    grid = torch.stack((columns[:, None, :].expand(shape), rows[:, :, None].expand(shape)), dim=-1)
    # One kernel, and unlike matrix products with interpolation weights exact in float32 even where
    # these may use TensorFloat-32
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
