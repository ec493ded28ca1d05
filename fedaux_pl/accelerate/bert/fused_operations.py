"""The operations between a BERT's matrix products, except attention, one kernel each.

A backward function also writes partial sums of gradients that are sums over all rows, such as those
of biases. ``partials`` are its columns of a matrix (parts, columns); :func:`add_partial_sums` adds
up the rows.
"""

import torch
from torch import Tensor

from fedaux_pl.accelerate.bert import pass_config
from fedaux_pl.accelerate.bert.pass_config import (
    SUM_WARPS,
    WARPS,
    Dropout,
    PassConfig,
    row_blocks,
)
from fedaux_pl.accelerate.context import launch
from fedaux_pl.accelerate.convolution.tiling import next_power_of_two

MAX_RANKED = 2**13  # the most tokens that are sorted by comparing each with all others
# States (rows, width) in float32 and in half precision, and LayerNorm's mean and 1 / std (rows, 2).
Normalized = tuple[Tensor, Tensor, Tensor]


def embed(
    config: PassConfig,
    ids: Tensor,
    tables: tuple[Tensor, Tensor, Tensor],
    norm: tuple[Tensor, Tensor],
    dropout: Dropout,
) -> Normalized:
    """Dropout(LayerNorm(word + position + token type))."""
    outputs = _allocate(config, config.dtype, ids.device)
    width = config.encoder.width
    blocks = row_blocks(width)
    launch("embed_kernel", (-(-config.rows // blocks["BLOCK_R"]),),
        ids, config.slots(ids), *tables, *norm, *outputs,
        len(tables[0]), *dropout.seed_arguments(ids),
        config.rows, config.length, config.encoder.eps, dropout.rate,
        DROPOUT=dropout.is_active, PACKED=config.is_packed, WIDTH=width, **blocks,
    )  # fmt: skip
    return outputs


def embed_backward(
    config: PassConfig,
    *,
    dstates: Tensor,
    dhalf: Tensor,
    ids: Tensor,
    tables: tuple[Tensor, Tensor, Tensor],
    norm_weight: Tensor,
    norm_stats: Tensor,
    dropout: Dropout,
    partials: Tensor,
) -> Tensor:
    """The gradient of each token's sum of embeddings, shape (rows, width).

    The partial sums are those of the norm's weight and bias and of the token-type embedding.
    """
    dsum = torch.empty_like(dstates)
    width = config.encoder.width
    launch("embed_backward_kernel", (config.parts,),
        dstates, dhalf, ids, config.slots(ids), *tables, norm_stats, norm_weight,
        dsum, partials, len(tables[0]), *dropout.seed_arguments(ids),
        config.rows, config.length, config.rows_per_part, partials.stride(0), dropout.rate,
        DROPOUT=dropout.is_active, PACKED=config.is_packed, WIDTH=width,
        **row_blocks(width, SUM_WARPS),
    )  # fmt: skip
    return dsum


def embedding_gradient(dtokens: Tensor, ids: Tensor, vocab_size: int, padding_index: int) -> Tensor:
    """The gradient of a table (vocab_size, width), summed in the order of the tokens.

    Args:
        dtokens: The gradient of each token's embedding, shape (tokens, width).
        ids: The token ids.
        vocab_size: The number of rows of the table.
        padding_index: The row that gets no gradient; -1 if there is none.
    """
    tokens, width = dtokens.shape
    if tokens > MAX_RANKED:
        gradient: Tensor = torch.ops.aten.embedding_dense_backward(
            dtokens, ids.flatten(), vocab_size, padding_index, False
        )
        return gradient
    words, order = (torch.empty(tokens, dtype=torch.int32, device=ids.device) for _ in range(2))
    sums = torch.zeros(vocab_size, width, device=ids.device)
    launch(
        "rank_kernel",
        (-(-tokens // 8),),
        ids,
        words,
        order,
        tokens,
        BLOCK_T=8,
        BLOCK_O=512,
        num_warps=WARPS,
    )
    launch("word_sums_kernel", (tokens,),
        dtokens, words, order, sums, vocab_size, tokens, padding_index,
        WIDTH=width, BLOCK_R=16, BLOCK_W=next_power_of_two(width), num_warps=WARPS,
    )  # fmt: skip
    return sums


def add_norm(
    config: PassConfig, y: Tensor, residual: Tensor, norm: tuple[Tensor, Tensor], dropout: Dropout
) -> Normalized:
    """LayerNorm(residual + dropout(y)); the half-precision states have the dtype of y."""
    outputs = _allocate(config, y.dtype, y.device)
    width = config.encoder.width
    blocks = row_blocks(width)
    launch("add_norm_kernel", (-(-config.rows // blocks["BLOCK_R"]),),
        y, residual, config.slots(y), *norm, *outputs, *dropout.seed_arguments(y),
        config.rows, config.encoder.eps, dropout.rate,
        DROPOUT=dropout.is_active, PACKED=config.is_packed, WIDTH=width, **blocks,
    )  # fmt: skip
    return outputs


def add_norm_backward(
    config: PassConfig,
    *,
    dstates: Tensor,
    dhalf: Tensor | None,
    y: Tensor,
    residual: Tensor,
    norm_weight: Tensor,
    norm_stats: Tensor,
    dropout: Dropout,
    partials: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradients of residual and y.

    The partial sums are those of the norm's weight and bias and of the bias that was added to y.
    """
    dresidual, dy = torch.empty_like(dstates), torch.empty_like(y)
    width = config.encoder.width
    launch("add_norm_backward_kernel", (config.parts,),
        dstates, dstates if dhalf is None else dhalf, y, residual, config.slots(y), norm_stats,
        norm_weight, dresidual, dy, partials, *dropout.seed_arguments(y),
        config.rows, config.rows_per_part, partials.stride(0), dropout.rate,
        HAS_HALF=dhalf is not None, DROPOUT=dropout.is_active, PACKED=config.is_packed,
        WIDTH=width, **row_blocks(width, SUM_WARPS),
    )  # fmt: skip
    return dresidual, dy


def gelu(x: Tensor) -> Tensor:
    """The exact GELU, with the error function."""
    y = torch.empty_like(x)
    tile = pass_config.TILE
    launch("gelu_kernel", (-(-x.numel() // tile),), x, y, x.numel(), BLOCK=tile, num_warps=WARPS)
    return y


def gelu_backward(config: PassConfig, dy: Tensor, x: Tensor, partials: Tensor) -> Tensor:
    """The gradient of x; the partial sums are those of the bias that was added to x."""
    dx = torch.empty_like(x)
    width = x.shape[1]
    blocks = row_blocks(min(width, 256))
    launch("gelu_backward_kernel", (config.parts, -(-width // blocks["BLOCK_W"])),
        dy, x, dx, partials, config.rows, config.rows_per_part, partials.stride(0),
        WIDTH=width, **blocks,
    )  # fmt: skip
    return dx


def add_partial_sums(partials: Tensor, out: Tensor) -> None:
    """Adds up the rows of partial sums (parts, columns) into the first ``columns`` of ``out``."""
    parts, columns = partials.shape
    launch(
        "sum_partials_kernel", (-(-columns // 32),), partials, out, parts, columns, **row_blocks(32)
    )


def _allocate(config: PassConfig, dtype: torch.dtype, device: torch.device) -> Normalized:
    shape = (config.rows, config.encoder.width)
    return (
        torch.empty(shape, dtype=torch.float32, device=device),
        torch.empty(shape, dtype=dtype, device=device),
        torch.empty((config.rows, 2), dtype=torch.float32, device=device),
    )
