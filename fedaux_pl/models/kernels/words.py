"""The gradient of word vectors: for each word the sum over its tokens, in their order.

PyTorch's kernel for few tokens goes through all of them with a dozen programs. Here tokens are
sorted by word first, each finding its place by comparing itself with all others, and then there is
a program for each word that occurs.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def rank_kernel(ids, words, order, tokens, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr):
    """The words of the tokens in ascending order, and whose they are; equal ones in their order."""
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    own = tl.load(ids + token, mask=token < tokens, other=0)
    place = tl.zeros((BLOCK_T,), tl.int32)
    for first in range(0, tokens, BLOCK_O):
        other = first + tl.arange(0, BLOCK_O)
        word = tl.load(ids + other, mask=other < tokens, other=0)
        earlier = (word[None, :] == own[:, None]) & (other[None, :] < token[:, None])
        before = (earlier | (word[None, :] < own[:, None])) & (other < tokens)[None, :]
        place += tl.sum(before.to(tl.int32), 1)
    tl.store(words + place, own.to(tl.int32), mask=token < tokens)
    tl.store(order + place, token, mask=token < tokens)


@triton.jit(do_not_specialize=["count", "tokens", "padding"])
def word_sums_kernel(
    gradient,
    words,
    order,
    sums,
    count,
    tokens,
    padding,
    WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Sums of (tokens, WIDTH) by word, of which there are ``count``.

    Whoever is at a word's first token adds them all up.
    """
    start = tl.program_id(0)
    word = tl.load(words + start)
    previous = tl.load(words + start - 1, mask=start > 0, other=-1)
    if (word != previous) & (word != padding) & (word >= 0) & (word < count):
        cols = tl.arange(0, BLOCK_W)
        inside = cols < WIDTH
        total = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
        first = start
        more = True
        while more:
            places = first + tl.arange(0, BLOCK_R)
            same = tl.load(words + places, mask=places < tokens, other=-1) == word
            lines = tl.load(order + places, mask=same, other=0).to(tl.int64)
            offsets = lines[:, None] * WIDTH + cols[None, :]
            total += tl.load(gradient + offsets, mask=same[:, None] & inside[None, :], other=0.0)
            more = tl.min(same.to(tl.int32), 0) == 1
            first += BLOCK_R
        tl.store(sums + word.to(tl.int64) * WIDTH + cols, tl.sum(total, 0), mask=inside)
