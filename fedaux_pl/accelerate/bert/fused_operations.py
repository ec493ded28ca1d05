"""The operations between a BERT's matrix products, one kernel each.

Backward functions write partial sums of gradients that are sums over all rows to ``partials``,
their columns of a matrix (parts, columns). ``dropout`` is an index of ``PassConfig.rates``.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedaux_pl.accelerate.bert.packing import Packing
from fedaux_pl.accelerate.context import MIN_BLOCK, ceil_div, launch, next_power_of_two

TILE = 2048  # values of a tile
WARPS = 4
# Kernels that sum over rows keep three tiles of sums. At 384 values a row they need 103 registers
# this way, and 193 with four warps or with tiles twice as large.
SUM_WARPS = 8
# programs that sum over rows, each writing a row of partial sums
FEW_PARTS = 128
MANY_PARTS = 512
MANY_ROWS = 2**14  # from this number of rows on there are MANY_PARTS
MAX_RANKED = 2**13  # the most tokens that are sorted by comparing each with all others

Tables = tuple[Tensor, Tensor, Tensor]  # of words, positions and token types
NormWeights = tuple[Tensor, Tensor]  # weight and bias
Saved = tuple[Tensor, ...]  # what the backward function needs


@dataclass(frozen=True)
class PassConfig:
    """One pass through an encoder. States are matrices (rows, width)."""

    width: int
    heads: int
    eps: float  # of LayerNorm
    padding_index: int  # the row of the word-embedding table without a gradient; -1: none
    causal: bool  # whether a token attends to itself and earlier tokens only
    dtype: torch.dtype  # of matrix products
    packing: Packing
    # of dropout: after the embedding; for each layer in attention, after it and after the MLP
    rates: tuple[float, ...]
    seeds: Tensor  # of all dropout layers; any tensor if nothing is dropped

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.rates) // 3

    @property
    def rows(self) -> int:
        """The number of rows: N * L, or those of packed texts."""
        return self.packing.ids.numel()

    @property
    def parts(self) -> int:
        """The number of partial sums of a sum over all rows."""
        return FEW_PARTS if self.rows < MANY_ROWS else MANY_PARTS

    @property
    def rows_per_part(self) -> int:
        """The rows of a partial sum."""
        return ceil_div(self.rows, self.parts)

    def constants(self, dropout: int) -> dict[str, Any]:
        """The compile-time arguments of all kernels with dropout."""
        return {"DROPOUT": self.rates[dropout] > 0, "PACKED": self.packing.is_packed}


def embed(config: PassConfig, tables: Tables, norm: NormWeights) -> tuple[Tensor, Tensor, Saved]:
    """Return dropout(LayerNorm(word + position + token type)) in float32 and half precision."""
    packing = config.packing
    states, half, stats = _allocate(config, config.dtype)
    blocks = _row_blocks(config.width)
    launch("embed_kernel", (ceil_div(config.rows, blocks["BLOCK_R"]),),
        packing.ids, packing.slots, *tables, *norm, states, half, stats,
        len(tables[0]), config.seeds, 0, config.rows, packing.length, config.eps, config.rates[0],
        WIDTH=config.width, **config.constants(0), **blocks,
    )  # fmt: skip
    return states, half, (*tables, stats, norm[0])


def embed_backward(
    config: PassConfig,
    dstates: Tensor,
    dhalf: Tensor,
    saved: Saved,
    partials: Tensor,
) -> Tensor:
    """Return the gradient of each token's sum of embeddings; partial sums: norm, token type."""
    packing = config.packing
    dsum = torch.empty_like(dstates)
    launch("embed_backward_kernel", (config.parts,),
        dstates, dhalf, packing.ids, packing.slots, *saved,
        dsum, partials, len(saved[0]), config.seeds, 0,
        config.rows, packing.length, config.rows_per_part, partials.stride(0), config.rates[0],
        WIDTH=config.width, **config.constants(0), **_row_blocks(config.width, SUM_WARPS),
    )  # fmt: skip
    return dsum


