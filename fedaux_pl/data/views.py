"""Random views of images for contrastive learning, computed for a whole batch at once.

The views are those of SimCLR (Chen et al. 2020, appendix A) without blur, as for CIFAR-10. Nothing
here loops over images, synchronizes with the device or has a shape that depends on values, so that
CUDA graphs can capture ``SimCLRViews.sample`` and ``SimCLRViews.transform``.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.transforms.v2.functional import rgb_to_grayscale_image

from fedaux_pl.errors import check_setting

# As in torchvision's RandomResizedCrop: the number of boxes drawn before falling back to the
# central one, and the largest ratio of the longer to the shorter side.
_TRIES = 10
_MAX_RATIO = 4 / 3
NUMBERS_PER_BOX = 2 * _TRIES + 2  # uniform random numbers
# ITU-R BT.601, rounded as in torchvision's rgb_to_grayscale_image
RED = 0.2989
GREEN = 0.587
BLUE = 0.114


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

    rows = min(height, round(width * _MAX_RATIO))
    columns = min(width, round(height * _MAX_RATIO))
    central = ((height - rows) // 2, (width - columns) // 2, rows, columns)
    none_fits = misfits.all(dim=0)
    return Boxes(*(x.masked_fill_(none_fits, y) for x, y in zip(boxes, central, strict=True)))


def _positions(start: Tensor, extent: Tensor, size: int, flip: Tensor | None = None) -> Tensor:
    """Return where each of ``size`` output pixels is along one side of the input, in [-1, 1].

    Clamped to the centers of the outermost pixels of the box, so that no pixel outside counts.
    """
    start = start[:, None].float()
    extent = extent[:, None].float()
    out = torch.arange(size, device=start.device, dtype=torch.float32)
    if flip is not None:
        out = torch.where(flip[:, None], size - 1 - out, out)
    inside = ((out + 0.5) * (extent / size) - 0.5).clamp_(min=0)
    pixel = torch.minimum(inside, extent - 1) + start
    return (2 * pixel + 1) / size - 1


def resized_crop(images: Tensor, boxes: Boxes, flip: Tensor) -> Tensor:
    """Crop a box from each image, resize it to the size of the image, and flip some of the crops.

    Images are float32 of shape (N, C, H, W), ``flip`` is bool of shape (N,). A box is never larger
    than its image, so antialiasing would change nothing.
    """
    rows = _positions(boxes.top, boxes.height, images.shape[2])
    columns = _positions(boxes.left, boxes.width, images.shape[3], flip)
    shape = (len(images), *images.shape[2:])
    grid = torch.stack((columns[:, None, :].expand(shape), rows[:, :, None].expand(shape)), dim=-1)
    # One kernel. Unlike matrix products with interpolation weights, it never uses TensorFloat-32.
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


# Color operations on float32 images in [0, 1], (N, 3, H, W), or (N, 1, H, W) for brightness and
# contrast, each image with its own factor. Results are those of torchvision's functions.


def _per_image(factor: Tensor) -> Tensor:
    return factor[:, None, None, None]


def _blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Interpolate: ``base`` at factor 0, ``images`` at 1; extrapolate above 1."""
    return torch.lerp(base, images, _per_image(factor)).clamp_(0, 1)


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Scale every pixel by the factor of its image (at least 0; 1 changes nothing)."""
    return (images * _per_image(factor)).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Move every pixel away from (above 1) or towards (below 1) the image's mean gray value."""
    return _blend(rgb_to_grayscale_image(images).mean(dim=(1, 2, 3), keepdim=True), images, factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Move every pixel away from (above 1) or towards (below 1) its own gray value."""
    return _blend(rgb_to_grayscale_image(images), images, factor)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Shift the hue of every pixel by a fraction of the color circle, in [-0.5, 0.5]."""
    red, green, blue = images.chunk(3, dim=1)
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
    # green 2, blue 4), low from two sixths on. The difference of two hues is in [-8, 8]; its
    # distance on a circle of length 6 is the difference folded at 0, at 3 and at 0 again.
    colors = torch.arange(0, 6, 2, device=images.device, dtype=images.dtype)[:, None, None]
    distance = (hue - colors).abs_().sub_(3).abs_().sub_(3).abs_()
    return high - distance.sub_(1).clamp_(0, 1).mul_(chroma)


class ViewParameters(NamedTuple):
    """The random numbers of N views; every tensor has shape (N,)."""

    boxes: Boxes  # the part of its image that each view shows
    flip: Tensor  # bool: whether the view is flipped left to right
    brightness: Tensor  # float32 factors; 1 changes nothing
    contrast: Tensor
    saturation: Tensor
    hue: Tensor  # float32 in [-0.5, 0.5], a fraction of the color circle; 0 changes nothing
    grayscale: Tensor  # bool: whether the view is gray

    def part(self, images: slice, views: int = 1) -> "ViewParameters":
        """Select the parameters of some images, with ``views`` views per image."""

        def some(field: Tensor) -> Tensor:
            return field.view(views, len(field) // views)[:, images].flatten()

        boxes, *others = self
        return ViewParameters(Boxes(*map(some, boxes)), *map(some, others))


def apply_views(images: Tensor, parameters: ViewParameters) -> Tensor:
    """Compute the views of images (N, C, H, W) of 1 or 3 channels: uint8, or floats in [0, 1].

    The parameters have V entries for each image: the first of every image, then the second of every
    image, ... The views have their order: float32 in [0, 1] of shape (N * V, C, H, W), also under
    autocast. Colors change in the order of the paper's pseudo-code: brightness, contrast,
    saturation, hue. (torchvision's ColorJitter shuffles the four each time.)
    """
    views_per_image = check_views(images, parameters)
    if views_per_image > 1:
        images = images.repeat(views_per_image, 1, 1, 1)
    with torch.autocast(images.device.type, enabled=False):
        views = images.float()
        if images.dtype == torch.uint8:
            views = views / 255
        views = resized_crop(views, parameters.boxes, parameters.flip)
        views = adjust_brightness(views, parameters.brightness)
        views = adjust_contrast(views, parameters.contrast)
        if views.shape[1] == 1:  # gray images have neither saturation nor hue
            return views
        views = adjust_saturation(views, parameters.saturation)
        views = adjust_hue(views, parameters.hue)
        return torch.where(_per_image(parameters.grayscale), rgb_to_grayscale_image(views), views)


def check_views(images: Tensor, parameters: ViewParameters) -> int:
    """Check the arguments of ``apply_views`` and return the number of views of each."""
    is_known = images.dtype == torch.uint8 or images.is_floating_point()
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not is_known:
        raise ValueError(
            f"images: got {images.dtype} of shape {tuple(images.shape)}; expected uint8, or floats "
            "in [0, 1], of shape (N, C, H, W) with 1 or 3 channels: convert them first"
        )
    count = len(parameters.flip)
    views_per_image = max(1, count // max(1, len(images)))
    if views_per_image * len(images) != count:
        raise ValueError(
            f"parameters: got those of {count} views; expected equally many for each of "
            f"{len(images)} images: sample them for this batch"
        )
    return views_per_image


@dataclass(frozen=True)
class ViewSettings:
    """How random views differ from their images, as plain values.

    Args:
        min_scale: Smallest area of the random crop, as a fraction of the image, in (0, 1].
        flip: Probability that a view is flipped left to right.
        jitter: Probability that the colors of a view are changed.
        strength: Strength s of the color change, in [0, 2.5]: brightness, contrast and saturation
            vary by up to 0.8 s, hue by up to 0.2 s of the color circle. The paper takes 0.5 for
            CIFAR-10 and 1 for ImageNet.
        grayscale: Probability that a view is gray.
    """

    min_scale: float = 0.08
    flip: float = 0.5
    jitter: float = 0.8
    strength: float = 0.5
    grayscale: float = 0.2

    def __post_init__(self) -> None:
        expected = "lie in (0, 1], the part of the image that the smallest crop covers"
        check_setting("views.min_scale", self.min_scale, 0 < self.min_scale <= 1, expected)
        for name in ("flip", "jitter", "grayscale"):
            value = getattr(self, name)
            check_setting(f"views.{name}", value, 0 <= value <= 1, "lie in [0, 1], a probability")
        # beyond 2.5 the hue would shift by more than half the circle
        expected = "lie in [0, 2.5], the paper's s (0.5 for CIFAR-10, 1 for ImageNet, 0 for none)"
        check_setting("views.strength", self.strength, 0 <= self.strength <= 2.5, expected)

    @classmethod
    def pop_from(cls, values: dict[str, Any]) -> Self:
        """Take the settings out of plain values, among which checkpoints have them."""
        return cls(**{field.name: values.pop(field.name) for field in fields(cls)})


class SimCLRViews(nn.Module):
    """Random views of each image of a batch, as in SimCLR.

    Args:
        settings: How views differ from their images.
        **options: In place of settings, some of their values.

    Examples:
        >>> images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
        >>> views = SimCLRViews(strength=0.5)(images, of_each=2)
        >>> first, second = views.chunk(2)
        >>> first.shape, first.dtype
        (torch.Size([8, 3, 32, 32]), torch.float32)
    """

    def __init__(self, settings: ViewSettings | None = None, **options: float) -> None:
        super().__init__()
        self.settings = settings or ViewSettings(**options)

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return str(self.settings)

    def sample(
        self,
        count: int,
        height: int,
        width: int,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> ViewParameters:
        """Draw the parameters of views, independently of each other.

        Factors are drawn as by torchvision's ColorJitter. Views without jitter get the factors that
        change nothing. The numbers of a seed depend on the type of device.
        """
        # torch.compile with batches of several sizes fails if None is passed as generator
        given: dict[str, Any] = {} if generator is None else {"generator": generator}
        shape = (7 + NUMBERS_PER_BOX, count)
        uniform = torch.rand(shape, dtype=torch.float32, device=device, **given)
        unchanged = uniform[1] >= self.settings.jitter
        spread = 0.8 * self.settings.strength
        lowest = max(0.0, 1 - spread)
        factors = uniform[2:5].mul(1 + spread - lowest).add_(lowest).masked_fill_(unchanged, 1)
        return ViewParameters(
            boxes=boxes_from(uniform[7:], height, width, self.settings.min_scale),
            flip=uniform[0] < self.settings.flip,
            brightness=factors[0],
            contrast=factors[1],
            saturation=factors[2],
            hue=uniform[5].sub(0.5).mul_(0.4 * self.settings.strength).masked_fill_(unchanged, 0),
            grayscale=uniform[6] < self.settings.grayscale,
        )

    def transform(self, images: Tensor, parameters: ViewParameters) -> Tensor:
        """Compute the views that the parameters describe, see ``apply_views``."""
        return apply_views(images, parameters)

    def forward(
        self, images: Tensor, generator: torch.Generator | None = None, of_each: int = 1
    ) -> Tensor:
        """Make ``of_each`` random views of each image, in the order of ``apply_views``.

        The generator is one on the images' device (default: the device's own).
        """
        height, width = images.shape[-2:]
        count = of_each * len(images)
        return self.transform(images, self.sample(count, height, width, images.device, generator))
