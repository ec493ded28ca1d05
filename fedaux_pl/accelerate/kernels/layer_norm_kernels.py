"""LayerNorm of the residual stream, fused with the embedding or with dropout and residual sum.

States are (rows, WIDTH) with a row for each token. The residual stream is in float32; the kernels
also write it in half precision, for the next matrix product. The forward pass saves mean and
1 / std of each row; the backward pass recomputes the sum before the norm. For the gradients of
parameters each program writes a row of partial sums, which ``sum_partials_kernel`` adds up. Rows of
packed texts have the dropout masks and positions of their slots, see ``token_kernels``.
"""

import triton
import triton.language as tl


@triton.jit
def _mix_bits(x):
    x ^= x >> 16
    x = tl.mul(x, 0x7FEB352D, sanitize_overflow=False)
    x ^= x >> 15
    x = tl.mul(x, 0x846CA68B, sanitize_overflow=False)
    return x ^ (x >> 16)


@triton.jit
def is_kept(seed, counter, rate):
    """Whether dropout keeps a value, for a 64-bit seed and the value's 32-bit counter.

    No mask is stored: the backward pass recomputes it. A 32-bit mixing function (Wellons,
    "Prospecting for hash functions", 2018) costs a fifth of Philox.
    """
    low = (seed & 0xFFFFFFFF).to(tl.uint32)
    high = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    bits = _mix_bits(_mix_bits(counter.to(tl.uint32) ^ low) ^ high)
    return (bits >> 8).to(tl.float32) * (1.0 / 16777216.0) >= rate


@triton.jit
def _find_tile(
    first, stop, slots, cols, WIDTH: tl.constexpr, BLOCK_R: tl.constexpr, PACKED: tl.constexpr
):
    """The rows of a tile, its mask and offsets, its tokens' slots and counters of dropout."""
    row_ids = first + tl.arange(0, BLOCK_R)
    mask = (row_ids < stop)[:, None] & (cols < WIDTH)[None, :]
    offsets = row_ids.to(tl.int64)[:, None] * WIDTH + cols[None, :]
    slot_ids = row_ids
    if PACKED:
        slot_ids = tl.load(slots + row_ids, mask=row_ids < stop, other=0)
    counters = slot_ids.to(tl.int64)[:, None] * WIDTH + cols[None, :]
    return row_ids, mask, offsets, slot_ids, counters


@triton.jit
def _add_residual(
    y, residual, seeds, seed_index, offsets, counters, mask, rate, DROPOUT: tl.constexpr
):
    """Residual + dropout(y), and which values of y dropout keeps."""
    values = tl.load(y + offsets, mask=mask, other=0.0).to(tl.float32)
    kept = mask
    if DROPOUT:
        kept = is_kept(tl.load(seeds + seed_index), counters, rate)
        values = tl.where(kept, values / (1.0 - rate), 0.0)
    return values + tl.load(residual + offsets, mask=mask, other=0.0), kept


