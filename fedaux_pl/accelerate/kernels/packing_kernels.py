"""Packed texts: the tokens of all texts one after another, without padding.

Rows that are left over belong to spare texts of padding only, so that every row has a text and
every kernel writes all rows. A slot is the index of a token in the padded texts, text * length +
position. No shape depends on values, so these kernels can be captured.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["length", "pad_id"])
def lengths_kernel(ids, lengths, length, pad_id, BLOCK_L: tl.constexpr):
    """The position of a text's last token, counted from 1; 1 if all is padding."""
    text = tl.program_id(0)
    ids += text.to(tl.int64) * length
    last = tl.full((BLOCK_L,), 1, tl.int32)
    for first in range(0, length, BLOCK_L):
        positions = first + tl.arange(0, BLOCK_L)
        is_token = tl.load(ids + positions, mask=positions < length, other=pad_id) != pad_id
        last = tl.maximum(last, tl.where(is_token, positions + 1, 1))
    tl.store(lengths + text, tl.max(last, 0))


@triton.jit(do_not_specialize=["texts", "length", "rows", "pad_id"])
def pack_kernel(
    ids, lengths, packed, slots, starts, texts, length, rows, pad_id,
    BLOCK_N: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """The ids and slots of a text's rows, and its first row; one program for each text.

    Programs after the last text write the rows of spare texts. If the texts have more than ``rows``
    tokens, all ids are -1, which gives NaN.
    """
    text = tl.program_id(0)
    before = tl.zeros((BLOCK_N,), tl.int32)
    total = tl.zeros((BLOCK_N,), tl.int32)
    for first in range(0, texts, BLOCK_N):
        others = first + tl.arange(0, BLOCK_N)
        counts = tl.load(lengths + others, mask=others < texts, other=0)
        total += counts
        before += tl.where(others < text, counts, 0)
    is_text = text < texts
    spare = tl.maximum(text - texts, 0)
    start = tl.minimum(tl.sum(before, 0) + spare * length, rows)
    count = tl.load(lengths + text, mask=is_text, other=0)
    stop = tl.minimum(start + tl.where(is_text, count, length), rows)
    tl.store(starts + text, start)
    tl.store(starts + text + 1, stop, mask=text == tl.num_programs(0) - 1)
    fits = tl.sum(total, 0) <= rows
    for first in range(0, length, BLOCK_L):
        positions = first + tl.arange(0, BLOCK_L)
        mask = start + positions < stop
        found = tl.where(is_text, text * length + positions, 0)
        word = tl.load(ids + found, mask=mask & is_text, other=pad_id)
        tl.store(packed + start + positions, tl.where(fits, word, -1), mask=mask)
        tl.store(slots + start + positions, found, mask=mask)


@triton.jit(do_not_specialize=["texts"])
def position_sums_kernel(
    gradient, starts, sums, texts,
    WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """The sum of packed rows (rows, WIDTH) at one position of every text that is long enough."""
    position = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    total = tl.zeros((BLOCK_N, BLOCK_W), tl.float32)
    for first in range(0, texts, BLOCK_N):
        text = first + tl.arange(0, BLOCK_N)
        rows = tl.load(starts + text, mask=text < texts, other=0) + position
        stops = tl.load(starts + text + 1, mask=text < texts, other=0)
        mask = (rows < stops)[:, None] & (cols < WIDTH)[None, :]
        offsets = rows.to(tl.int64)[:, None] * WIDTH + cols[None, :]
        total += tl.load(gradient + offsets, mask=mask, other=0.0)
    tl.store(sums + position.to(tl.int64) * WIDTH + cols, tl.sum(total, 0), mask=cols < WIDTH)
