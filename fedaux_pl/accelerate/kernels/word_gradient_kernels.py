"""The gradient of the word-embedding table: for each word the sum over its tokens, in their order.

For few tokens PyTorch's kernel uses a dozen programs, each of which reads all tokens. Here a kernel
sorts the tokens by word: the rank of a token is the number of tokens that come before it. A second
kernel sums, with one program for each word that occurs.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def rank_kernel(ids, words, order, tokens, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr):
    """Sorts the tokens by word, stably; writes the sorted words and the token of each."""
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
