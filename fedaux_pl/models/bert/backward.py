"""The way back through a BERT, in few kernels.

For autograd the whole pass is one step: nothing is added up that need not be, and sums over all
tokens, such as the gradients of biases, are left by each kernel as partial sums in one matrix,
which one kernel adds up at the end. Gradients of weights are never rounded to half precision.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedaux_pl.models.bert import steps
from fedaux_pl.models.bert.attention import attend_backward
from fedaux_pl.models.bert.forward import (
    Embedding,
    Kept,
    Layer,
    Low,
    Plan,
    draw_seeds,
    forward,
    grouped,
)
from fedaux_pl.models.bert.steps import Partials
from fedaux_pl.models.bert.words import word_gradient
from fedaux_pl.models.overlap import Side, current_side, weight_product, weight_product_aside

_EMBEDDING = len(Embedding._fields)
# What each matrix of partial sums is made of, layer by layer, and the embedding after them.
_SITES = (
    ("query_bias", "key_bias", "value_bias"),
    ("scale", "shift", "output_bias"),
    ("inner_bias",),
    ("last_scale", "last_shift", "outer_bias"),
)
_LAST = ("scale", "shift", "kind")


def encode(plan: Plan, ids: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """The states of the last layer, (rows, width), float32.

    Args:
        plan: What is done.
        ids: Token ids (N, L), next to each other in memory.
        parameters: Those of an ``Embedding`` and of every ``Layer``.
    """
    seeds = draw_seeds(plan, ids.device)
    if torch.is_grad_enabled() and any(one.requires_grad for one in parameters):
        states: Tensor = _Pass.apply(plan, ids, seeds, current_side(), *parameters)  # type: ignore[no-untyped-call]
        return states
    return forward(plan, ids, seeds, *grouped(parameters), None)[0]


class _Pass(torch.autograd.Function):
    """The pass and the way back."""

    @staticmethod
    def forward(
        ctx: Any,
        plan: Plan,
        ids: Tensor,
        seeds: Tensor | None,
        side: Side | None,
        *parameters: Tensor,
    ) -> Tensor:
        kept: list[Tensor] = []
        states, weights = forward(plan, ids, seeds, *grouped(parameters), kept)
        ctx.save_for_backward(ids, seeds, *parameters, *chain(*weights), *kept)
        # The way back is in another thread, which knows nothing of the context.
        ctx.plan, ctx.side, ctx.parameters = plan, side, parameters
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dstates: Tensor) -> tuple[Tensor | None, ...]:
        ids, seeds, *saved = ctx.saved_tensors
        count = len(ctx.parameters)
        embedding, layers = grouped(saved[:count])
        saved = saved[count:]
        weights = [Low(*part) for part in _cut(saved, len(Low._fields), len(layers))]
        stats, *saved = saved[len(layers) * len(Low._fields) :]
        kept = [Kept(*part) for part in _cut(saved, len(Kept._fields), len(layers))]

        way = _Back(ctx.plan, ids, seeds, ctx.side, ctx.parameters, ctx.needs_input_grad[4:])
        dstates = dstates.float().contiguous()
        dhalf: Tensor | None = None
        for number in reversed(range(way.lowest, len(layers))):
            given = (layers[number], weights[number], kept[number])
            dstates, dhalf = way.through_layer(number, *given, dstates, dhalf)
        if way.to_the_end:
            assert dhalf is not None  # noqa: S101 - there are layers
            way.through_embedding(embedding, stats, dstates, dhalf)
        way.add_up(embedding)
        return None, None, None, None, *way.found


class _Back:
    """The way back of one pass.

    Args:
        plan: That of the pass.
        ids: Token ids.
        seeds: Of dropout.
        side: Where gradients of weights are computed, if not here.
        parameters: Those of the pass.
        wanted: Of which of them gradients are wanted.

    Attributes:
        found: Their gradients.
        to_the_end: Whether the embedding is trained.
        lowest: The lowest layer that the way goes through: below it nothing is trained.
    """

    def __init__(
        self,
        plan: Plan,
        ids: Tensor,
        seeds: Tensor | None,
        side: Side | None,
        parameters: Sequence[Tensor],
        wanted: Sequence[bool],
    ) -> None:
        self._plan, self._ids, self._seeds, self._side = plan, ids, seeds, side
        self._parameters, self._wanted = parameters, wanted
        self.found: list[Tensor | None] = [None] * len(parameters)
        first = list(wanted).index(True)
        self.to_the_end = first < _EMBEDDING
        self.lowest = 0 if self.to_the_end else (first - _EMBEDDING) // len(Layer._fields)
        _, layers = grouped(range(len(parameters)))
        self._firsts: list[list[int]] = []
        self._places: list[int] = []  # of all parameters in the sums, one after another
        columns = 0
        for layer in layers:
            firsts = []
            for site in _SITES:
                firsts.append(columns)
                self._places += (places := [getattr(layer, name) for name in site])
                columns += sum(parameters[place].numel() for place in places)
            self._firsts.append(firsts)
        self._last = columns
        columns += len(_LAST) * plan.sizes.width
        make = torch.empty if self.to_the_end else torch.zeros  # where not all of it is written
        self._sums = make(plan.sizes.parts, columns, device=ids.device)

    def through_layer(
        self,
        number: int,
        layer: Layer,
        low: Low,
        kept: Kept,
        dstates: Tensor,
        dhalf: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The gradients of a layer's input and of its copy in half precision."""
        plan, sizes = self._plan, self._plan.sizes
        sums = [Partials(self._sums, first) for first in self._firsts[number]]
        drops = [plan.dropout(self._seeds, 3 * number + site) for site in (1, 2, 3)]
        at = _EMBEDDING + number * len(Layer._fields)
        dstates, dy = steps.add_norm_backward(
            sizes, dstates, dhalf, kept.last_y, kept.middle, kept.last_stats, layer.last_scale,
            sums[3], drops[2],
        )  # fmt: skip
        self._weights(at, ("outer",), dy, kept.after)
        dy = steps.gelu_backward(sizes, dy @ low.outer, kept.before, sums[2])
        self._weights(at, ("inner",), dy, kept.middle_half)
        dstates, dy = steps.add_norm_backward(
            sizes, dstates, dy @ low.inner, kept.y, kept.states, kept.stats, layer.scale,
            sums[1], drops[1],
        )  # fmt: skip
        self._weights(at, ("output",), dy, kept.taken)
        dy = attend_backward(sizes, dy @ low.output, kept.qkv, self._ids, sums[0], drops[0])
        self._weights(at, ("query", "key", "value"), dy, kept.half)
        return dstates, dy @ low.qkv

    def _weights(self, at: int, names: Sequence[str], dy: Tensor, x: Tensor) -> None:
        """The gradients of weights whose outputs are next to each other."""
        places = [at + Layer._fields.index(name) for name in names]
        if not any(self._wanted[place] for place in places):
            return
        weights = [self._parameters[place] for place in places]
        if self._side is not None and self._side.takes(weights):
            weight_product_aside(self._side, weights, dy, x)
            return
        out = torch.empty(dy.shape[1], x.shape[1], device=x.device)
        found = torch.split(weight_product(dy, x, out), [len(weight) for weight in weights])
        for place, gradient in zip(places, found, strict=True):
            self._give(place, gradient)

    def through_embedding(
        self, embedding: Embedding, stats: Tensor, dstates: Tensor, dhalf: Tensor
    ) -> None:
        """The gradients of the embedding, but for sums over all tokens."""
        plan, sizes = self._plan, self._plan.sizes
        dsum = steps.embed_backward(
            sizes, dstates, dhalf, self._ids, embedding.tables, stats, embedding.scale,
            Partials(self._sums, self._last), plan.dropout(self._seeds, 0),
        )  # fmt: skip
        word, position, *_ = range(_EMBEDDING)
        if self._wanted[word]:
            gradient = word_gradient(dsum, self._ids, len(embedding.word), plan.padding)
            self._give(word, gradient)
        if self._wanted[position]:
            gradient = torch.zeros_like(embedding.position)
            torch.sum(dsum.view(*self._ids.shape, -1), 0, out=gradient[: sizes.length])
            self._give(position, gradient)

    def add_up(self, embedding: Embedding) -> None:
        """The gradients that are sums over all tokens, of what the way went through."""
        # the vectors of further types, which no text has, are after the first in memory
        columns, others = self._sums.shape[1], embedding.kind[1:].numel()
        found = torch.zeros(columns + others, device=self._sums.device)
        steps.sum_partials(self._sums, found)
        given = [embedding.scale, embedding.shift, embedding.kind]
        names = [Embedding._fields.index(name) for name in _LAST]
        given = [*(self._parameters[place] for place in self._places), *given]
        parts = torch.split(found, [one.numel() for one in given])
        for place, one, part in zip([*self._places, *names], given, parts, strict=True):
            self._give(place, part.view_as(one))

    def _give(self, place: int, gradient: Tensor) -> None:
        if self._wanted[place]:
            self.found[place] = gradient


def _cut(tensors: Sequence[Tensor], size: int, count: int) -> list[Sequence[Tensor]]:
    """The first parts of so many tensors."""
    return [tensors[number * size : (number + 1) * size] for number in range(count)]
