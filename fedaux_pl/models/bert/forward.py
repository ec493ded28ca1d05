"""A pass through a BERT in half precision, in few kernels.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
2019. Products are PyTorch's; what lies between two of them is one kernel (``steps``). As
under autocast products are in half precision, and the residual stream, LayerNorm and softmax in
float32. For the way back see ``backward``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedaux_pl.models.bert import steps
from fedaux_pl.models.bert.attention import attend
from fedaux_pl.models.bert.steps import Dropout, Sizes


class Embedding(NamedTuple):
    """Parameters of the embedding."""

    word: Tensor
    position: Tensor
    kind: Tensor
    scale: Tensor
    shift: Tensor

    @property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """The vectors of words, positions and types."""
        return self.word, self.position, self.kind

    @property
    def norm(self) -> tuple[Tensor, Tensor]:
        """Scale and shift of LayerNorm."""
        return self.scale, self.shift


class Layer(NamedTuple):
    """Parameters of a layer: attention, its output, and the two products of the MLP."""

    query: Tensor
    key: Tensor
    value: Tensor
    query_bias: Tensor
    key_bias: Tensor
    value_bias: Tensor
    output: Tensor
    output_bias: Tensor
    scale: Tensor
    shift: Tensor
    inner: Tensor
    inner_bias: Tensor
    outer: Tensor
    outer_bias: Tensor
    last_scale: Tensor
    last_shift: Tensor


class Low(NamedTuple):
    """Weights and biases of a layer's products in half precision, one after another in memory."""

    qkv: Tensor
    qkv_bias: Tensor
    output: Tensor
    output_bias: Tensor
    inner: Tensor
    inner_bias: Tensor
    outer: Tensor
    outer_bias: Tensor


class Kept(NamedTuple):
    """What the way back needs of a layer."""

    half: Tensor
    states: Tensor
    qkv: Tensor
    taken: Tensor
    y: Tensor
    stats: Tensor
    middle_half: Tensor
    middle: Tensor
    before: Tensor
    after: Tensor
    last_y: Tensor
    last_stats: Tensor


@dataclass(frozen=True)
class Plan:
    """What a pass does beside its tensors.

    Args:
        sizes: Its sizes.
        dtype: Of the products.
        rates: Of dropout: after the embedding, then for each layer in attention, after it and
            after the MLP.
        padding: The word whose vector has no gradient; -1 if there is none.
    """

    sizes: Sizes
    dtype: torch.dtype
    rates: tuple[float, ...]
    padding: int

    def dropout(self, seeds: Tensor | None, site: int) -> Dropout:
        """Dropout at a place."""
        return Dropout(self.rates[site], seeds, site)


def draw_seeds(plan: Plan, device: torch.device) -> Tensor | None:
    """Seeds of a pass, by the device's random numbers; None where nothing is dropped."""
    if not any(plan.rates):
        return None
    return torch.randint(2**63 - 1, (len(plan.rates),), device=device)


def grouped(parameters: Sequence[Any]) -> tuple[Embedding, list[Layer]]:
    """The parameters of a pass, or their places, from a row of all of them."""
    count, size = len(Embedding._fields), len(Layer._fields)
    rest = range(count, len(parameters), size)
    return Embedding(*parameters[:count]), [Layer(*parameters[at : at + size]) for at in rest]


def lowered(layers: Sequence[Layer], dtype: torch.dtype) -> list[Low]:
    """All weights cast at once, so that those of queries, keys and values are one matrix."""
    groups: list[list[tuple[Tensor, ...]]] = [
        [
            layer[:3],
            layer[3:6],
            *((one,) for one in (layer.output, layer.output_bias)),
            *((one,) for one in (layer.inner, layer.inner_bias)),
            *((one,) for one in (layer.outer, layer.outer_bias)),
        ]
        for layer in layers
    ]
    given = [one for group in chain(*groups) for one in group]
    flat = torch.empty(sum(one.numel() for one in given), dtype=dtype, device=given[0].device)
    places = torch.split(flat, [one.numel() for one in given])
    torch._foreach_copy_([p.view_as(one) for p, one in zip(places, given, strict=True)], given)
    made, first = [], 0
    for group in groups:
        low = []
        for parts in group:
            size = sum(one.numel() for one in parts)
            low.append(flat[first : first + size].view(-1, *parts[0].shape[1:]))
            first += size
        made.append(Low(*low))
    return made


def forward(
    plan: Plan,
    ids: Tensor,
    seeds: Tensor | None,
    embedding: Embedding,
    layers: Sequence[Layer],
    keep: list[Tensor] | None,
) -> tuple[Tensor, list[Low]]:
    """The states of the last layer, (rows, width), float32; and the weights as they were used.

    Args:
        plan: What is done.
        ids: Token ids (N, L), next to each other in memory.
        seeds: Of dropout.
        embedding: The embedding's parameters.
        layers: Those of the layers.
        keep: Takes what the way back needs: the statistics of the embedding's norm, then
            :class:`Kept` of every layer. None without a way back.
    """
    sizes, dtype = plan.sizes, plan.dtype
    weights = lowered(layers, dtype)
    states, half, stats = steps.embed(
        sizes, ids, embedding.tables, embedding.norm, dtype, plan.dropout(seeds, 0)
    )
    if keep is not None:
        keep.append(stats)
    for number, (layer, low) in enumerate(zip(layers, weights, strict=True)):
        drops = [plan.dropout(seeds, 3 * number + site) for site in (1, 2, 3)]
        qkv = torch.addmm(low.qkv_bias, half, low.qkv.t())
        taken = attend(sizes, qkv, ids, drops[0])
        y = torch.addmm(low.output_bias, taken, low.output.t())
        norm = (layer.scale, layer.shift)
        middle, middle_half, stats = steps.add_norm(sizes, y, states, norm, drops[1])
        before = torch.addmm(low.inner_bias, middle_half, low.inner.t())
        after = steps.gelu(before)
        last_y = torch.addmm(low.outer_bias, after, low.outer.t())
        norm = (layer.last_scale, layer.last_shift)
        last, last_half, last_stats = steps.add_norm(sizes, last_y, middle, norm, drops[2])
        if keep is not None:
            keep += Kept(
                half, states, qkv, taken, y, stats, middle_half, middle, before, after, last_y,
                last_stats,
            )  # fmt: skip
        states, half = last, last_half
    return states, weights
