"""Images as tensor cores want them: channels last, and by the eight."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fedaux_pl.models.batch_norm import Activation, channels_last, on_device_of

ALIGNMENT = 8
# Of the stem in one kernel: pixels times channels of a tile, loads under way, and programs, which
# are four times as many as a large GPU with three on each multiprocessor runs at once.
STEM_TILE = 8192
STEM_PROGRAMS = 1584
STEM_STAGES = 1  # on an H200 4,096 images take 0.28 ms, with two stages 0.35, with three 0.34
MOST_STEM_CHANNELS = 128
# Images of so few channels need not be by the eight where nothing is to go back: on an H200 5,000
# of them are standardised and convolved to 64 channels in 0.033 and 0.330 ms that way, as planes in
# 0.023 and 0.250 ms.
MOST_PLANES = 3


def pad_channels(x: Tensor) -> Tensor:
    """Append channels of zeros up to a multiple of eight.

    Where the tensor is already a part of such a wider one (see :func:`standardize`), that one is
    returned without a copy.
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
    x: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype, *, planar: bool = False
) -> Tensor:
    """(x - mean) / std of images as the stem wants them, in one pass.

    Args:
        x: Images (N, C, H, W), uint8 in 0..255 or floats in [0, 1].
        mean: What is subtracted, one number or C of them, float32.
        std: What is divided by, one number or C of them, float32.
        dtype: The dtype of the result.
        planar: Whether the result is a contiguous tensor, for :func:`stem_images`.

    Returns:
        The first C channels of a channels-last tensor whose further ones are zeros, so that
        :func:`pad_channels` costs nothing; or planes.
    """
    from fedaux_pl.models import kernels

    n, channels, height, width = x.shape
    if x.stride(2) != width * x.stride(3):
        x = x.contiguous()
    padded = channels + -channels % ALIGNMENT
    shape = (n, channels, height, width) if planar else (n, height, width, padded)
    out = torch.empty(shape, dtype=dtype, device=x.device)
    pixels = n * height * width
    block = 256
    with on_device_of(x):
        kernels.standardize_kernel[(-(-pixels // block),)](
            x,
            out,
            mean,
            std,
            pixels,
            height * width,
            channels,
            x.stride(0),
            x.stride(1),
            x.stride(3),
            int(mean.numel() > 1),
            int(std.numel() > 1),
            255.0 if x.dtype == torch.uint8 else 1.0,
            PADDED=1 << (channels - 1).bit_length() if planar else padded,
            PLANAR=planar,
            BLOCK=block,
        )
    return out if planar else out.permute(0, 3, 1, 2)[:, :channels]


def is_stem(conv: nn.Conv2d) -> bool:
    """Whether a convolution over all channels is one that :func:`convolve_images` does."""
    return (
        conv.in_channels <= ALIGNMENT
        and conv.out_channels % 16 == 0
        and conv.out_channels <= MOST_STEM_CHANNELS
        and conv.kernel_size == (3, 3)
        and conv.stride == conv.padding == conv.dilation == (1, 1)
    )


def stem_images(x: Tensor) -> Tensor:
    """Images in a form that :func:`convolve_images` takes: as planes, if they are, or by the eight.

    Where something may go back they are not left as planes, which cuDNN is slow with.
    """
    if x.shape[1] <= MOST_PLANES and x.is_contiguous() and not torch.is_grad_enabled():
        return x
    return channels_last(pad_channels(x))


def convolve_images(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False
) -> Tensor:
    """conv(x) + bias of a stem, or its ReLU, which cuDNN has no fast kernel for.

    Args:
        x: Images (N, 8, H, W), channels last, or planes (N, 3, H, W) or fewer, contiguous; at
            least one.
        weight: Weight (C, 8, 3, 3), channels last and in the dtype of ``x``; stride and padding
            are 1.
        bias: C numbers, if there is a bias.
        relu: Whether there is an activation.
    """
    from fedaux_pl.models import kernels

    n, planes, height, width = x.shape
    channels = len(weight)
    out = x.new_empty(n, height, width, channels)
    pixels = n * height * width
    block_channels = max(16, 1 << (channels - 1).bit_length())
    block = min(128, STEM_TILE // block_channels)
    chunk = -(-pixels // (STEM_PROGRAMS * block)) * block
    kernel, options = kernels.stem_kernel, {}
    if planes <= MOST_PLANES:
        kernel, options = kernels.planar_stem_kernel, {"PLANES": planes}
    with on_device_of(x):
        kernel[(-(-pixels // chunk),)](
            x,
            weight,
            weight if bias is None else bias,
            out,
            pixels,
            height,
            width,
            chunk,
            CHANNELS=channels,
            ACT=Activation(relu).kind,
            HAS_BIAS=bias is not None,
            BLOCK_M=block,
            BLOCK_C=block_channels,
            num_warps=4,
            num_stages=STEM_STAGES,
            **options,
        )
    return out.permute(0, 3, 1, 2)


def convolve_stem(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """The convolution of a stem without bias, in the dtype of ``x`` and with gradients.

    Args:
        conv: A convolution that :func:`is_stem`.
        x: Images of :func:`stem_images`; beyond the convolution's channels they are zeros.
    """
    if x.shape[1] <= MOST_PLANES:
        return convolve_images(x, widen(conv.weight, ALIGNMENT, x.dtype))
    out: Tensor = _Stem.apply(x, conv.weight)  # type: ignore[no-untyped-call]
    return out


class _Stem(torch.autograd.Function):
    """Our kernel forward and cuDNN's backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x = channels_last(x)
        wide = widen(weight, x.shape[1], x.dtype)
        ctx.save_for_backward(x, wide)
        ctx.weight = weight
        return convolve_images(x, wide)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, wide = ctx.saved_tensors
        wanted = (*ctx.needs_input_grad, False)
        ones = (1, 1)  # stride, padding and dilation
        dx, dwide, _ = torch.ops.aten.convolution_backward(
            channels_last(dy), x, wide, None, ones, ones, ones, False, (0, 0), 1, wanted
        )
        if dwide is not None:
            # in layout and dtype the parameter's
            dwide = torch.empty_like(ctx.weight).copy_(dwide[:, : ctx.weight.shape[1]])
        return dx, dwide


def widen(weight: Tensor, channels: int, dtype: torch.dtype) -> Tensor:
    """A weight channels last, in a dtype and with zeros for further input channels."""
    own = weight.shape[1]
    if channels == own:
        return weight.to(dtype, memory_format=torch.channels_last)
    wide = weight.new_zeros(weight.shape[0], *weight.shape[2:], channels, dtype=dtype)
    wide[..., :own].copy_(weight.permute(0, 2, 3, 1))
    return wide.permute(0, 3, 1, 2)
