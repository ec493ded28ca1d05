"""The fast version of SimCLR's views: one kernel in place of a hundred small ones."""

import torch
from torch import Tensor

from fedaux_pl.accelerate.context import launch, next_power_of_two
from fedaux_pl.accelerate.eligibility import fusable
from fedaux_pl.accelerate.versions import fast_version
from fedaux_pl.data.views import SimCLRViews, ViewParameters, check_views

MAX_BLOCK_PIXELS = 1024  # pixels that a program processes at once


@fast_version(SimCLRViews)
class FastSimCLRViews(SimCLRViews):
    """Views in one kernel; images that require a gradient use the plain version."""

    def transform(self, images: Tensor, parameters: ViewParameters) -> Tensor:
        """Compute the views that the parameters describe."""
        if not fusable(images) or images.numel() == 0 or images.requires_grad:
            return super().transform(images, parameters)
        check_views(images, parameters)
        return views_in_one_kernel(images, parameters)


def views_in_one_kernel(images: Tensor, parameters: ViewParameters) -> Tensor:
    """``fedaux_pl.data.views.apply_views`` in one kernel, equal up to rounding."""
    count, channels, height, width = images.shape
    boxes, *others = parameters
    views = len(parameters.flip)
    out = images.new_empty(views, channels, height, width, dtype=torch.float32)
    launch("views_kernel", (views,),
        images, out, *(field.contiguous() for field in (*boxes, *others)),
        count, height, width, *images.stride(), 255.0 if images.dtype == torch.uint8 else 1.0,
        CHANNELS=channels,
        BLOCK=min(MAX_BLOCK_PIXELS, next_power_of_two(height * width, 128)),
        num_warps=4,
    )  # fmt: skip
    return out
