"""LayerNorm of a residual stream with what lies around it: embedding, dropout and the sum.

States are (rows, WIDTH) with a row for each token. The stream is in float32, and beside it goes a
copy in half precision for the next product. What the pass backward needs of the sum before the norm
it computes again; of that norm it has mean and 1 / std of each row. Gradients of what all rows
share come as one partial sum for each program, which ``sum_partials_kernel`` adds up.
"""

import triton
import triton.language as tl

from fedaux_pl.models.kernels.dropout import kept


@triton.jit
def _sum(y, residual, seeds, site, offsets, keep, rate, DROPOUT: tl.constexpr):
    """Residual + dropout(y), and which of y were kept."""
    values = tl.load(y + offsets, mask=keep, other=0.0).to(tl.float32)
    passes = keep
    if DROPOUT:
        passes = kept(tl.load(seeds + site), offsets, rate)
        values = tl.where(passes, values / (1.0 - rate), 0.0)
    return values + tl.load(residual + offsets, mask=keep, other=0.0), passes


@triton.jit
def _embedded(ids, word, position, kind, words, rows, length, lines, cols, WIDTH: tl.constexpr):
    """The sum of a token's vectors: of its word, of its position, and of the one type there is.

    What is no word has NaN for a vector: a loss that says so, where PyTorch would stop the device.
    """
    inside = lines < rows
    keep = inside[:, None] & (cols < WIDTH)[None, :]
    token = tl.load(ids + lines, mask=inside, other=0).to(tl.int64)
    place = lines % length
    known = ((token >= 0) & (token < words))[:, None]
    values = tl.load(word + token[:, None] * WIDTH + cols[None, :], mask=keep & known, other=0.0)
    values = tl.where(known, values, float("nan"))
    values += tl.load(kind + cols, mask=cols < WIDTH, other=0.0)[None, :]
    return values + tl.load(position + place[:, None] * WIDTH + cols[None, :], mask=keep, other=0.0)


@triton.jit
def _normalized(values, stats, scale, shift, rows, lines, cols, eps, WIDTH: tl.constexpr):
    """LayerNorm of rows, whose mean and 1 / std are kept."""
    inside = cols < WIDTH
    mean = tl.sum(values, 1) / WIDTH
    centred = tl.where(inside[None, :], values - mean[:, None], 0.0)
    invstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / WIDTH + eps)
    tl.store(stats + 2 * lines, mean, mask=lines < rows)
    tl.store(stats + 2 * lines + 1, invstd, mask=lines < rows)
    gamma = tl.load(scale + cols, mask=inside, other=0.0)
    beta = tl.load(shift + cols, mask=inside, other=0.0)
    return centred * invstd[:, None] * gamma[None, :] + beta[None, :]


@triton.jit
def _norm_gradient(gradient, values, stats, gamma, rows, lines, inside, WIDTH: tl.constexpr):
    """The gradient before LayerNorm, and the normalised rows."""
    mean = tl.load(stats + 2 * lines, mask=lines < rows, other=0.0)
    invstd = tl.load(stats + 2 * lines + 1, mask=lines < rows, other=0.0)
    normal = tl.where(inside[None, :], (values - mean[:, None]) * invstd[:, None], 0.0)
    scaled = gradient * gamma[None, :]
    constant = tl.sum(scaled, 1) / WIDTH
    slope = tl.sum(scaled * normal, 1) / WIDTH
    return (scaled - constant[:, None] - normal * slope[:, None]) * invstd[:, None], normal


@triton.jit
def _keep_partials(partials, columns, first, second, third, cols, WIDTH: tl.constexpr):
    """Stores the sums of one program as its row of three times WIDTH partial sums."""
    inside = cols < WIDTH
    partials += tl.program_id(0).to(tl.int64) * columns
    tl.store(partials + cols, tl.sum(first, 0), mask=inside)
    tl.store(partials + WIDTH + cols, tl.sum(second, 0), mask=inside)
    tl.store(partials + 2 * WIDTH + cols, tl.sum(third, 0), mask=inside)


