"""BatchNorm folded into the weight of a convolution."""

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["size", "in_channels", "out_stride", "in_stride", "tap_stride", "padded"]
)
def fold_kernel(
    weight, folded, folded_bias, gamma, beta, running_mean, running_var,
    size, in_channels, out_stride, in_stride, tap_stride, padded, eps, BLOCK: tl.constexpr,
):  # fmt: skip
    """The weight and bias of a convolution with BatchNorm folded in.

    A program computes one output channel. ``folded`` is (channels, taps, padded) with taps = H * W
    and zeros from input channel ``in_channels`` on; ``size`` is taps * padded.
    """
    channel = tl.program_id(0)
    scale = tl.load(gamma + channel) / tl.sqrt(tl.load(running_var + channel) + eps)
    bias = tl.load(beta + channel) - tl.load(running_mean + channel) * scale
    tl.store(folded_bias + channel, bias.to(folded_bias.dtype.element_ty))
    for first in range(0, size, BLOCK):
        offsets = first + tl.arange(0, BLOCK)
        mask = offsets < size
        in_channel = offsets % padded
        source = channel * out_stride + in_channel * in_stride + offsets // padded * tap_stride
        values = tl.load(weight + source, mask=mask & (in_channel < in_channels), other=0.0) * scale
        target = folded + channel * size + offsets
        tl.store(target, values.to(folded.dtype.element_ty), mask=mask)
