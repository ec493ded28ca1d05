"""Color operations on batches of images, each image with its own factor.

Images are float32 in [0, 1] of shape (N, 3, H, W), or (N, 1, H, W) for brightness and contrast. A
factor is a tensor of shape (N,). For each image the result is that of torchvision's function of the
same name on a float image. Nothing here synchronizes with the device, and no shape depends on
values.
"""

import torch
from torch import Tensor

# ITU-R BT.601, rounded as in torchvision
RED, GREEN, BLUE = 0.2989, 0.587, 0.114


def _per_image(factor: Tensor) -> Tensor:
    return factor[:, None, None, None]


def _luma(images: Tensor) -> Tensor:
    """The gray value of each pixel, shape (N, 1, H, W); images with one channel are unchanged."""
    if images.shape[1] == 1:
        return images
    luma = images[:, 0:1] * RED
    return luma.add_(images[:, 1:2], alpha=GREEN).add_(images[:, 2:3], alpha=BLUE)


def _blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Interpolate: ``base`` at factor 0, ``images`` at 1; extrapolate above 1."""
    return torch.lerp(base, images, _per_image(factor)).clamp_(0, 1)


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Scale every pixel by the factor of its image (at least 0; 1 changes nothing)."""
    return (images * _per_image(factor)).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Move every pixel away from (above 1) or towards (below 1) the image's mean gray value."""
    return _blend(_luma(images).mean(dim=(1, 2, 3), keepdim=True), images, factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Move every pixel away from (above 1) or towards (below 1) its own gray value."""
    return _blend(_luma(images), images, factor)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Shift the hue of every pixel by a fraction of the color circle, in [-0.5, 0.5]."""
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    # two reductions: torch.aminmax over such a short dimension is many times slower on the CPU
    high = images.amax(dim=1, keepdim=True)
    chroma = high - images.amin(dim=1, keepdim=True)
    # The hue is in sixths of the circle, from red. For gray pixels it is undefined, but finite,
    # and is multiplied by their chroma of 0 below.
    hue = torch.where(
        green == high, (blue - red).add_(chroma, alpha=2), (red - green).add_(chroma, alpha=4)
    )
    hue = torch.where(red == high, green - blue, hue).div_(chroma.clamp(min=1e-12))
    hue.add_(_per_image(shift), alpha=6)
    # Along the circle each channel is a trapezoid: high within one sixth of its own color (red 0,
    # green 2, blue 4), low from two sixths on. So the distance to that color is enough, without the
    # six cases of a conversion from HSV back to RGB. The difference of two hues is in [-8, 8]; its
    # distance on a circle of length 6 is the difference folded at 0, at 3 and at 0 again, which is
    # faster than a remainder.
    own = torch.arange(0, 6, 2, device=images.device, dtype=images.dtype)[:, None, None]
    distance = (hue - own).abs_().sub_(3).abs_().sub_(3).abs_()
    return high - distance.sub_(1).clamp_(0, 1).mul_(chroma)


def to_grayscale(images: Tensor, mask: Tensor) -> Tensor:
    """Make images gray where ``mask``, bool of shape (N,), is True; the shape does not change."""
    return torch.where(_per_image(mask), _luma(images), images)
