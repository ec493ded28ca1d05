"""Colour operations on batches of images, each image with its own factor.

Images are float32 in [0, 1] of shape (N, C, H, W) with one or three channels, and a factor is a
tensor of shape (N,). For each image the result is that of torchvision's function of the same name
on a float image. Nothing here reads a value back to the host, and no shape depends on values.
"""

import torch
from torch import Tensor

# ITU-R BT.601, rounded the way torchvision rounds it
RED, GREEN, BLUE = 0.2989, 0.587, 0.114


def _per_image(factor: Tensor) -> Tensor:
    return factor[:, None, None, None]


def _luma(images: Tensor) -> Tensor:
    """The gray value of each pixel, shape (N, 1, H, W); of one channel that channel."""
    if images.shape[1] == 1:
        return images
    luma = images[:, 0:1] * RED
    return luma.add_(images[:, 1:2], alpha=GREEN).add_(images[:, 2:3], alpha=BLUE)


def _blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Base at factor 0, the images at 1, and past them above 1."""
    return torch.lerp(base, images, _per_image(factor)).clamp_(0, 1)


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Scales every pixel by the factor of its image (at least 0; 1 changes nothing)."""
    return (images * _per_image(factor)).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Moves every pixel away from (above 1) or towards (below 1) the image's mean gray value."""
    return _blend(_luma(images).mean(dim=(1, 2, 3), keepdim=True), images, factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Moves every pixel away from (above 1) or towards (below 1) its own gray value.

    One channel has no saturation: the images come back unchanged.
    """
    if images.shape[1] == 1:
        return images
    return _blend(_luma(images), images, factor)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turns the hue of every pixel by a part of the colour circle.

    One channel has no hue: the images come back unchanged.

    Args:
        images: The batch.
        shift: Shape (N,), in [-0.5, 0.5], where 0 changes nothing and both ends give the opposite
            colour.
    """
    if images.shape[1] == 1:
        return images
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    # two reductions: torch.aminmax over such a short dimension is many times slower on the CPU
    high = images.amax(dim=1, keepdim=True)
    chroma = high - images.amin(dim=1, keepdim=True)
    # The hue counts sixths of the circle from red. A gray pixel has none; whatever stands for it
    # is multiplied by its chroma of 0 below, so it only has to be finite.
    hue = torch.where(
        green == high, (blue - red).add_(chroma, alpha=2), (red - green).add_(chroma, alpha=4)
    )
    hue = torch.where(red == high, green - blue, hue).div_(chroma.clamp(min=1e-12))
    hue.add_(_per_image(shift), alpha=6)
    # Along the circle each channel is a trapezium: high up to one sixth to either side of its own
    # colour (red 0, green 2, blue 4), low from two sixths on. That takes only the distance to the
    # channel's own colour, and none of the six cases of a conversion back from hue, saturation and
    # value. The difference reaches 8 either way, so the distance on a circle of length 6 is the
    # difference folded at 0, at 3 and at 0 again; a remainder would be slower.
    own = torch.arange(0, 6, 2, device=images.device, dtype=images.dtype)[:, None, None]
    distance = (hue - own).abs_().sub_(3).abs_().sub_(3).abs_()
    return high - distance.sub_(1).clamp_(0, 1).mul_(chroma)


def to_grayscale(images: Tensor, mask: Tensor) -> Tensor:
    """Turns the images that the mask (bool, shape (N,)) selects gray, keeping their channels."""
    if images.shape[1] == 1:
        return images
    return torch.where(_per_image(mask), _luma(images), images)