@triton.jit
def _embed(
    ids, word, position, token_type, vocab_size, rows, length, row_ids, slot_ids, cols,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """The sum of the embeddings of a token's word, of its position and of token type 0.

    An id outside of the vocabulary gives NaN, which the check of the loss reports.
    """
    row_mask = row_ids < rows
    mask = row_mask[:, None] & (cols < WIDTH)[None, :]
    token = tl.load(ids + row_ids, mask=row_mask, other=0).to(tl.int64)
    known = ((token >= 0) & (token < vocab_size))[:, None]
    values = tl.load(word + token[:, None] * WIDTH + cols[None, :], mask=mask & known, other=0.0)
    values = tl.where(known, values, float("nan"))
    values += tl.load(token_type + cols, mask=cols < WIDTH, other=0.0)[None, :]
    offsets = (slot_ids % length)[:, None] * WIDTH + cols[None, :]
    return values + tl.load(position + offsets, mask=mask, other=0.0)


@triton.jit
def _normalize(values, stats, weight, bias, rows, row_ids, cols, eps, WIDTH: tl.constexpr):
    """LayerNorm of each row; stores the mean and 1 / std."""
    col_mask = cols < WIDTH
    mean = tl.sum(values, 1) / WIDTH
    centered = tl.where(col_mask[None, :], values - mean[:, None], 0.0)
    invstd = 1.0 / tl.sqrt(tl.sum(centered * centered, 1) / WIDTH + eps)
    tl.store(stats + 2 * row_ids, mean, mask=row_ids < rows)
    tl.store(stats + 2 * row_ids + 1, invstd, mask=row_ids < rows)
    gamma = tl.load(weight + cols, mask=col_mask, other=0.0)
    beta = tl.load(bias + cols, mask=col_mask, other=0.0)
    return centered * invstd[:, None] * gamma[None, :] + beta[None, :]


@triton.jit
def _normalize_backward(
    gradient, values, stats, gamma, rows, row_ids, col_mask, WIDTH: tl.constexpr
):
    """The gradient of LayerNorm's input, and the normalized rows."""
    mean = tl.load(stats + 2 * row_ids, mask=row_ids < rows, other=0.0)
    invstd = tl.load(stats + 2 * row_ids + 1, mask=row_ids < rows, other=0.0)
    normalized = tl.where(col_mask[None, :], (values - mean[:, None]) * invstd[:, None], 0.0)
    scaled = gradient * gamma[None, :]
    constant = tl.sum(scaled, 1) / WIDTH
    slope = tl.sum(scaled * normalized, 1) / WIDTH
    return (scaled - constant[:, None] - normalized * slope[:, None]) * invstd[:, None], normalized


@triton.jit
def _store_partials(partials, columns, first, second, third, cols, WIDTH: tl.constexpr):
    """Stores the three sums of a program as its row of partial sums."""
    col_mask = cols < WIDTH
    partials += tl.program_id(0).to(tl.int64) * columns
    tl.store(partials + cols, tl.sum(first, 0), mask=col_mask)
    tl.store(partials + WIDTH + cols, tl.sum(second, 0), mask=col_mask)
    tl.store(partials + 2 * WIDTH + cols, tl.sum(third, 0), mask=col_mask)


@triton.jit(do_not_specialize=["vocab_size", "seed_index", "rows", "length"])
def embed_kernel(
    ids, slots, word, position, token_type, weight, bias, states, half, stats,
    vocab_size, seeds, seed_index, rows, length, eps, rate,
    DROPOUT: tl.constexpr, PACKED: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Dropout(LayerNorm(word + position + token type))."""
    cols = tl.arange(0, BLOCK_W)
    row_ids, mask, offsets, slot_ids, counters = _find_tile(
        tl.program_id(0) * BLOCK_R, rows, slots, cols, WIDTH, BLOCK_R, PACKED
    )
    values = _embed(
        ids, word, position, token_type, vocab_size, rows, length, row_ids, slot_ids, cols, WIDTH
    )
    z = _normalize(values, stats, weight, bias, rows, row_ids, cols, eps, WIDTH)
    if DROPOUT:
        z = tl.where(is_kept(tl.load(seeds + seed_index), counters, rate), z / (1.0 - rate), 0.0)
    tl.store(states + offsets, z, mask=mask)
    tl.store(half + offsets, z.to(half.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["seed_index", "rows"])
def add_norm_kernel(
    y, residual, slots, weight, bias, states, half, stats, seeds, seed_index, rows, eps, rate,
    DROPOUT: tl.constexpr, PACKED: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """LayerNorm(residual + dropout(y))."""
    cols = tl.arange(0, BLOCK_W)
    row_ids, mask, offsets, _, counters = _find_tile(
        tl.program_id(0) * BLOCK_R, rows, slots, cols, WIDTH, BLOCK_R, PACKED
    )
    values, _ = _add_residual(
        y, residual, seeds, seed_index, offsets, counters, mask, rate, DROPOUT
    )
    z = _normalize(values, stats, weight, bias, rows, row_ids, cols, eps, WIDTH)
    tl.store(states + offsets, z, mask=mask)
    tl.store(half + offsets, z.to(half.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["seed_index", "rows", "rows_per_part", "columns"])
def add_norm_backward_kernel(
    dstates, dhalf, y, residual, slots, stats, weight, dresidual, dy, partials,
    seeds, seed_index, rows, rows_per_part, columns, rate,
    HAS_HALF: tl.constexpr, DROPOUT: tl.constexpr, PACKED: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Gradients of residual and y; partial sums for the norm's weight and bias and y's bias."""
    cols = tl.arange(0, BLOCK_W)
    col_mask = cols < WIDTH
    gamma = tl.load(weight + cols, mask=col_mask, other=0.0)
    weight_sums = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    bias_sums = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    y_sums = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    start = tl.program_id(0) * rows_per_part
    stop = tl.minimum(start + rows_per_part, rows)
    for first in range(start, stop, BLOCK_R):
        row_ids, mask, offsets, _, counters = _find_tile(
            first, stop, slots, cols, WIDTH, BLOCK_R, PACKED
        )
        gradient = tl.load(dstates + offsets, mask=mask, other=0.0)
        if HAS_HALF:
            gradient += tl.load(dhalf + offsets, mask=mask, other=0.0).to(tl.float32)
        values, kept = _add_residual(
            y, residual, seeds, seed_index, offsets, counters, mask, rate, DROPOUT
        )
        dsum, normalized = _normalize_backward(
            gradient, values, stats, gamma, stop, row_ids, col_mask, WIDTH
        )
        tl.store(dresidual + offsets, dsum, mask=mask)
        if DROPOUT:
            dsum = tl.where(kept, dsum / (1.0 - rate), 0.0)
        tl.store(dy + offsets, dsum.to(dy.dtype.element_ty), mask=mask)
        weight_sums += gradient * normalized
        bias_sums += gradient
        y_sums += tl.where(mask, dsum, 0.0)
    _store_partials(partials, columns, weight_sums, bias_sums, y_sums, cols, WIDTH)


@triton.jit(
    do_not_specialize=["vocab_size", "seed_index", "rows", "length", "rows_per_part", "columns"]
)
def embed_backward_kernel(
    dstates, dhalf, ids, slots, word, position, token_type, stats, weight, dsum, partials,
    vocab_size, seeds, seed_index, rows, length, rows_per_part, columns, rate,
    DROPOUT: tl.constexpr, PACKED: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """The gradient of each token's embedding; partial sums for weight, bias and token type."""
    cols = tl.arange(0, BLOCK_W)
    col_mask = cols < WIDTH
    gamma = tl.load(weight + cols, mask=col_mask, other=0.0)
    weight_sums = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    bias_sums = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    type_sums = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    start = tl.program_id(0) * rows_per_part
    stop = tl.minimum(start + rows_per_part, rows)
    for first in range(start, stop, BLOCK_R):
        row_ids, mask, offsets, slot_ids, counters = _find_tile(
            first, stop, slots, cols, WIDTH, BLOCK_R, PACKED
        )
        gradient = tl.load(dstates + offsets, mask=mask, other=0.0)
        gradient += tl.load(dhalf + offsets, mask=mask, other=0.0).to(tl.float32)
        if DROPOUT:
            kept = is_kept(tl.load(seeds + seed_index), counters, rate)
            gradient = tl.where(kept, gradient / (1.0 - rate), 0.0)
        values = _embed(
            ids, word, position, token_type, vocab_size, stop, length, row_ids, slot_ids, cols,
            WIDTH,
        )  # fmt: skip
        dvalues, normalized = _normalize_backward(
            gradient, values, stats, gamma, stop, row_ids, col_mask, WIDTH
        )
        tl.store(dsum + offsets, dvalues, mask=mask)
        weight_sums += gradient * normalized
        bias_sums += gradient
        type_sums += tl.where(mask, dvalues, 0.0)
    _store_partials(partials, columns, weight_sums, bias_sums, type_sums, cols, WIDTH)
