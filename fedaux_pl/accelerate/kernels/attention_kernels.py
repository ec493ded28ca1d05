"""Attention for short texts: a program holds all keys and values of a head.

Queries, keys and values are one matrix (rows, 3, HEADS, DIM), and so are their gradients. No query
attends to padding; a query without any key gets zeros. Softmax and sums are in float32. Packed
texts have the dropout masks of the padded ones.
"""

import triton
import triton.language as tl

from fedaux_pl.accelerate.kernels.layer_norm_kernels import is_kept
from fedaux_pl.accelerate.kernels.token_kernels import find_rows


@triton.jit
def _probabilities(
    query, key, is_token, rows, cols, length, text_head, seeds, seed_index, scale, rate,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """The attention probabilities, and the factors of their dropout: 0 or 1 / (1 - rate)."""
    scores = tl.dot(query, tl.trans(key)) * scale
    can_attend = is_token[None, :]
    if CAUSAL:
        can_attend = can_attend & (cols[None, :] <= rows[:, None])
    scores = tl.where(can_attend, scores, float("-inf"))
    largest = tl.max(scores, 1)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    weights = tl.exp(scores - largest[:, None])
    total = tl.sum(weights, 1)
    probs = weights / tl.where(total == 0.0, 1.0, total)[:, None]
    dropout_scale = tl.full(probs.shape, 1.0, tl.float32)
    if DROPOUT:
        counter = (text_head * length + rows)[:, None] * length + cols[None, :]
        kept = is_kept(tl.load(seeds + seed_index), counter, rate)
        dropout_scale = tl.where(kept, 1.0 / (1.0 - rate), 0.0)
    return probs, dropout_scale


@triton.jit(do_not_specialize=["seed_index", "length", "pad_id"])
def attention_kernel(
    qkv, ids, starts, out, seeds, seed_index, length, pad_id, scale, rate,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, PACKED: tl.constexpr,
    HEADS: tl.constexpr, DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Softmax(Q K' / sqrt(DIM)) V, one program for each text and head."""
    width: tl.constexpr = HEADS * DIM
    qkv_width: tl.constexpr = 3 * width
    text_head = tl.program_id(0)
    row, count = find_rows(starts, text_head // HEADS, length, PACKED)
    head = text_head % HEADS
    cols = tl.arange(0, BLOCK_L)
    dims = tl.arange(0, BLOCK_D)
    is_token = tl.load(ids + row + cols, mask=cols < count, other=pad_id) != pad_id
    qkv += row * qkv_width + head * DIM
    out += row * width + head * DIM
    key_mask = (cols < count)[:, None] & (dims < DIM)[None, :]
    key_offsets = cols[:, None] * qkv_width + dims[None, :]
    key = tl.load(qkv + width + key_offsets, mask=key_mask, other=0.0)
    value = tl.load(qkv + 2 * width + key_offsets, mask=key_mask, other=0.0)
    for first in range(0, count, BLOCK_Q):
        rows = first + tl.arange(0, BLOCK_Q)
        mask = (rows < count)[:, None] & (dims < DIM)[None, :]
        query_offsets = rows[:, None] * qkv_width + dims[None, :]
        query = tl.load(qkv + query_offsets, mask=mask, other=0.0)
        probs, dropout_scale = _probabilities(
            query, key, is_token, rows, cols, length, text_head, seeds, seed_index, scale, rate,
            CAUSAL, DROPOUT,
        )  # fmt: skip
        output = tl.dot((probs * dropout_scale).to(value.dtype), value)
        out_offsets = rows[:, None] * width + dims[None, :]
        tl.store(out + out_offsets, output.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["seed_index", "texts", "length", "pad_id", "parts", "columns"])
def attention_backward_kernel(
    dout, qkv, ids, starts, dqkv, partials, seeds, seed_index,
    texts, length, pad_id, scale, rate, parts, columns,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, PACKED: tl.constexpr,
    HEADS: tl.constexpr, DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, keys and values, and partial sums of those of their biases.

    A program computes one head of every ``parts``-th text.
    """
    width: tl.constexpr = HEADS * DIM
    qkv_width: tl.constexpr = 3 * width
    part = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    cols = tl.arange(0, BLOCK_L)
    dims = tl.arange(0, BLOCK_D)
    key_offsets = cols[:, None] * qkv_width + dims[None, :]
    query_sums = tl.zeros((BLOCK_D,), tl.float32)
    key_sums = tl.zeros((BLOCK_D,), tl.float32)
    value_sums = tl.zeros((BLOCK_D,), tl.float32)
    for text in range(part, texts, parts):
        row, count = find_rows(starts, text, length, PACKED)
        key_mask = (cols < count)[:, None] & (dims < DIM)[None, :]
        is_token = tl.load(ids + row + cols, mask=cols < count, other=pad_id) != pad_id
        qkv_text = qkv + row * qkv_width + head * DIM
        dqkv_text = dqkv + row * qkv_width + head * DIM
        dout_text = dout + row * width + head * DIM
        key = tl.load(qkv_text + width + key_offsets, mask=key_mask, other=0.0)
        value = tl.load(qkv_text + 2 * width + key_offsets, mask=key_mask, other=0.0)
        dkey = tl.zeros((BLOCK_L, BLOCK_D), tl.float32)
        dvalue = tl.zeros((BLOCK_L, BLOCK_D), tl.float32)
        for first in range(0, count, BLOCK_Q):
            rows = first + tl.arange(0, BLOCK_Q)
            mask = (rows < count)[:, None] & (dims < DIM)[None, :]
            query_offsets = rows[:, None] * qkv_width + dims[None, :]
            query = tl.load(qkv_text + query_offsets, mask=mask, other=0.0)
            doutput = tl.load(
                dout_text + rows[:, None] * width + dims[None, :], mask=mask, other=0.0
            )
            probs, dropout_scale = _probabilities(
                query, key, is_token, rows, cols, length, text * HEADS + head, seeds, seed_index,
                scale, rate, CAUSAL, DROPOUT,
            )  # fmt: skip
            dvalue += tl.dot(tl.trans((probs * dropout_scale).to(value.dtype)), doutput)
            dprobs = tl.dot(doutput, tl.trans(value)) * dropout_scale
            dscores = probs * (dprobs - tl.sum(probs * dprobs, 1)[:, None]) * scale
            dscores = dscores.to(value.dtype)
            dquery = tl.dot(dscores, key)
            dkey += tl.dot(tl.trans(dscores), query)
            tl.store(dqkv_text + query_offsets, dquery.to(dqkv.dtype.element_ty), mask=mask)
            query_sums += tl.sum(dquery, 0)
        dkey_text = dqkv_text + width + key_offsets
        dvalue_text = dqkv_text + 2 * width + key_offsets
        tl.store(dkey_text, dkey.to(dqkv.dtype.element_ty), mask=key_mask)
        tl.store(dvalue_text, dvalue.to(dqkv.dtype.element_ty), mask=key_mask)
        key_sums += tl.sum(dkey, 0)
        value_sums += tl.sum(dvalue, 0)
    partials += part.to(tl.int64) * columns + head * DIM
    tl.store(partials + dims, query_sums, mask=dims < DIM)
    tl.store(partials + width + dims, key_sums, mask=dims < DIM)
    tl.store(partials + 2 * width + dims, value_sums, mask=dims < DIM)
