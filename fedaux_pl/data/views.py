"""Random views of images for contrastive learning, computed for a whole batch at once.

The views are those of SimCLR (Chen et al. 2020, "A Simple Framework for Contrastive Learning of
Visual Representations", appendix A) without blur, as the paper uses them on CIFAR-10: random
resized crop, horizontal flip, color jitter and random grayscale. Drawing the random numbers
(``SimCLRViews.sample``) and applying them (``SimCLRViews.transform``) are separate steps.
Neither loops over images, synchronizes with the device or has a shape that depends on values, so
both can be captured in a CUDA graph and compiled without a graph break.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from fedaux_pl.data import color
from fedaux_pl.data.crop import NUMBERS_PER_BOX, Boxes, boxes_from, resized_crop
from fedaux_pl.data.input_checks import check_setting


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
    """Compute the views of images that the parameters describe.

    Colors change in the order of the paper's pseudo-code: brightness, contrast, saturation, hue.
    (torchvision's ColorJitter shuffles the four each time.) Everything is computed in float32,
    also under autocast.

    Args:
        images: Shape (N, C, H, W) with one or three channels: uint8, or floating point in [0, 1].
        parameters: V entries for each image, on the images' device: the first of every image, then
            the second of every image, ...

    Returns:
        The views, float32 in [0, 1] of shape (N * V, C, H, W), in the order of the parameters.
    """
    views_per_image = check_views(images, parameters)
    if views_per_image > 1:
        images = images.repeat(views_per_image, 1, 1, 1)
    with torch.autocast(images.device.type, enabled=False):
        views = images.float()
        if images.dtype == torch.uint8:
            views = views / 255
        views = resized_crop(views, parameters.boxes, parameters.flip)
        views = color.adjust_brightness(views, parameters.brightness)
        views = color.adjust_contrast(views, parameters.contrast)
        if views.shape[1] == 1:  # gray images have neither saturation nor hue
            return views
        views = color.adjust_saturation(views, parameters.saturation)
        views = color.adjust_hue(views, parameters.hue)
        return color.to_grayscale(views, parameters.grayscale)


def check_views(images: Tensor, parameters: ViewParameters) -> int:
    """Check the arguments of ``apply_views`` and return the number of views per image."""
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            "images must have shape (N, C, H, W) with 1 or 3 channels, but have shape "
            f"{tuple(images.shape)}: reorder the dimensions or select channels first"
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ValueError(
            "images must be uint8, or floating point in [0, 1], but are "
            f"{images.dtype}: convert them first"
        )
    count = len(parameters.flip)
    views_per_image = max(1, count // max(1, len(images)))
    if views_per_image * len(images) != count:
        raise ValueError(
            f"parameters must be those of {len(images)} images, equally many for each, but are "
            f"those of {count}: sample them for this batch"
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
        return cls(**{f.name: values.pop(f.name) for f in fields(cls) if f.name in values})


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
