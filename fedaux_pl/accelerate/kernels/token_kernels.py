"""Kernels on the tokens of texts: packing, means, GELU and the gradients of embedding tables.

Packed texts are the tokens of all texts one after another, without padding. Rows that are left over
belong to spare texts of padding only, so that every row has a text and every kernel writes all
rows. A slot is the index of a token in the padded texts, text * length + position. No shape depends
on values, so these kernels can be captured.
"""

import triton
import triton.language as tl

INV_SQRT_2 = tl.constexpr(0.7071067811865476)
INV_SQRT_2PI = tl.constexpr(0.3989422804014327)


@triton.jit
def find_rows(starts, text, length, PACKED: tl.constexpr):
    """The first row of a text, and the number of its rows."""
    first = tl.cast(text, tl.int64) * length
    count = length
    if PACKED:
        first = tl.load(starts + text).to(tl.int64)
        count = tl.load(starts + text + 1) - first.to(tl.int32)
    return first, count


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
    """The ids and slots of a text's rows, and its first row; one program for each or spare text.

    If the texts have more than ``rows`` tokens, all ids are -1, which gives NaN.
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
        slot = tl.where(is_text, text * length + positions, 0)
        word = tl.load(ids + slot, mask=mask & is_text, other=pad_id)
        tl.store(packed + start + positions, tl.where(fits, word, -1), mask=mask)
        tl.store(slots + start + positions, slot, mask=mask)


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


@triton.jit(do_not_specialize=["tokens"])
def rank_kernel(ids, words, order, tokens, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr):
    """Sort the tokens by word, stably; write the sorted words and the token of each.

    The rank of a token is the number of tokens before it. PyTorch's kernel has a dozen programs.
    """
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    word = tl.load(ids + token, mask=token < tokens, other=0)
    rank = tl.zeros((BLOCK_T,), tl.int32)
    for first in range(0, tokens, BLOCK_O):
        other = first + tl.arange(0, BLOCK_O)
        other_word = tl.load(ids + other, mask=other < tokens, other=0)
        tied = (other_word[None, :] == word[:, None]) & (other[None, :] < token[:, None])
        before = (tied | (other_word[None, :] < word[:, None])) & (other < tokens)[None, :]
        rank += tl.sum(before.to(tl.int32), 1)
    tl.store(words + rank, word.to(tl.int32), mask=token < tokens)
    tl.store(order + rank, token, mask=token < tokens)


@triton.jit(do_not_specialize=["vocab_size", "tokens", "padding_index"])
def word_sums_kernel(
    gradient, words, order, sums, vocab_size, tokens, padding_index,
    WIDTH: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Sums of gradients (tokens, WIDTH) by word.

    There is a program for each sorted token. The program of a word's first token sums all of them.
    """
    start = tl.program_id(0)
    word = tl.load(words + start)
    previous = tl.load(words + start - 1, mask=start > 0, other=-1)
    if (word != previous) & (word != padding_index) & (word >= 0) & (word < vocab_size):
        cols = tl.arange(0, BLOCK_W)
        col_mask = cols < WIDTH
        total = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
        first = start
        more = True
        while more:
            ranks = first + tl.arange(0, BLOCK_R)
            same = tl.load(words + ranks, mask=ranks < tokens, other=-1) == word
            token = tl.load(order + ranks, mask=same, other=0).to(tl.int64)
            offsets = token[:, None] * WIDTH + cols[None, :]
            total += tl.load(gradient + offsets, mask=same[:, None] & col_mask[None, :], other=0.0)
            more = tl.min(same.to(tl.int32), 0) == 1
            first += BLOCK_R
        tl.store(sums + word.to(tl.int64) * WIDTH + cols, tl.sum(total, 0), mask=col_mask)


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
