"""The forward pass through a BERT in half precision.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
2019. As under autocast, matrix products are in half precision; the residual stream, LayerNorm and
softmax are in float32.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedaux_pl.accelerate.bert.attention import attend
from fedaux_pl.accelerate.bert.bert_parameters import (
    EmbeddingParameters,
    HalfWeights,
    LayerParameters,
    cast_weights,
)
from fedaux_pl.accelerate.bert.fused_operations import add_norm, embed, gelu
from fedaux_pl.accelerate.bert.pass_config import PassConfig


class SavedActivations(NamedTuple):
    """What the backward pass needs of a layer.

    States of the residual stream are in float32 and in half precision; ``*_norm_stats`` are the
    mean and 1 / std of each row.
    """

    input: Tensor
    input_half: Tensor
    qkv: Tensor
    heads: Tensor  # the attention output of all heads
    projected: Tensor
    attention_norm_stats: Tensor
    middle: Tensor  # the residual stream between attention and MLP
    middle_half: Tensor
    before_gelu: Tensor
    after_gelu: Tensor
    mlp_output: Tensor
    output_norm_stats: Tensor


def forward(
    config: PassConfig,
    ids: Tensor,
    seeds: Tensor | None,
    embedding: EmbeddingParameters,
    layers: Sequence[LayerParameters],
    saved: list[Tensor] | None,
) -> tuple[Tensor, list[HalfWeights]]:
    """Runs the forward pass.

    Args:
        config: The pass.
        ids: Token ids, (N, L) or of packed rows, contiguous.
        seeds: The seeds of all dropout layers.
        embedding: The parameters of the embedding.
        layers: The parameters of the layers.
        saved: A list to extend by what the backward pass needs: the statistics of the embedding's
            norm, then :class:`SavedActivations` of each layer. None without a backward pass.

    Returns:
        The states of the last layer, (rows, width) in float32, and the half-precision weights.
    """
    weights = cast_weights(layers, config.dtype)
    norm = (embedding.norm_weight, embedding.norm_bias)
    states, half, stats = embed(config, ids, embedding.tables, norm, config.dropout(0, seeds))
    if saved is not None:
        saved.append(stats)
    for number, (layer, cast) in enumerate(zip(layers, weights, strict=True)):
        dropouts = [config.dropout(3 * number + index, seeds) for index in (1, 2, 3)]
        qkv = torch.addmm(cast.qkv_bias, half, cast.qkv.t())
        heads = attend(config, qkv, ids, dropouts[0])
        projected = torch.addmm(cast.projection_bias, heads, cast.projection.t())
        norm = (layer.attention_norm_weight, layer.attention_norm_bias)
        middle, middle_half, stats = add_norm(config, projected, states, norm, dropouts[1])
        before = torch.addmm(cast.intermediate_bias, middle_half, cast.intermediate.t())
        after = gelu(before)
        output = torch.addmm(cast.output_bias, after, cast.output.t())
        norm = (layer.output_norm_weight, layer.output_norm_bias)
        last, last_half, last_stats = add_norm(config, output, middle, norm, dropouts[2])
        if saved is not None:
            saved += SavedActivations(
                input=states, input_half=half, qkv=qkv, heads=heads, projected=projected,
                attention_norm_stats=stats, middle=middle, middle_half=middle_half,
                before_gelu=before, after_gelu=after, mlp_output=output,
                output_norm_stats=last_stats,
            )  # fmt: skip
        states, half = last, last_half
    return states, weights
