"""A pass through a BERT of the transformers library with fused kernels, as one autograd function.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
2019. As under autocast, matrix products are in half precision; the residual stream, LayerNorm and
softmax are in float32. Results differ from those of the library's modules by rounding only.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedaux_pl.accelerate.bert import fused_operations as fused
from fedaux_pl.accelerate.bert.fused_operations import PassConfig
from fedaux_pl.accelerate.bert.packing import Packing
from fedaux_pl.accelerate.context import current
from fedaux_pl.accelerate.convolution.weight_gradients import (
    SideStream,
    compute_linear_weight_gradient,
)

# The matrix products of a layer, with the linear layers whose outputs are side by side.
_PRODUCTS = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "projection": ("attention.output.dense",),
    "intermediate": ("intermediate.dense",),
    "output": ("output.dense",),
}
# The parameters whose gradients are sums over all tokens, in the order of their columns in the
# matrix of partial sums. Those of a kernel are side by side.
_LAYER_SUMS = (
    *(f"{name}.bias" for name in _PRODUCTS["qkv"]),
    *("attention.output.LayerNorm.weight", "attention.output.LayerNorm.bias"),
    "attention.output.dense.bias",
    "intermediate.dense.bias",
    *("output.LayerNorm.weight", "output.LayerNorm.bias", "output.dense.bias"),
)
_TABLES = (
    "embeddings.word_embeddings.weight",
    "embeddings.position_embeddings.weight",
    "embeddings.token_type_embeddings.weight",
)
_EMBEDDING_NORM = ("embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias")

Parameters = Mapping[str, Tensor]


def parameter_names(layers: int) -> set[str]:
    """Return the names of all parameters of a BERT."""
    weights = [f"{name}.weight" for name in chain(*_PRODUCTS.values())]
    return {*_TABLES, *_EMBEDDING_NORM, *_in_layers(layers, (*weights, *_LAYER_SUMS))}


def _in_layers(layers: int, names: tuple[str, ...]) -> list[str]:
    return [f"encoder.layer.{number}.{name}" for number in range(layers) for name in names]


def bert_states(
    encoder: Any,
    packing: Packing,
    dtype: torch.dtype,
    *,
    causal: bool = False,
) -> Tensor:
    """Return the states of the last layer, float32, shape (N, L, width) or packed (rows, width).

    For encoders for which ``fast_encoder.can_fuse`` is true. All tokens have type 0; matrix
    products are in ``dtype``.
    """
    settings = encoder.config
    ids = packing.ids
    padding_index = encoder.embeddings.word_embeddings.padding_idx
    dropouts = [module for module in encoder.modules() if isinstance(module, nn.Dropout)]
    rates = tuple(float(layer.p) if layer.training else 0.0 for layer in dropouts)
    seeds = ids  # not read without dropout
    if any(rates):
        seeds = torch.randint(2**63 - 1, (len(rates),), device=ids.device)
    config = PassConfig(
        width=settings.hidden_size,
        heads=settings.num_attention_heads,
        eps=float(settings.layer_norm_eps),
        padding_index=-1 if padding_index is None else padding_index,
        causal=causal,
        dtype=dtype,
        packing=packing,
        rates=rates,
        seeds=seeds,
    )
    parameters = dict(encoder.named_parameters())
    needs_gradient = any(parameter.requires_grad for parameter in parameters.values())
    if torch.is_grad_enabled() and needs_gradient:
        states: Tensor = _BertFunction.apply(
            config, current().side_stream, tuple(parameters), *parameters.values()
        )
    else:
        states = _run(config, parameters, keep=lambda _: None)
    return states.view(*ids.shape, -1)


class _BertFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        config: PassConfig,
        side_stream: SideStream | None,
        names: tuple[str, ...],
        *values: Tensor,
    ) -> Tensor:
        ctx.config = config
        ctx.side_stream = side_stream
        ctx.backwards = []
        ctx.parameters = dict(zip(names, values, strict=True))
        return _run(config, ctx.parameters, ctx.backwards.append)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dstates: Tensor) -> tuple[Tensor | None, ...]:
        gradients = _Gradients(ctx.config, ctx.parameters, ctx.side_stream)
        terms: tuple[Tensor, Tensor | None] = dstates.float().contiguous(), None
        for backward in reversed(ctx.backwards):
            terms = backward(gradients, *terms)
        gradients.add_partial_sums()
        return None, None, None, *map(gradients.by_name.get, ctx.parameters)


class _Gradients:
    """The gradients of a backward pass, in ``by_name`` by the names of parameters.

    For those that are sums over all tokens, such as those of biases, each kernel writes partial
    sums into its columns of one matrix, which one kernel adds up at the end. Gradients of weights
    are never rounded to half precision.
    """

    def __init__(
        self,
        config: PassConfig,
        parameters: Parameters,
        side_stream: SideStream | None,
    ) -> None:
        self._parameters = parameters
        self._side_stream = side_stream
        self.by_name: dict[str, Tensor] = {}
        # The token type is the last of the sums. All tokens have type 0, so only its first row has
        # columns; the rows of other types, which follow in memory, are zero.
        summed = [*_in_layers(config.layers, _LAYER_SUMS), *_EMBEDDING_NORM, _TABLES[2]]
        self._sizes = {name: parameters[name].numel() for name in summed}
        self._columns = dict(zip(summed, accumulate(self._sizes.values(), initial=0), strict=False))
        columns = self._columns[_TABLES[2]] + config.width
        self._partials = torch.empty(config.parts, columns, device=config.packing.ids.device)

    def partials(self, name: str) -> Tensor:
        """Return the columns of a kernel's partial sums, from this parameter on."""
        return self._partials[:, self._columns[name] :]

    def add_partial_sums(self) -> None:
        """Compute the gradients that are sums over all tokens."""
        sizes = list(self._sizes.values())
        sums = torch.zeros(sum(sizes), device=self._partials.device)
        fused.add_partial_sums(self._partials, sums)
        for name, gradient in zip(self._sizes, torch.split(sums, sizes), strict=True):
            self.by_name[name] = gradient.view_as(self._parameters[name])

    def add_weights(self, names: list[str], dy: Tensor, x: Tensor) -> None:
        """Compute the gradients dy.T @ x of weights whose outputs are side by side in dy."""
        weights = [self._parameters[name] for name in names]
        # allocated on the main stream, which uses it after the wait
        gradient = torch.empty(dy.shape[1], x.shape[1], device=x.device)
        gradients = torch.split(gradient, [len(weight) for weight in weights])
        write = partial(compute_linear_weight_gradient, dy, x, gradient)
        side_stream = self._side_stream
        if side_stream is not None and side_stream.can_accumulate(weights):
            side_stream.wait(x.device)
            side_stream.compute(zip(weights, gradients, strict=True), write, (dy, x))
        else:
            write()
            self.by_name.update(zip(names, gradients, strict=True))


