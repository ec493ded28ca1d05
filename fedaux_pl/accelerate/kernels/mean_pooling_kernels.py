"""The mean of a text's states over its tokens, padding excluded."""

import triton
import triton.language as tl

from fedaux_pl.accelerate.kernels.attention_kernels import find_rows


@triton.jit
def _count_tokens(ids, length, pad_id, BLOCK_L: tl.constexpr):
    """The number of tokens of a text, at least 1."""
    count = 0.0
    for first in range(0, length, BLOCK_L):
        positions = first + tl.arange(0, BLOCK_L)
        is_token = tl.load(ids + positions, mask=positions < length, other=pad_id) != pad_id
        count += tl.sum(is_token.to(tl.float32), 0)
    return tl.maximum(count, 1.0)


@triton.jit(do_not_specialize=["length", "pad_id"])
def mean_kernel(
    states, ids, starts, means, length, pad_id,
    PACKED: tl.constexpr, WIDTH: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """The mean of a text's states, one program for each text and block of columns."""
    text = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    row, count = find_rows(starts, text, length, PACKED)
    ids += row
    states += row * WIDTH
    total = tl.zeros((BLOCK_L, BLOCK_W), tl.float32)
    for first in range(0, count, BLOCK_L):
        rows = first + tl.arange(0, BLOCK_L)
        is_token = tl.load(ids + rows, mask=rows < count, other=pad_id) != pad_id
        mask = is_token[:, None] & (cols < WIDTH)[None, :]
        total += tl.load(states + rows[:, None] * WIDTH + cols[None, :], mask=mask, other=0.0)
    mean = tl.sum(total, 0) / _count_tokens(ids, count, pad_id, BLOCK_L)
    tl.store(means + text * WIDTH + cols, mean, mask=cols < WIDTH)


@triton.jit(do_not_specialize=["texts", "length", "pad_id"])
def mean_backward_kernel(
    dmeans, ids, starts, dstates, texts, length, pad_id,
    PACKED: tl.constexpr, WIDTH: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """The gradient of all states of a text, zero for padding."""
    text = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    row, count = find_rows(starts, text, length, PACKED)
    ids += row
    dstates += row * WIDTH
    has_gradient = (cols < WIDTH) & (text < texts)  # spare texts of packed ones have none
    gradient = tl.load(dmeans + text * WIDTH + cols, mask=has_gradient, other=0.0)
    gradient /= _count_tokens(ids, count, pad_id, BLOCK_L)
    for first in range(0, count, BLOCK_L):
        rows = first + tl.arange(0, BLOCK_L)
        is_token = tl.load(ids + rows, mask=rows < count, other=pad_id) != pad_id
        values = tl.where(is_token[:, None], gradient[None, :], 0.0)
        mask = (rows < count)[:, None] & (cols < WIDTH)[None, :]
        tl.store(dstates + rows[:, None] * WIDTH + cols[None, :], values, mask=mask)