def word_gradient(config: PassConfig, dtokens: Tensor, table: Tensor) -> Tensor:
    """Return the gradient of the word-embedding table: sums of rows by word, in their order."""
    ids = config.packing.ids
    padding_index = config.padding_index
    vocab_size = len(table)
    tokens, width = dtokens.shape
    if tokens > MAX_RANKED:
        gradient: Tensor = torch.ops.aten.embedding_dense_backward(
            dtokens, ids.flatten(), vocab_size, padding_index, False
        )
        return gradient
    words = torch.empty(tokens, dtype=torch.int32, device=ids.device)
    order = torch.empty_like(words)
    sums = torch.zeros(vocab_size, width, device=ids.device)
    launch("rank_kernel", (ceil_div(tokens, 8),),
        ids, words, order, tokens, BLOCK_T=8, BLOCK_O=512, num_warps=WARPS,
    )  # fmt: skip
    launch("word_sums_kernel", (tokens,),
        dtokens, words, order, sums, vocab_size, tokens, padding_index,
        WIDTH=width, BLOCK_R=16, BLOCK_W=next_power_of_two(width), num_warps=WARPS,
    )  # fmt: skip
    return sums


def position_gradient(config: PassConfig, dtokens: Tensor, table: Tensor) -> Tensor:
    """Return the gradient of the position-embedding table: sums of rows by position."""
    packing = config.packing
    width = config.width
    gradient = torch.zeros_like(table)
    if packing.is_packed:
        launch("position_sums_kernel", (packing.length, ceil_div(width, 128)),
            dtokens, packing.starts, gradient, packing.texts,
            WIDTH=width, BLOCK_N=16, BLOCK_W=128, num_warps=WARPS,
        )  # fmt: skip
    else:
        rows = dtokens.view(packing.texts, packing.length, width)
        torch.sum(rows, 0, out=gradient[: packing.length])
    return gradient


def add_norm(
    config: PassConfig,
    y: Tensor,
    residual: Tensor,
    norm: NormWeights,
    dropout: int,
) -> tuple[Tensor, Tensor, Saved]:
    """Return LayerNorm(residual + dropout(y)) in float32 and in the dtype of y."""
    states, half, stats = _allocate(config, y.dtype)
    blocks = _row_blocks(config.width)
    launch("add_norm_kernel", (ceil_div(config.rows, blocks["BLOCK_R"]),),
        y, residual, config.packing.slots, *norm, states, half, stats, config.seeds, dropout,
        config.rows, config.eps, config.rates[dropout],
        WIDTH=config.width, **config.constants(dropout), **blocks,
    )  # fmt: skip
    return states, half, (y, residual, stats, norm[0])