# Takes the gradients of an output, of the float32 residual stream and of its half-precision copy,
# which matrix products read (None: of the last layer); returns those of the input.
_Backward = Callable[[_Gradients, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


def _run(config: PassConfig, parameters: Parameters, keep: Callable[[_Backward], None]) -> Tensor:
    """Run the forward pass; keep the backward functions of the embedding and of each layer."""
    weights = _cast_weights(config, parameters)
    word, position, token_type = (parameters[name] for name in _TABLES)
    weight, bias = (parameters[name] for name in _EMBEDDING_NORM)
    states, half, saved = fused.embed(config, (word, position, token_type), (weight, bias))

    def backward_embedding(
        gradients: _Gradients,
        dstates: Tensor,
        dhalf: Any,
    ) -> tuple[Tensor, None]:
        partials = gradients.partials(_EMBEDDING_NORM[0])
        dsum = fused.embed_backward(config, dstates, dhalf, saved, partials)
        gradients.by_name[_TABLES[0]] = fused.word_gradient(config, dsum, word)
        gradients.by_name[_TABLES[1]] = fused.position_gradient(config, dsum, position)
        return dsum, None

    keep(backward_embedding)
    for number in range(config.layers):
        states, half, backward = _run_layer(config, parameters, weights, number, states, half)
        keep(backward)
    return states


def _cast_weights(config: PassConfig, parameters: Parameters) -> dict[str, Tensor]:
    """Cast the weights and biases of all matrix products at once, into one buffer."""
    sources = {}
    for number in range(config.layers):
        for product, names in _PRODUCTS.items():
            for kind in ("weight", "bias"):
                keys = [f"encoder.layer.{number}.{name}.{kind}" for name in names]
                sources[f"{number}.{product}.{kind}"] = [parameters[key] for key in keys]
    flat = list(chain(*sources.values()))
    sizes = [parameter.numel() for parameter in flat]
    buffer = torch.empty(sum(sizes), dtype=config.dtype, device=flat[0].device)
    torch._foreach_copy_(list(map(Tensor.view_as, torch.split(buffer, sizes), flat)), flat)
    sizes = [sum(map(Tensor.numel, side_by_side)) for side_by_side in sources.values()]
    weights = {}
    for name, values in zip(sources, torch.split(buffer, sizes), strict=True):
        weights[name] = values.view(-1, *sources[name][0].shape[1:])
    return weights


def _run_layer(
    config: PassConfig,
    parameters: Parameters,
    weights: Mapping[str, Tensor],
    number: int,
    states: Tensor,
    half: Tensor,
) -> tuple[Tensor, Tensor, _Backward]:
    """Return the states after a layer in float32 and half precision, and its backward."""
    layer = f"encoder.layer.{number}."
    dropout = 3 * number + 1

    def norm(block: str) -> tuple[Tensor, Tensor]:
        name = f"{layer}{block}.LayerNorm"
        return parameters[f"{name}.weight"], parameters[f"{name}.bias"]

    def multiply(product: str, x: Tensor) -> Tensor:
        name = f"{number}.{product}"
        return torch.addmm(weights[f"{name}.bias"], x, weights[f"{name}.weight"].t())

    qkv = multiply("qkv", half)
    heads = fused.attend(config, qkv, dropout)
    projected = multiply("projection", heads)
    middle, middle_half, to_middle = fused.add_norm(
        config, projected, states, norm("attention.output"), dropout + 1
    )
    before_gelu = multiply("intermediate", middle_half)
    after_gelu = fused.gelu(before_gelu)
    output = multiply("output", after_gelu)
    last, last_half, to_last = fused.add_norm(config, output, middle, norm("output"), dropout + 2)

    def backward(
        gradients: _Gradients,
        dstates: Tensor,
        dhalf: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        def multiply_backward(product: str, dy: Tensor, x: Tensor) -> Tensor:
            names = [f"{layer}{name}.weight" for name in _PRODUCTS[product]]
            gradients.add_weights(names, dy, x)
            return dy @ weights[f"{number}.{product}.weight"]

        def partials(name: str) -> Tensor:
            return gradients.partials(layer + name)

        sums = partials("output.LayerNorm.weight")
        dstates, dy = fused.add_norm_backward(config, dstates, dhalf, to_last, dropout + 2, sums)
        dy = multiply_backward("output", dy, after_gelu)
        dy = fused.gelu_backward(config, dy, before_gelu, partials("intermediate.dense.bias"))
        dhalf = multiply_backward("intermediate", dy, middle_half)
        sums = partials("attention.output.LayerNorm.weight")
        dstates, dy = fused.add_norm_backward(config, dstates, dhalf, to_middle, dropout + 1, sums)
        dy = multiply_backward("projection", dy, heads)
        dy = fused.attend_backward(config, dy, qkv, dropout, partials("attention.self.query.bias"))
        return dstates, multiply_backward("qkv", dy, half)

    return last, last_half, backward
