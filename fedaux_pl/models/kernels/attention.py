"""Attention of short texts: all keys of a head are at hand at once.

Queries, keys and values of all heads lie next to each other, (rows, 3, HEADS, DIM), and so do their
gradients, so that one product makes them and one product each takes them back. Padding is seen from
the ids; a query that sees nothing gets zeros. Softmax and sums are in float32.
"""

import triton
import triton.language as tl

from fedaux_pl.models.kernels.dropout import kept


@triton.jit
def _probabilities(
    query, key, seen, lines, cols, length, counter, seeds, site, factor, rate,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Softmax of the scores, and by what dropout multiplies each of them."""
    scores = tl.dot(query, tl.trans(key)) * factor
    visible = seen[None, :]
    if CAUSAL:
        visible = visible & (cols[None, :] <= lines[:, None])
    scores = tl.where(visible, scores, float("-inf"))
    most = tl.max(scores, 1)
    most = tl.where(most == float("-inf"), 0.0, most)
    weights = tl.exp(scores - most[:, None])
    total = tl.sum(weights, 1)
    shares = weights / tl.where(total == 0.0, 1.0, total)[:, None]
    times = tl.full(shares.shape, 1.0, tl.float32)
    if DROPOUT:
        places = (counter * length + lines)[:, None] * length + cols[None, :]
        times = tl.where(kept(tl.load(seeds + site), places, rate), 1.0 / (1.0 - rate), 0.0)
    return shares, times


@triton.jit(do_not_specialize=["site", "length", "pad"])
def attention_kernel(
    qkv,
    ids,
    out,
    seeds,
    site,
    length,
    pad,
    factor,
    rate,
    CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """What each token of a text takes from the others, a program for each text and head."""
    counter = tl.program_id(0)
    text = (counter // HEADS).to(tl.int64)
    head = counter % HEADS
    cols = tl.arange(0, BLOCK_L)
    dims = tl.arange(0, BLOCK_D)
    seen = tl.load(ids + text * length + cols, mask=cols < length, other=pad) != pad
    qkv += text * length * (3 * HEADS * DIM) + head * DIM
    out += text * length * (HEADS * DIM) + head * DIM
    inside = (cols < length)[:, None] & (dims < DIM)[None, :]
    offsets = cols[:, None] * (3 * HEADS * DIM) + dims[None, :]
    key = tl.load(qkv + HEADS * DIM + offsets, mask=inside, other=0.0)
    value = tl.load(qkv + 2 * HEADS * DIM + offsets, mask=inside, other=0.0)
    for first in range(0, length, BLOCK_Q):
        lines = first + tl.arange(0, BLOCK_Q)
        keep = (lines < length)[:, None] & (dims < DIM)[None, :]
        places = lines[:, None] * (3 * HEADS * DIM) + dims[None, :]
        query = tl.load(qkv + places, mask=keep, other=0.0)
        shares, times = _probabilities(
            query, key, seen, lines, cols, length, counter, seeds, site, factor, rate,
            CAUSAL, DROPOUT,
        )  # fmt: skip
        taken = tl.dot((shares * times).to(value.dtype), value)
        places = lines[:, None] * (HEADS * DIM) + dims[None, :]
        tl.store(out + places, taken.to(out.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["site", "texts", "length", "pad", "parts", "columns"])
def attention_backward_kernel(
    dout,
    qkv,
    ids,
    dqkv,
    partials,
    seeds,
    site,
    texts,
    length,
    pad,
    factor,
    rate,
    parts,
    columns,
    CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Gradients of queries, keys and values, and partial sums of those of their biases.

    A program takes one head of every ``parts``-th text.
    """
    part = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    cols = tl.arange(0, BLOCK_L)
    dims = tl.arange(0, BLOCK_D)
    inside = (cols < length)[:, None] & (dims < DIM)[None, :]
    offsets = cols[:, None] * (3 * HEADS * DIM) + dims[None, :]
    query_sums = tl.zeros((BLOCK_D,), tl.float32)
    key_sums = tl.zeros((BLOCK_D,), tl.float32)
    value_sums = tl.zeros((BLOCK_D,), tl.float32)
    for text in range(part, texts, parts):
        row = tl.cast(text, tl.int64) * length
        seen = tl.load(ids + row + cols, mask=cols < length, other=pad) != pad
        source = qkv + row * (3 * HEADS * DIM) + head * DIM
        target = dqkv + row * (3 * HEADS * DIM) + head * DIM
        above = dout + row * (HEADS * DIM) + head * DIM
        key = tl.load(source + HEADS * DIM + offsets, mask=inside, other=0.0)
        value = tl.load(source + 2 * HEADS * DIM + offsets, mask=inside, other=0.0)
        dkey = tl.zeros((BLOCK_L, BLOCK_D), tl.float32)
        dvalue = tl.zeros((BLOCK_L, BLOCK_D), tl.float32)
        for first in range(0, length, BLOCK_Q):
            lines = first + tl.arange(0, BLOCK_Q)
            keep = (lines < length)[:, None] & (dims < DIM)[None, :]
            places = lines[:, None] * (3 * HEADS * DIM) + dims[None, :]
            query = tl.load(source + places, mask=keep, other=0.0)
            dtaken = tl.load(
                above + lines[:, None] * (HEADS * DIM) + dims[None, :], mask=keep, other=0.0
            )
            shares, times = _probabilities(
                query, key, seen, lines, cols, length, text * HEADS + head, seeds, site, factor,
                rate, CAUSAL, DROPOUT,
            )  # fmt: skip
            dvalue += tl.dot(tl.trans((shares * times).to(value.dtype)), dtaken)
            dshares = tl.dot(dtaken, tl.trans(value)) * times
            dscores = shares * (dshares - tl.sum(shares * dshares, 1)[:, None]) * factor
            dscores = dscores.to(value.dtype)
            dquery = tl.dot(dscores, key)
            dkey += tl.dot(tl.trans(dscores), query)
            tl.store(target + places, dquery.to(dqkv.dtype.element_ty), mask=keep)
            query_sums += tl.sum(dquery, 0)
        tl.store(target + HEADS * DIM + offsets, dkey.to(dqkv.dtype.element_ty), mask=inside)
        tl.store(target + 2 * HEADS * DIM + offsets, dvalue.to(dqkv.dtype.element_ty), mask=inside)
        key_sums += tl.sum(dkey, 0)
        value_sums += tl.sum(dvalue, 0)
    partials += part.to(tl.int64) * columns + head * DIM
    tl.store(partials + dims, query_sums, mask=dims < DIM)
    tl.store(partials + HEADS * DIM + dims, key_sums, mask=dims < DIM)
    tl.store(partials + 2 * HEADS * DIM + dims, value_sums, mask=dims < DIM)
