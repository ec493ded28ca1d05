"""Attention of a BERT's layers, forward and backward, each of them one kernel."""

from typing import Any

import torch
from torch import Tensor

from fedaux_pl.models.batch_norm import on_device_of
from fedaux_pl.models.bert.steps import Dropout, Partials, Sizes, power

# What a program can have in hand: 128 keys and values of a head, if they have up to 64 numbers.
MOST_LENGTH, MOST_DIM = 128, 64
LEAST = 16  # of what tensor cores multiply


def fits_attention(length: int, dim: int) -> bool:
    """Whether a program can have all keys and values of a head in hand."""
    return length <= MOST_LENGTH and dim <= MOST_DIM


def attend(sizes: Sizes, qkv: Tensor, ids: Tensor, dropout: Dropout) -> Tensor:
    """What every token takes from the others of its text, (rows, width)."""
    from fedaux_pl.models import kernels

    out = qkv.new_empty(sizes.rows, sizes.width)
    options = _options(sizes, dropout, 1)
    with on_device_of(qkv):
        kernels.attention_kernel[(sizes.texts * sizes.heads,)](
            qkv,
            ids,
            out,
            *dropout.given(ids),
            sizes.length,
            sizes.pad,
            options["DIM"] ** -0.5,
            dropout.rate,
            **options,
        )
    return out


def attend_backward(
    sizes: Sizes, dout: Tensor, qkv: Tensor, ids: Tensor, partials: Partials, dropout: Dropout
) -> Tensor:
    """The gradient of queries, keys and values; sums are left behind for their biases."""
    from fedaux_pl.models import kernels

    dqkv = torch.empty_like(qkv)
    options = _options(sizes, dropout, 2)
    with on_device_of(qkv):
        kernels.attention_backward_kernel[(sizes.parts * sizes.heads,)](
            dout,
            qkv,
            ids,
            dqkv,
            partials.place,
            *dropout.given(ids),
            sizes.texts,
            sizes.length,
            sizes.pad,
            options["DIM"] ** -0.5,
            dropout.rate,
            sizes.parts,
            partials.columns,
            **options,
        )
    return dqkv


def _options(sizes: Sizes, dropout: Dropout, few: int) -> dict[str, Any]:
    """Arguments of both kernels; ``few`` is the number of warps for the shortest texts."""
    dim = sizes.width // sizes.heads
    block, keys = power(dim, LEAST), power(sizes.length, LEAST)
    return {
        "CAUSAL": sizes.causal,
        "DROPOUT": dropout.drops,
        "HEADS": sizes.heads,
        "DIM": dim,
        "BLOCK_Q": keys if keys <= 64 else 32,
        "BLOCK_L": keys,
        "BLOCK_D": block,
        "num_warps": few if keys <= 32 else 4 if keys * block <= 2048 else 8,
    }
