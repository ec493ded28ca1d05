"""Exact GELU (with the error function), and the sum of partial sums."""

import triton
import triton.language as tl

INV_SQRT_2 = tl.constexpr(0.7071067811865476)
INV_SQRT_2PI = tl.constexpr(0.3989422804014327)


@triton.jit
def gelu_kernel(x, y, size, BLOCK: tl.constexpr):
    """GELU(x) = x Phi(x), where Phi is the normal distribution function."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    values = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    values = 0.5 * values * (1.0 + tl.erf(values * INV_SQRT_2))
    tl.store(y + offsets, values.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows", "rows_per_part", "columns"])
def gelu_backward_kernel(
    dy, x, dx, partials, rows, rows_per_part, columns,
    WIDTH: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """The gradient of x (rows, WIDTH), and partial sums over the rows for that of its bias."""
    cols = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    col_mask = cols < WIDTH
    sums = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    start = tl.program_id(0) * rows_per_part
    stop = tl.minimum(start + rows_per_part, rows)
    for first in range(start, stop, BLOCK_R):
        row_ids = first + tl.arange(0, BLOCK_R)
        mask = (row_ids < stop)[:, None] & col_mask[None, :]
        offsets = row_ids.to(tl.int64)[:, None] * WIDTH + cols[None, :]
        values = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
        gradient = tl.load(dy + offsets, mask=mask, other=0.0).to(tl.float32)
        phi = 0.5 * (1.0 + tl.erf(values * INV_SQRT_2))
        gradient *= phi + values * INV_SQRT_2PI * tl.exp(-0.5 * values * values)
        tl.store(dx + offsets, gradient.to(dx.dtype.element_ty), mask=mask)
        sums += gradient
    partials += tl.program_id(0).to(tl.int64) * columns
    tl.store(partials + cols, tl.sum(sums, 0), mask=col_mask)


@triton.jit(do_not_specialize=["rows", "columns"])
def sum_partials_kernel(
    partials, sums, rows, columns, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr
):
    """Sums over the rows of (rows, columns), in a fixed order."""
    cols = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    total = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    for first in range(0, rows, BLOCK_R):
        row_ids = first + tl.arange(0, BLOCK_R)
        mask = (row_ids < rows)[:, None] & (cols < columns)[None, :]
        offsets = row_ids.to(tl.int64)[:, None] * columns + cols[None, :]
        total += tl.load(partials + offsets, mask=mask, other=0.0)
    tl.store(sums + cols, tl.sum(total, 0), mask=cols < columns)
