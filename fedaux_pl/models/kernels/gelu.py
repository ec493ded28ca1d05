"""GELU by the error function, and the adding up of partial sums."""

import triton
import triton.language as tl

ROOT = tl.constexpr(0.7071067811865476)  # 1 / sqrt(2)
PEAK = tl.constexpr(0.3989422804014327)  # 1 / sqrt(2 pi)


@triton.jit
def gelu_kernel(x, y, size, BLOCK: tl.constexpr):
    """X times the share of the normal distribution below x."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < size
    values = tl.load(x + offsets, mask=keep, other=0.0).to(tl.float32)
    values = 0.5 * values * (1.0 + tl.erf(values * ROOT))
    tl.store(y + offsets, values.to(y.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["rows", "chunk_rows", "columns"])
def gelu_backward_kernel(
    dy,
    x,
    dx,
    partials,
    rows,
    chunk_rows,
    columns,
    WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """The gradient of x (rows, WIDTH), and partial sums over the rows for that of its bias."""
    cols = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    inside = cols < WIDTH
    sums = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    start = tl.program_id(0) * chunk_rows
    stop = tl.minimum(start + chunk_rows, rows)
    for first in range(start, stop, BLOCK_R):
        lines = first + tl.arange(0, BLOCK_R)
        keep = (lines < stop)[:, None] & inside[None, :]
        offsets = lines.to(tl.int64)[:, None] * WIDTH + cols[None, :]
        values = tl.load(x + offsets, mask=keep, other=0.0).to(tl.float32)
        gradient = tl.load(dy + offsets, mask=keep, other=0.0).to(tl.float32)
        share = 0.5 * (1.0 + tl.erf(values * ROOT))
        gradient *= share + values * PEAK * tl.exp(-0.5 * values * values)
        tl.store(dx + offsets, gradient.to(dx.dtype.element_ty), mask=keep)
        sums += gradient
    partials += tl.program_id(0).to(tl.int64) * columns
    tl.store(partials + cols, tl.sum(sums, 0), mask=inside)


@triton.jit(do_not_specialize=["rows", "columns"])
def sum_partials_kernel(
    partials, sums, rows, columns, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr
):
    """Sums over the rows of (rows, columns), in a fixed order."""
    cols = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    total = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    for first in range(0, rows, BLOCK_R):
        lines = first + tl.arange(0, BLOCK_R)
        keep = (lines < rows)[:, None] & (cols < columns)[None, :]
        offsets = lines.to(tl.int64)[:, None] * columns + cols[None, :]
        total += tl.load(partials + offsets, mask=keep, other=0.0)
    tl.store(sums + cols, tl.sum(total, 0), mask=cols < columns)
