"""Attention of a BERT's layers, forward and backward, one kernel each."""

from typing import Any

import torch
from torch import Tensor

from fedaux_pl.accelerate.bert.pass_config import Dropout, PassConfig
from fedaux_pl.accelerate.context import launch
from fedaux_pl.accelerate.convolution.tiling import MIN_BLOCK, next_power_of_two

# A program holds all keys and values of a head in registers.
MAX_LENGTH, MAX_HEAD_DIM = 128, 64


def attend(config: PassConfig, qkv: Tensor, ids: Tensor, dropout: Dropout) -> Tensor:
    """The attention output of all heads, before the output projection, shape (rows, width)."""
    out = qkv.new_empty(config.rows, config.encoder.width)
    options = _kernel_options(config, dropout, fewest_warps=1, most_queries=32)
    launch("attention_kernel", (config.all_texts * config.encoder.heads,),
        qkv, ids, config.starts(ids), out, *dropout.seed_arguments(ids),
        config.length, config.encoder.pad_id, options["DIM"] ** -0.5, dropout.rate, **options,
    )  # fmt: skip
    return out


def attend_backward(
    config: PassConfig,
    *,
    dout: Tensor,
    qkv: Tensor,
    ids: Tensor,
    dropout: Dropout,
    partials: Tensor,
) -> Tensor:
    """The gradient of queries, keys and values; writes partial sums of those of their biases."""
    dqkv = torch.empty_like(qkv)
    # With 32 queries of 32 values at 128 keys, registers spill (504 bytes a thread on sm_90).
    options = _kernel_options(config, dropout, fewest_warps=2, most_queries=16)
    launch("attention_backward_kernel", (config.parts * config.encoder.heads,),
        dout, qkv, ids, config.starts(ids), dqkv, partials, *dropout.seed_arguments(ids),
        config.all_texts, config.length, config.encoder.pad_id, options["DIM"] ** -0.5,
        dropout.rate, config.parts, partials.stride(0), **options,
    )  # fmt: skip
    return dqkv


def _kernel_options(
    config: PassConfig, dropout: Dropout, *, fewest_warps: int, most_queries: int
) -> dict[str, Any]:
    """Compile-time arguments: short texts take ``fewest_warps``, long ones ``most_queries``."""
    dim = config.encoder.width // config.encoder.heads
    dim_block = next_power_of_two(dim, MIN_BLOCK)
    length_block = next_power_of_two(config.length, MIN_BLOCK)
    warps = 4 if length_block * dim_block <= 2048 else 8
    return {
        "CAUSAL": config.causal,
        "DROPOUT": dropout.is_active,
        "PACKED": config.is_packed,
        "HEADS": config.encoder.heads,
        "DIM": dim,
        "BLOCK_Q": length_block if length_block <= 64 else most_queries,
        "BLOCK_L": length_block,
        "BLOCK_D": dim_block,
        "num_warps": fewest_warps if length_block <= 32 else warps,
    }