@triton.jit(do_not_specialize=["words", "site", "rows", "length"])
def embed_kernel(
    ids,
    word,
    position,
    kind,
    scale,
    shift,
    states,
    half,
    stats,
    words,
    seeds,
    site,
    rows,
    length,
    eps,
    rate,
    DROPOUT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Dropout(LayerNorm(word + position + type))."""
    lines = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    cols = tl.arange(0, BLOCK_W)
    keep = (lines < rows)[:, None] & (cols < WIDTH)[None, :]
    offsets = lines.to(tl.int64)[:, None] * WIDTH + cols[None, :]
    values = _embedded(ids, word, position, kind, words, rows, length, lines, cols, WIDTH)
    z = _normalized(values, stats, scale, shift, rows, lines, cols, eps, WIDTH)
    if DROPOUT:
        z = tl.where(kept(tl.load(seeds + site), offsets, rate), z / (1.0 - rate), 0.0)
    tl.store(states + offsets, z, mask=keep)
    tl.store(half + offsets, z.to(half.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["site", "rows"])
def add_norm_kernel(
    y,
    residual,
    scale,
    shift,
    states,
    half,
    stats,
    seeds,
    site,
    rows,
    eps,
    rate,
    DROPOUT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """LayerNorm(residual + dropout(y))."""
    lines = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    cols = tl.arange(0, BLOCK_W)
    keep = (lines < rows)[:, None] & (cols < WIDTH)[None, :]
    offsets = lines.to(tl.int64)[:, None] * WIDTH + cols[None, :]
    values, _ = _sum(y, residual, seeds, site, offsets, keep, rate, DROPOUT)
    z = _normalized(values, stats, scale, shift, rows, lines, cols, eps, WIDTH)
    tl.store(states + offsets, z, mask=keep)
    tl.store(half + offsets, z.to(half.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["site", "rows", "chunk_rows", "columns"])
def add_norm_backward_kernel(
    dstates,
    dhalf,
    y,
    residual,
    stats,
    scale,
    dresidual,
    dy,
    partials,
    seeds,
    site,
    rows,
    chunk_rows,
    columns,
    rate,
    HAS_HALF: tl.constexpr,
    DROPOUT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Gradients of the residual, of y, and partial sums of those of scale, shift and y's bias."""
    cols = tl.arange(0, BLOCK_W)
    inside = cols < WIDTH
    gamma = tl.load(scale + cols, mask=inside, other=0.0)
    dscale = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    dshift = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    dbias = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    start = tl.program_id(0) * chunk_rows
    stop = tl.minimum(start + chunk_rows, rows)
    for first in range(start, stop, BLOCK_R):
        lines = first + tl.arange(0, BLOCK_R)
        keep = (lines < stop)[:, None] & inside[None, :]
        offsets = lines.to(tl.int64)[:, None] * WIDTH + cols[None, :]
        gradient = tl.load(dstates + offsets, mask=keep, other=0.0)
        if HAS_HALF:
            gradient += tl.load(dhalf + offsets, mask=keep, other=0.0).to(tl.float32)
        values, passes = _sum(y, residual, seeds, site, offsets, keep, rate, DROPOUT)
        dsum, normal = _norm_gradient(gradient, values, stats, gamma, stop, lines, inside, WIDTH)
        tl.store(dresidual + offsets, dsum, mask=keep)
        if DROPOUT:
            dsum = tl.where(passes, dsum / (1.0 - rate), 0.0)
        tl.store(dy + offsets, dsum.to(dy.dtype.element_ty), mask=keep)
        dscale += gradient * normal
        dshift += gradient
        dbias += tl.where(keep, dsum, 0.0)
    _keep_partials(partials, columns, dscale, dshift, dbias, cols, WIDTH)


@triton.jit(do_not_specialize=["words", "site", "rows", "length", "chunk_rows", "columns"])
def embed_backward_kernel(
    dstates,
    dhalf,
    ids,
    word,
    position,
    kind,
    stats,
    scale,
    dsum,
    partials,
    words,
    seeds,
    site,
    rows,
    length,
    chunk_rows,
    columns,
    rate,
    DROPOUT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """The gradient of each token's sum, and partial sums of those of scale, shift and the type."""
    cols = tl.arange(0, BLOCK_W)
    inside = cols < WIDTH
    gamma = tl.load(scale + cols, mask=inside, other=0.0)
    dscale = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    dshift = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    dkind = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    start = tl.program_id(0) * chunk_rows
    stop = tl.minimum(start + chunk_rows, rows)
    for first in range(start, stop, BLOCK_R):
        lines = first + tl.arange(0, BLOCK_R)
        keep = (lines < stop)[:, None] & inside[None, :]
        offsets = lines.to(tl.int64)[:, None] * WIDTH + cols[None, :]
        gradient = tl.load(dstates + offsets, mask=keep, other=0.0)
        gradient += tl.load(dhalf + offsets, mask=keep, other=0.0).to(tl.float32)
        if DROPOUT:
            passes = kept(tl.load(seeds + site), offsets, rate)
            gradient = tl.where(passes, gradient / (1.0 - rate), 0.0)
        values = _embedded(ids, word, position, kind, words, stop, length, lines, cols, WIDTH)
        found, normal = _norm_gradient(gradient, values, stats, gamma, stop, lines, inside, WIDTH)
        tl.store(dsum + offsets, found, mask=keep)
        dscale += gradient * normal
        dshift += gradient
        dkind += tl.where(keep, found, 0.0)
    _keep_partials(partials, columns, dscale, dshift, dkind, cols, WIDTH)
