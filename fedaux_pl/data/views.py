"""Random views of images for contrastive learning, computed for a whole batch at once.

The views are those of SimCLR (Chen et al. 2020, "A Simple Framework for Contrastive Learning of
Visual Representations", appendix A) without blur, as the paper uses them on CIFAR-10: random
resized crop, horizontal flip, colour jitter and random grayscale. Drawing the random numbers
(:meth:`SimCLRViews.sample`) and using them (:func:`apply_views`) are separate. Neither loops over
images, reads a value back to the host or has a shape that depends on values, so that both can be
captured in a CUDA graph and compiled without a break. On CUDA devices, where it would take longer
to start a hundred small kernels than to run them, views are made by one.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedaux_pl.data import colour
from fedaux_pl.data.crop import NUMBERS, Boxes, boxes_from, resized_crop
from fedaux_pl.models.batch_norm import on_device_of
from fedaux_pl.models.fused import fusable

MOST_PIXELS = 1024  # that a program has in hand at once


class ViewParameters(NamedTuple):
    """The random numbers of N views; every tensor has shape (N,).

    Args:
        boxes: The part of its image that each view shows.
        flip: Whether it is mirrored left to right, bool.
        brightness: Factor, float32; 1 changes nothing, also in the next two.
        contrast: Factor, float32.
        saturation: Factor, float32.
        hue: Shift as a part of the colour circle, float32 in [-0.5, 0.5]; 0 changes nothing.
        grayscale: Whether the view is gray, bool.
    """

    boxes: Boxes
    flip: Tensor
    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    hue: Tensor
    grayscale: Tensor

    def part(self, of_each: slice, views: int = 1) -> "ViewParameters":
        """The parameters of some of the images, where these have several views each.

        Args:
            of_each: Which images.
            views: Views of an image, in the order of :func:`apply_views`.
        """

        def some(field: Tensor) -> Tensor:
            return field.view(views, len(field) // views)[:, of_each].flatten()

        boxes, *others = self
        return ViewParameters(Boxes(*map(some, boxes)), *map(some, others))


def apply_views(images: Tensor, parameters: ViewParameters) -> Tensor:
    """Makes the views of images that the parameters describe.

    Colour changes in the order of the paper's pseudo-code: brightness, contrast, saturation, hue.
    (torchvision's ColorJitter shuffles these four each time.) Everything is computed in float32,
    under autocast too.

    Args:
        images: Shape (N, C, H, W) with one or three channels: uint8, or floating point in [0, 1].
        parameters: One entry for each image or several, the first of all images before the second
            of any, on the images' device. Saturation, hue and grayscale have no effect on one
            channel.

    Returns:
        The views, float32 in [0, 1], of the images' shape but for their number, in the order of the
        parameters.

    Raises:
        ValueError: If the images have another shape or type, or their number does not fit to the
            parameters.
    """
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
    of_each = max(1, count // max(1, len(images)))
    if of_each * len(images) != count:
        raise ValueError(
            f"parameters must be those of {len(images)} images, as many entries for each, but are "
            f"those of {count}: sample them for this batch"
        )
    if fusable(images) and images.numel() > 0 and not images.requires_grad:
        return _in_one_kernel(images, parameters)
    if of_each > 1:
        images = images.repeat(of_each, 1, 1, 1)
    with torch.autocast(images.device.type, enabled=False):
        views = images.float()
        if images.dtype == torch.uint8:
            views = views / 255
        views = resized_crop(views, parameters.boxes, parameters.flip)
        views = colour.adjust_brightness(views, parameters.brightness)
        views = colour.adjust_contrast(views, parameters.contrast)
        views = colour.adjust_saturation(views, parameters.saturation)
        views = colour.adjust_hue(views, parameters.hue)
        return colour.to_grayscale(views, parameters.grayscale)


def _in_one_kernel(images: Tensor, parameters: ViewParameters) -> Tensor:
    """The same with all of it in one kernel, but for rounding."""
    from fedaux_pl.data import kernels

    count, channels, height, width = images.shape
    boxes, *others = parameters
    views = len(parameters.flip)
    out = images.new_empty(views, channels, height, width, dtype=torch.float32)
    with on_device_of(images):
        kernels.views_kernel[(views,)](
            images,
            out,
            *(field.contiguous() for field in (*boxes, *others)),
            count,
            height,
            width,
            *images.stride(),
            255.0 if images.dtype == torch.uint8 else 1.0,
            CHANNELS=channels,
            BLOCK=min(MOST_PIXELS, max(128, 1 << (height * width - 1).bit_length())),
            num_warps=4,
        )
    return out


class SimCLRViews(nn.Module):
    """Random views of each image of a batch, after SimCLR.

    Args:
        min_scale: Smallest area of the random crop, as a fraction of the image, in (0, 1].
        flip: Probability that a view is mirrored left to right.
        jitter: Probability that the colours of a view are changed.
        strength: Strength s of that change, in [0, 2.5]: brightness, contrast and saturation vary
            by up to 0.8 s, hue by up to 0.2 s of the colour circle. The paper takes 0.5 for
            CIFAR-10 and 1 for ImageNet.
        grayscale: Probability that a view is gray.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        min_scale: float = 0.08,
        flip: float = 0.5,
        jitter: float = 0.8,
        strength: float = 0.5,
        grayscale: float = 0.2,
    ) -> None:
        super().__init__()
        if not 0 < min_scale <= 1:
            raise ValueError(
                f"min_scale must lie in (0, 1], but is {min_scale}: give the fraction of the image "
                "that the smallest crop covers (1 for crops as large as the image allows)"
            )
        for name, value in (("flip", flip), ("jitter", jitter), ("grayscale", grayscale)):
            if not 0 <= value <= 1:
                raise ValueError(
                    f"{name} must lie in [0, 1], but is {value}: give a probability (0 to switch "
                    "it off)"
                )
        # beyond 2.5 the hue would turn by more than half the circle
        if not 0 <= strength <= 2.5:
            raise ValueError(
                f"strength must lie in [0, 2.5], but is {strength}: give the paper's s (0.5 for "
                "CIFAR-10, 1 for ImageNet, 0 for no change of colour)"
            )
        self.min_scale = min_scale
        self.flip = flip
        self.jitter = jitter
        self.strength = strength
        self.grayscale = grayscale

    def extra_repr(self) -> str:
        """The settings, for printing."""
        names = ("min_scale", "flip", "jitter", "strength", "grayscale")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)

    def sample(
        self,
        count: int,
        height: int,
        width: int,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> ViewParameters:
        """Draws the parameters of views, each independently of the others.

        Factors are drawn like those of torchvision's ColorJitter. Where the jitter spares an image,
        they are those that change nothing.

        Args:
            count: Number of views N.
            height: Rows of an image.
            width: Columns of an image.
            device: Where to draw (default: torch's default device).
            generator: Source of randomness on that device (default: the device's own). The same
                seed gives other numbers on another kind of device.

        Returns:
            The parameters, on the device.
        """
        uniform = torch.rand(
            (7 + NUMBERS, count), dtype=torch.float32, device=device, generator=generator
        )
        spared = uniform[1] >= self.jitter
        spread = 0.8 * self.strength
        lowest = max(0.0, 1 - spread)
        factors = uniform[2:5].mul(1 + spread - lowest).add_(lowest).masked_fill_(spared, 1)
        return ViewParameters(
            boxes=boxes_from(uniform[7:], height, width, self.min_scale),
            flip=uniform[0] < self.flip,
            brightness=factors[0],
            contrast=factors[1],
            saturation=factors[2],
            hue=uniform[5].sub(0.5).mul_(0.4 * self.strength).masked_fill_(spared, 0),
            grayscale=uniform[6] < self.grayscale,
        )

    def forward(
        self, images: Tensor, generator: torch.Generator | None = None, of_each: int = 1
    ) -> Tensor:
        """Makes random views of each image.

        Args:
            images: Shape (N, C, H, W) with one or three channels: uint8, or floating point in
                [0, 1].
            generator: Source of randomness on the images' device (default: the device's own).
            of_each: How many views of each image.

        Returns:
            The views, float32 in [0, 1] of shape (N * of_each, C, H, W): one of each image, then a
            second one of each, and so on.
        """
        height, width = images.shape[-2:]
        count = of_each * len(images)
        return apply_views(images, self.sample(count, height, width, images.device, generator))
