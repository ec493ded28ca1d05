"""Weights and images in the form that convolutions are fast with."""

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["size", "in_channels", "out_stride", "in_stride", "tap_stride", "padded"]
)
def fold_kernel(
    weight,
    folded,
    folded_bias,
    gamma,
    beta,
    running_mean,
    running_var,
    size,
    in_channels,
    out_stride,
    in_stride,
    tap_stride,
    padded,
    eps,
    BLOCK: tl.constexpr,
):
    """A convolution's weight and bias with BatchNorm's in them, one program an output channel.

    The result is (channels, taps, padded), with zeros beyond ``in_channels``.
    """
    channel = tl.program_id(0)
    scale = tl.load(gamma + channel) / tl.sqrt(tl.load(running_var + channel) + eps)
    bias = tl.load(beta + channel) - tl.load(running_mean + channel) * scale
    tl.store(folded_bias + channel, bias.to(folded_bias.dtype.element_ty))
    for first in range(0, size, BLOCK):
        offsets = first + tl.arange(0, BLOCK)
        keep = offsets < size
        inner = offsets % padded
        source = channel * out_stride + inner * in_stride + offsets // padded * tap_stride
        values = tl.load(weight + source, mask=keep & (inner < in_channels), other=0.0) * scale
        target = folded + channel * size + offsets
        tl.store(target, values.to(folded.dtype.element_ty), mask=keep)


@triton.jit
def standardize_kernel(
    images,
    out,
    mean,
    std,
    pixels,
    area,
    channels,
    image_stride,
    channel_stride,
    pixel_stride,
    mean_stride,
    std_stride,
    divisor,
    PADDED: tl.constexpr,
    PLANAR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """(x / divisor - mean) / std of images, channels last and padded with zeros, or as planes."""
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, PADDED)[None, :]
    image = (pixel // area).to(tl.int64)
    offsets = image * image_stride + (pixel % area) * pixel_stride
    keep = (pixel < pixels)[:, None] & (channel < channels)
    values = tl.load(images + offsets[:, None] + channel * channel_stride, mask=keep, other=0).to(
        tl.float32
    )
    centre = tl.load(mean + channel * mean_stride, mask=channel < channels, other=0.0)
    spread = tl.load(std + channel * std_stride, mask=channel < channels, other=1.0)
    values = tl.where(keep, (values / divisor - centre) / spread, 0.0)
    if PLANAR:
        target = out + (image * channels * area + pixel % area)[:, None] + channel * area
    else:
        target = out + pixel.to(tl.int64)[:, None] * PADDED + channel
        keep = (pixel < pixels)[:, None]
    tl.store(target, values.to(out.dtype.element_ty), mask=keep)
