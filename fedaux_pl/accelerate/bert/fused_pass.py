"""A pass through a BERT of the transformers library with fused kernels.

Its results differ from those of the library's modules under autocast by rounding only. The whole
encoder is one autograd function.
"""

from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedaux_pl.accelerate.bert.bert_parameters import (
    HalfWeights,
    collect_parameters,
    group_parameters,
)
from fedaux_pl.accelerate.bert.encoder_backward import BackwardPass
from fedaux_pl.accelerate.bert.encoder_forward import SavedActivations, forward
from fedaux_pl.accelerate.bert.packing import Packing
from fedaux_pl.accelerate.bert.pass_config import EncoderConfig, PassConfig
from fedaux_pl.accelerate.context import current
from fedaux_pl.accelerate.convolution.weight_gradients import SideStream


def bert_states(
    encoder: Any,
    ids: Tensor,
    pad_id: int,
    dtype: torch.dtype,
    *,
    causal: bool = False,
    packing: Packing | None = None,
) -> Tensor:
    """The states of the last layer, shape (N, L, width), float32.

    Args:
        encoder: An encoder for which ``supported_encoders.can_fuse`` is true.
        ids: Token ids (N, L), all of token type 0.
        pad_id: The id of the padding token, to which no token attends.
        dtype: The dtype of matrix products.
        causal: Whether a token attends to itself and earlier tokens only.
        packing: Of these ids; then the states are those of its rows, shape (rows, width).
    """
    config, padding_index = encoder.config, encoder.embeddings.word_embeddings.padding_idx
    settings = EncoderConfig(
        width=config.hidden_size,
        heads=config.num_attention_heads,
        eps=float(config.layer_norm_eps),
        pad_id=pad_id,
        padding_index=-1 if padding_index is None else padding_index,
    )
    texts, length = ids.shape
    rates = _dropout_rates(encoder)
    one_pass = PassConfig(settings, texts, length, causal, dtype, rates, packing)
    ids = ids.contiguous() if packing is None else packing.ids
    parameters = collect_parameters(encoder)
    seeds = one_pass.draw_seeds(ids.device)
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
        states: Tensor = _BertFunction.apply(  # type: ignore[no-untyped-call]
            one_pass, ids, seeds, current().side_stream, *parameters
        )
    else:
        states, _ = forward(one_pass, ids, seeds, *group_parameters(parameters), saved=None)
    return states.view(*ids.shape, -1)


def _dropout_rates(encoder: Any) -> tuple[float, ...]:
    """The rates of all dropout layers, in the order of ``PassConfig``; 0 outside of training."""
    dropouts = [encoder.embeddings.dropout]
    for layer in encoder.encoder.layer:
        attention = layer.attention
        dropouts += [attention.self.dropout, attention.output.dropout, layer.output.dropout]
    return tuple(float(dropout.p) if dropout.training else 0.0 for dropout in dropouts)


class _BertFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        config: PassConfig,
        ids: Tensor,
        seeds: Tensor | None,
        side_stream: SideStream | None,
        *parameters: Tensor,
    ) -> Tensor:
        saved: list[Tensor] = []
        states, weights = forward(config, ids, seeds, *group_parameters(parameters), saved)
        ctx.save_for_backward(ids, seeds, *parameters, *chain(*weights), *saved)
        # The backward pass runs in another thread, which does not see context variables.
        ctx.config, ctx.side_stream, ctx.parameters = config, side_stream, parameters
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dstates: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)  # in the order of save_for_backward
        ids, seeds = next(saved), next(saved)
        embedding, layers = group_parameters(list(islice(saved, len(ctx.parameters))))
        weights = [HalfWeights(*islice(saved, len(HalfWeights._fields))) for _ in layers]
        stats = next(saved)
        count = len(SavedActivations._fields)
        activations = [SavedActivations(*islice(saved, count)) for _ in layers]

        needs_gradient = ctx.needs_input_grad[4:]
        backward = BackwardPass(
            ctx.config, ids, seeds, ctx.side_stream, ctx.parameters, needs_gradient
        )
        dstates = dstates.float().contiguous()
        dhalf: Tensor | None = None
        for number in reversed(range(backward.lowest_layer, len(layers))):
            dstates, dhalf = backward.run_layer(
                number, layers[number], weights[number], activations[number], dstates, dhalf
            )
        if backward.trains_embedding:
            assert dhalf is not None  # noqa: S101 - there are layers
            backward.run_embedding(embedding, stats, dstates, dhalf)
        backward.add_partial_sums(embedding)
        return None, None, None, None, *backward.gradients
