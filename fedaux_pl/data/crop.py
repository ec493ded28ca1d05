"""Random resized crops of batches of images, each image with its own box.

Nothing here synchronizes with the device, and no shape depends on values.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# As in torchvision's RandomResizedCrop: the number of boxes drawn before falling back to the
# central one, and the largest ratio of the longer to the shorter side.
_TRIES = 10
_MAX_RATIO = 4 / 3
NUMBERS_PER_BOX = 2 * _TRIES + 2  # uniform random numbers


class Boxes(NamedTuple):
    """One box in each of N images, by its first row and column; fields are int64 of shape (N,)."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


def boxes_from(uniform: Tensor, height: int, width: int, min_scale: float) -> Boxes:
    """Compute one box per image from random numbers, as torchvision's RandomResizedCrop does.

    The area is uniform between min_scale and 1 times that of the image, and the logarithm of the
    aspect ratio is uniform between log 3/4 and log 4/3. Each image gets the first of 10 such boxes
    that fits, at a uniform position; if none fits, the largest central box with an allowed ratio.
    ``uniform`` is float32 in [0, 1) of shape (NUMBERS_PER_BOX, N).
    """
    area = height * width
    # the sides are sqrt(area / ratio) and sqrt(area * ratio); root is sqrt(ratio)
    side = uniform[:_TRIES].mul((1 - min_scale) * area).add_(min_scale * area).sqrt_()
    root = torch.pow(_MAX_RATIO, uniform[_TRIES : 2 * _TRIES] - 0.5)
    sides = torch.stack((side / root, side * root)).round_()
    misfits = (sides[0] > height) | (sides[1] > width)
    if min_scale * area < 1:  # only then can a side be rounded to 0
        misfits |= sides.amin(dim=0) < 1
    # argmin returns the first of equal values
    first = misfits.view(torch.uint8).argmin(dim=0)
    box_height, box_width = sides.gather(1, first.expand(2, 1, -1))[:, 0]
    # uniform numbers are below 1 and these products are never rounded up to the next integer, so
    # truncation gives 0 ... height - box_height
    top = uniform[-2] * (height + 1 - box_height)
    left = uniform[-1] * (width + 1 - box_width)
    boxes = torch.stack((top, left, box_height, box_width)).long()

    rows, columns = min(height, round(width * _MAX_RATIO)), min(width, round(height * _MAX_RATIO))
    central = ((height - rows) // 2, (width - columns) // 2, rows, columns)
    none_fits = misfits.all(dim=0)
    return Boxes(*(x.masked_fill_(none_fits, y) for x, y in zip(boxes, central, strict=True)))


def _positions(start: Tensor, extent: Tensor, size: int, flip: Tensor | None = None) -> Tensor:
    """The position of each of ``size`` output pixels along one side of the input, in [-1, 1].

    The ``extent`` input pixels from ``start`` on are stretched over the output pixels. Positions
    are clamped to the centers of the outermost pixels of the box, so that no pixel outside the box
    contributes.
    """
    start, extent = start[:, None].float(), extent[:, None].float()
    out = torch.arange(size, device=start.device, dtype=torch.float32)
    if flip is not None:
        out = torch.where(flip[:, None], size - 1 - out, out)
    inside = ((out + 0.5) * (extent / size) - 0.5).clamp_(min=0)
    pixel = torch.minimum(inside, extent - 1) + start
    return (2 * pixel + 1) / size - 1


def resized_crop(images: Tensor, boxes: Boxes, flip: Tensor) -> Tensor:
    """Crop a box from each image, resize it to the size of the image, and flip some of the crops.

    Images are float32 of shape (N, C, H, W), ``flip`` is bool of shape (N,). The interpolation is
    bilinear. A box is never larger than its image, so antialiasing would change nothing.
    """
    rows = _positions(boxes.top, boxes.height, images.shape[2])
    columns = _positions(boxes.left, boxes.width, images.shape[3], flip)
    shape = (len(images), *images.shape[2:])
    grid = torch.stack((columns[:, None, :].expand(shape), rows[:, :, None].expand(shape)), dim=-1)
    # One kernel. Unlike matrix products with interpolation weights, it never uses TensorFloat-32.
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
