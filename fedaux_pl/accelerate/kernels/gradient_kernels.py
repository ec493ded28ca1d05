"""Kernels on the gradients of samples."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count"])
def weighted_sum_kernel(rows, scales, out, count, width, BLOCK: tl.constexpr):
    """The sum of ``count`` rows, each times its scale; a row of scale 0 may hold NaN."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < width
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(count):
        scale = tl.load(scales + row)
        values = tl.load(rows + column, mask=is_column, other=0.0).to(tl.float32)
        total += tl.where(scale > 0, scale * values, 0.0)
        rows += width
    tl.store(out + column, total, mask=is_column)
