"""The stem, the first convolution of a network for small images, and the layout of its input.

Tensor cores need channels-last tensors whose number of channels is a multiple of 8, so images are
padded with channels of zeros. Without a backward pass the stem also has a kernel for NCHW images.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fedaux_pl.accelerate.context import launch
from fedaux_pl.accelerate.convolution.batch_norm import Activation, channels_last
from fedaux_pl.accelerate.convolution.tiling import MIN_BLOCK, next_power_of_two

ALIGNMENT = 8
"""Channels are padded to a multiple of this."""
STEM_TILE = 8192  # pixels times output channels of a tile
STEM_PROGRAMS = 1584  # four waves of three programs on each of an H200's 132 multiprocessors
STEM_STAGES = 1  # 4,096 images take 0.28 ms on an H200; 0.35 ms with two stages, 0.34 with three
MAX_STEM_CHANNELS = 128
# Without a backward pass, images with at most this many channels need no padding to 8 channels. On
# an H200, 5,000 images are standardized and convolved to 64 channels in 0.023 + 0.250 ms as NCHW,
# and in 0.033 + 0.330 ms padded.
MAX_NCHW_CHANNELS = 3


def pad_channels(x: Tensor) -> Tensor:
    """Append channels of zeros up to a multiple of 8.

    The result of :func:`standardize` is a slice of a tensor with these channels; then that tensor
    is returned, without a copy.
    """
    n, channels, height, width = x.shape
    missing = -channels % ALIGNMENT
    if not missing:
        return x
    padded = channels + missing
    strides = (height * width * padded, 1, width * padded, padded)
    end = (x.storage_offset() + n * strides[0]) * x.element_size()
    if (
        x.stride() == strides
        and not x.requires_grad
        and x.storage_offset() % padded == 0
        and end <= x.untyped_storage().nbytes()
    ):
        return x.as_strided((n, padded, height, width), strides)
    return F.pad(channels_last(x), (0, 0, 0, 0, 0, missing))


def standardize(
    x: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype, *, nchw: bool = False
) -> Tensor:
    """Compute (x - mean) / std of images in the layout of the stem, in one kernel.

    Args:
        x: Images (N, C, H, W), uint8 in 0..255, which are divided by 255, or floats in [0, 1].
        mean: One number or C numbers, float32.
        std: One number or C numbers, float32.
        dtype: The dtype of the result.
        nchw: Whether the result is a contiguous NCHW tensor.

    Returns:
        By default a slice, the first C channels, of a channels-last tensor that is padded with
        zeros to a multiple of 8 channels; so :func:`pad_channels` copies nothing.
    """
    n, channels, height, width = x.shape
    if x.stride(2) != width * x.stride(3):
        x = x.contiguous()
    padded = channels + -channels % ALIGNMENT
    shape = (n, channels, height, width) if nchw else (n, height, width, padded)
    out = torch.empty(shape, dtype=dtype, device=x.device)
    pixels = n * height * width
    block = 256
    launch("standardize_kernel", (-(-pixels // block),),
        x, out, mean, std, pixels, height * width, channels,
        x.stride(0), x.stride(1), x.stride(3), int(mean.numel() > 1), int(std.numel() > 1),
        255.0 if x.dtype == torch.uint8 else 1.0,
        PADDED=next_power_of_two(channels) if nchw else padded, NCHW=nchw, BLOCK=block,
    )  # fmt: skip
    return out if nchw else out.permute(0, 3, 1, 2)[:, :channels]


def is_stem(conv: nn.Conv2d) -> bool:
    """Whether :func:`convolve_images` can compute an ungrouped convolution."""
    return (
        conv.in_channels <= ALIGNMENT
        and conv.out_channels % ALIGNMENT == 0
        and conv.out_channels <= MAX_STEM_CHANNELS
        and conv.kernel_size == (3, 3)
        and conv.stride == conv.padding == conv.dilation == (1, 1)
    )


def prepare_stem_input(x: Tensor) -> Tensor:
    """Convert images to a layout that :func:`convolve_images` supports.

    Without a backward pass NCHW images stay as they are; cuDNN's backward pass is slow for them.
    Other images are converted to channels last and padded to 8 channels.
    """
    if x.shape[1] <= MAX_NCHW_CHANNELS and x.is_contiguous() and not torch.is_grad_enabled():
        return x
    return channels_last(pad_channels(x))


def convolve_images(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Activation = Activation(False),  # noqa: B008 - frozen
) -> Tensor:
    """Compute act(conv(x) + bias) of a stem, without gradients.

    Args:
        x: At least one image: (N, 8, H, W), channels last, or (N, 1 to 3, H, W), contiguous.
        weight: Weight (C, 8, 3, 3), channels last, in the dtype of ``x``; stride and padding are 1.
        bias: C numbers, or None.
        activation: The activation.

    Returns:
        Activations (N, C, H, W), channels last.
    """
    n, in_channels, height, width = x.shape
    channels = len(weight)
    out = x.new_empty(n, height, width, channels)
    pixels = n * height * width
    block_channels = next_power_of_two(channels, MIN_BLOCK)
    block = min(128, STEM_TILE // block_channels)
    chunk = -(-pixels // (STEM_PROGRAMS * block)) * block
    kernel, options = "stem_kernel", {}
    if in_channels <= MAX_NCHW_CHANNELS:
        kernel, options = "nchw_stem_kernel", {"IN_CHANNELS": in_channels}
    launch(
        kernel, (-(-pixels // chunk),),
        x, weight, weight if bias is None else bias, out, pixels, height, width, chunk,
        activation.bound, CHANNELS=channels, ACT=activation.kind, HAS_BIAS=bias is not None,
        BLOCK_M=block, BLOCK_C=block_channels, num_warps=4, num_stages=STEM_STAGES, **options,
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)


def convolve_stem(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Compute conv(x) of a stem without bias, in the dtype of ``x`` and with gradients."""
    if x.shape[1] <= MAX_NCHW_CHANNELS:
        return convolve_images(x, pad_weight(conv.weight, ALIGNMENT, x.dtype))
    out: Tensor = _Stem.apply(x, conv.weight)  # type: ignore[no-untyped-call]
    return out


class _Stem(torch.autograd.Function):
    """Forward by the Triton kernel, backward by cuDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x = channels_last(x)
        padded = pad_weight(weight, x.shape[1], x.dtype)
        ctx.save_for_backward(x, padded)
        ctx.weight = weight
        return convolve_images(x, padded)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, padded = ctx.saved_tensors
        output_mask = (*ctx.needs_input_grad, False)
        ones = (1, 1)  # stride, padding and dilation
        dx, dweight, _ = torch.ops.aten.convolution_backward(
            channels_last(dy), x, padded, None, ones, ones, ones, False, (0, 0), 1, output_mask
        )
        if dweight is not None:
            # with the layout and dtype of the parameter, and without the padding
            dweight = torch.empty_like(ctx.weight).copy_(dweight[:, : ctx.weight.shape[1]])
        return dx, dweight


def pad_weight(weight: Tensor, in_channels: int, dtype: torch.dtype) -> Tensor:
    """Convert a weight to channels last and ``dtype``, and pad its input channels with zeros."""
    given = weight.shape[1]
    if in_channels == given:
        return weight.to(dtype, memory_format=torch.channels_last)
    padded = weight.new_zeros(weight.shape[0], *weight.shape[2:], in_channels, dtype=dtype)
    padded[..., :given].copy_(weight.permute(0, 2, 3, 1))
    return padded.permute(0, 3, 1, 2)
