"""The parameters of a BERT in a fixed order, and their half-precision copies."""

from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor


class EmbeddingParameters(NamedTuple):
    """The embedding tables and the LayerNorm after their sum."""

    word: Tensor
    position: Tensor
    token_type: Tensor
    norm_weight: Tensor
    norm_bias: Tensor

    @property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tables of words, positions and token types."""
        return self.word, self.position, self.token_type


class LayerParameters(NamedTuple):
    """A layer: attention with its output projection, and the MLP (intermediate, output)."""

    query: Tensor
    key: Tensor
    value: Tensor
    query_bias: Tensor
    key_bias: Tensor
    value_bias: Tensor
    projection: Tensor
    projection_bias: Tensor
    attention_norm_weight: Tensor
    attention_norm_bias: Tensor
    intermediate: Tensor
    intermediate_bias: Tensor
    output: Tensor
    output_bias: Tensor
    output_norm_weight: Tensor
    output_norm_bias: Tensor


class HalfWeights(NamedTuple):
    """Half-precision weights and biases of a layer's matrix products; Q, K and V are one matrix."""

    qkv: Tensor
    qkv_bias: Tensor
    projection: Tensor
    projection_bias: Tensor
    intermediate: Tensor
    intermediate_bias: Tensor
    output: Tensor
    output_bias: Tensor


def collect_parameters(encoder: Any) -> list[Tensor]:
    """All parameters of a BERT: ``EmbeddingParameters``, then ``LayerParameters`` of each layer."""
    embeddings = encoder.embeddings
    tables = (
        embeddings.word_embeddings,
        embeddings.position_embeddings,
        embeddings.token_type_embeddings,
    )
    norm = embeddings.LayerNorm
    parameters = [*(table.weight for table in tables), norm.weight, norm.bias]
    for layer in encoder.encoder.layer:
        attention, projection, output = layer.attention.self, layer.attention.output, layer.output
        qkv = attention.query, attention.key, attention.value
        parameters += [linear.weight for linear in qkv] + [linear.bias for linear in qkv]
        attention_norm, intermediate = projection.LayerNorm, layer.intermediate.dense
        modules = projection.dense, attention_norm, intermediate, output.dense, output.LayerNorm
        for module in modules:
            parameters += [module.weight, module.bias]
    return parameters


def group_parameters(flat: Sequence[Any]) -> tuple[EmbeddingParameters, list[LayerParameters]]:
    """Groups the list of :func:`collect_parameters`, or any list of one value for each of them."""
    count, size = len(EmbeddingParameters._fields), len(LayerParameters._fields)
    starts = range(count, len(flat), size)
    layers = [LayerParameters(*flat[start : start + size]) for start in starts]
    return EmbeddingParameters(*flat[:count]), layers


def cast_weights(layers: Sequence[LayerParameters], dtype: torch.dtype) -> list[HalfWeights]:
    """Casts the weights of all layers at once, into one buffer."""
    # for each layer the parameters that make up each field of HalfWeights
    sources: list[tuple[Tensor, ...]] = []
    for layer in layers:
        sources += [
            (layer.query, layer.key, layer.value),
            (layer.query_bias, layer.key_bias, layer.value_bias),
            *((getattr(layer, name),) for name in HalfWeights._fields[2:]),
        ]
    parameters = list(chain(*sources))
    sizes = [parameter.numel() for parameter in parameters]
    buffer = torch.empty(sum(sizes), dtype=dtype, device=parameters[0].device)
    copies = map(Tensor.view_as, torch.split(buffer, sizes), parameters)
    torch._foreach_copy_(list(copies), parameters)
    sizes = [sum(parameter.numel() for parameter in parts) for parts in sources]
    fields = (
        values.view(-1, *parts[0].shape[1:])
        for values, parts in zip(torch.split(buffer, sizes), sources, strict=True)
    )
    return [HalfWeights(*islice(fields, len(HalfWeights._fields))) for _ in layers]
