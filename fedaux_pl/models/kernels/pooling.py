"""The mean of a text's states, without those of padding."""

import triton
import triton.language as tl


@triton.jit
def _count(ids, length, pad, BLOCK_L: tl.constexpr):
    """The number of tokens of a text, 1 without any."""
    count = 0.0
    for first in range(0, length, BLOCK_L):
        places = first + tl.arange(0, BLOCK_L)
        found = tl.load(ids + places, mask=places < length, other=pad) != pad
        count += tl.sum(found.to(tl.float32), 0)
    return tl.maximum(count, 1.0)


@triton.jit(do_not_specialize=["length", "pad"])
def mean_kernel(
    states,
    ids,
    means,
    length,
    pad,
    WIDTH: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """One program for each text and block of columns."""
    text = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    ids += text * length
    states += text * length * WIDTH
    total = tl.zeros((BLOCK_L, BLOCK_W), tl.float32)
    for first in range(0, length, BLOCK_L):
        lines = first + tl.arange(0, BLOCK_L)
        found = tl.load(ids + lines, mask=lines < length, other=pad) != pad
        keep = found[:, None] & (cols < WIDTH)[None, :]
        total += tl.load(states + lines[:, None] * WIDTH + cols[None, :], mask=keep, other=0.0)
    mean = tl.sum(total, 0) / _count(ids, length, pad, BLOCK_L)
    tl.store(means + text * WIDTH + cols, mean, mask=cols < WIDTH)


@triton.jit(do_not_specialize=["length", "pad"])
def mean_backward_kernel(
    dmeans,
    ids,
    dstates,
    length,
    pad,
    WIDTH: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """The gradient of all states of a text, zero for padding."""
    text = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    ids += text * length
    dstates += text * length * WIDTH
    gradient = tl.load(dmeans + text * WIDTH + cols, mask=cols < WIDTH, other=0.0)
    gradient /= _count(ids, length, pad, BLOCK_L)
    for first in range(0, length, BLOCK_L):
        lines = first + tl.arange(0, BLOCK_L)
        found = tl.load(ids + lines, mask=lines < length, other=pad) != pad
        values = tl.where(found[:, None], gradient[None, :], 0.0)
        keep = (lines < length)[:, None] & (cols < WIDTH)[None, :]
        tl.store(dstates + lines[:, None] * WIDTH + cols[None, :], values, mask=keep)
