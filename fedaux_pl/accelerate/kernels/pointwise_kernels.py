"""1x1 convolutions as matrix products, with bias, residual and activation in the same kernel."""

import triton
import triton.language as tl

from fedaux_pl.accelerate.kernels.batch_norm_kernels import _activate


@triton.jit(do_not_specialize=["pixels"])
def pointwise_kernel(
    x, residual, y, weight, bias, pixels, upper,
    IN: tl.constexpr, OUT: tl.constexpr, PITCH: tl.constexpr, LD: tl.constexpr,
    ACT: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """act(x @ weight.T + bias + residual), where a row of ``y`` has PITCH values, OUT of them ours.

    The weight is (OUT, LD) with LD >= IN. Programs that run at the same time read the same pixels.
    """
    blocks: tl.constexpr = (OUT + BLOCK_N - 1) // BLOCK_N
    channel = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    channel_mask = channel < OUT
    start = (tl.program_id(0) // blocks).to(tl.int64) * BLOCK_M
    pixel = tl.arange(0, BLOCK_M)
    pixel_mask = pixel < pixels - start
    z = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in tl.range(0, IN, BLOCK_K, num_stages=STAGES):
        k = first + tl.arange(0, BLOCK_K)
        a = tl.load(
            x + start * IN + pixel[:, None] * IN + k[None, :],
            mask=pixel_mask[:, None] & (k < IN)[None, :], other=0.0,
        )  # fmt: skip
        b = tl.load(
            weight + k[:, None] + (channel * LD)[None, :],
            mask=(k < IN)[:, None] & channel_mask[None, :], other=0.0,
        )  # fmt: skip
        z = tl.dot(a, b, z)
    z += tl.load(bias + channel, mask=channel_mask, other=0.0).to(tl.float32)[None, :]
    mask = pixel_mask[:, None] & channel_mask[None, :]
    if HAS_RESIDUAL:
        shortcut = residual + start * OUT + pixel[:, None] * OUT + channel[None, :]
        z += tl.load(shortcut, mask=mask, other=0.0).to(tl.float32)
    target = y + start * PITCH + pixel[:, None] * PITCH + channel[None, :]
    tl.store(target, _activate(z, upper, ACT).to(y.dtype.element_ty), mask=mask)