def add_norm_backward(
    config: PassConfig,
    dstates: Tensor,
    dhalf: Tensor | None,
    saved: Saved,
    dropout: int,
    partials: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of residual and y; partial sums: norm, the bias that was added to y."""
    y, residual, *norm = saved
    dresidual = torch.empty_like(dstates)
    dy = torch.empty_like(y)
    launch("add_norm_backward_kernel", (config.parts,),
        dstates, dstates if dhalf is None else dhalf, y, residual, config.packing.slots, *norm,
        dresidual, dy, partials, config.seeds, dropout,
        config.rows, config.rows_per_part, partials.stride(0), config.rates[dropout],
        HAS_HALF=dhalf is not None, WIDTH=config.width, **config.constants(dropout),
        **_row_blocks(config.width, SUM_WARPS),
    )  # fmt: skip
    return dresidual, dy


def attend(config: PassConfig, qkv: Tensor, dropout: int) -> Tensor:
    """Return the attention output of all heads, before the projection, shape (rows, width)."""
    packing = config.packing
    out = qkv.new_empty(config.rows, config.width)
    options = _attention_options(config, dropout, fewest_warps=1, most_queries=32)
    launch("attention_kernel", (packing.all_texts * config.heads,),
        qkv, packing.ids, packing.starts, out, config.seeds, dropout,
        packing.length, packing.pad_id, options["DIM"] ** -0.5, config.rates[dropout], **options,
    )  # fmt: skip
    return out


def attend_backward(
    config: PassConfig,
    dout: Tensor,
    qkv: Tensor,
    dropout: int,
    partials: Tensor,
) -> Tensor:
    """Return the gradient of queries, keys and values; the partial sums are of their biases."""
    packing = config.packing
    dqkv = torch.empty_like(qkv)
    # With 32 queries of 32 values at 128 keys, registers spill (504 bytes a thread on sm_90).
    options = _attention_options(config, dropout, fewest_warps=2, most_queries=16)
    launch("attention_backward_kernel", (config.parts * config.heads,),
        dout, qkv, packing.ids, packing.starts, dqkv, partials, config.seeds, dropout,
        packing.all_texts, packing.length, packing.pad_id, options["DIM"] ** -0.5,
        config.rates[dropout], config.parts, partials.stride(0), **options,
    )  # fmt: skip
    return dqkv


def _attention_options(
    config: PassConfig, dropout: int, *, fewest_warps: int, most_queries: int
) -> dict[str, Any]:
    """Compile-time arguments: short texts take ``fewest_warps``, long ones ``most_queries``."""
    dim = config.width // config.heads
    dim_block = next_power_of_two(dim, MIN_BLOCK)
    length_block = next_power_of_two(config.packing.length, MIN_BLOCK)
    warps = 4 if length_block * dim_block <= 2048 else 8
    return config.constants(dropout) | {
        "CAUSAL": config.causal,
        "HEADS": config.heads,
        "DIM": dim,
        "BLOCK_Q": length_block if length_block <= 64 else most_queries,
        "BLOCK_L": length_block,
        "BLOCK_D": dim_block,
        "num_warps": fewest_warps if length_block <= 32 else warps,
    }


def gelu(x: Tensor) -> Tensor:
    """The exact GELU, with the error function."""
    y = torch.empty_like(x)
    grid = (ceil_div(x.numel(), TILE),)
    launch("gelu_kernel", grid, x, y, x.numel(), BLOCK=TILE, num_warps=WARPS)
    return y


def gelu_backward(config: PassConfig, dy: Tensor, x: Tensor, partials: Tensor) -> Tensor:
    """Return the gradient of x; the partial sums are those of the bias that was added to x."""
    dx = torch.empty_like(x)
    width = x.shape[1]
    blocks = _row_blocks(min(width, 256))
    launch("gelu_backward_kernel", (config.parts, ceil_div(width, blocks["BLOCK_W"])),
        dy, x, dx, partials, config.rows, config.rows_per_part, partials.stride(0),
        WIDTH=width, **blocks,
    )  # fmt: skip
    return dx


def add_partial_sums(partials: Tensor, out: Tensor) -> None:
    """Add up the rows of partial sums (parts, columns) into the first ``columns`` of ``out``."""
    grid = (ceil_div(partials.shape[1], 32),)
    launch("sum_partials_kernel", grid, partials, out, *partials.shape, **_row_blocks(32))


def _row_blocks(width: int, warps: int = WARPS) -> dict[str, int]:
    """Launch options of a kernel whose programs process a tile of whole rows at once."""
    block = next_power_of_two(width)
    return {"BLOCK_R": max(1, TILE // block), "BLOCK_W": block, "num_warps": warps}


def _allocate(config: PassConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate states in float32 and in another dtype, and the norm's mean and 1 / std."""
    shape = config.rows, config.width
    states = torch.empty(shape, dtype=torch.float32, device=config.packing.ids.device)
    return states, torch.empty_like(states, dtype=dtype), states.new_empty(config.rows, 2)
