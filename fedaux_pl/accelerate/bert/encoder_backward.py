"""The backward pass through a BERT.

Some gradients are sums over all tokens, such as those of biases. For these each kernel writes
partial sums into one matrix, which one kernel adds up at the end. Gradients of weights are never
rounded to half precision.
"""

from collections.abc import Sequence
from itertools import accumulate, chain

import torch
from torch import Tensor

from fedaux_pl.accelerate.bert.attention import attend_backward
from fedaux_pl.accelerate.bert.bert_parameters import (
    EmbeddingParameters,
    HalfWeights,
    LayerParameters,
    group_parameters,
)
from fedaux_pl.accelerate.bert.encoder_forward import SavedActivations
from fedaux_pl.accelerate.bert.fused_operations import (
    add_norm_backward,
    add_partial_sums,
    embed_backward,
    embedding_gradient,
    gelu_backward,
)
from fedaux_pl.accelerate.bert.packing import position_gradient
from fedaux_pl.accelerate.bert.pass_config import PassConfig
from fedaux_pl.accelerate.convolution.weight_gradients import (
    SideStream,
    compute_linear_weight_gradient,
    launch_linear_weight_gradient,
)

_EMBEDDING_SIZE, _LAYER_SIZE = len(EmbeddingParameters._fields), len(LayerParameters._fields)
# The parameters whose gradients are sums over all tokens, in the order of their columns in the
# matrix of partial sums: for each kernel of a layer, and those of the embedding after all layers.
_LAYER_SUMS = (
    ("query_bias", "key_bias", "value_bias"),
    ("attention_norm_weight", "attention_norm_bias", "projection_bias"),
    ("intermediate_bias",),
    ("output_norm_weight", "output_norm_bias", "output_bias"),
)
_EMBEDDING_SUMS = ("norm_weight", "norm_bias", "token_type")


class BackwardPass:
    """One backward pass.

    Args:
        config: The pass.
        ids: Token ids, (N, L) or of packed rows.
        seeds: The seeds of all dropout layers.
        side_stream: Where weight gradients are computed, if not on the current stream.
        parameters: All parameters, in the order of ``collect_parameters``.
        needs_gradient: Which of them need a gradient.

    Attributes:
        gradients: The gradients of the parameters; None for those that need none.
        trains_embedding: Whether a parameter of the embedding needs a gradient.
        lowest_layer: The lowest layer with a gradient; below it no parameter needs one.
    """

    def __init__(
        self,
        config: PassConfig,
        ids: Tensor,
        seeds: Tensor | None,
        side_stream: SideStream | None,
        parameters: Sequence[Tensor],
        needs_gradient: Sequence[bool],
    ) -> None:
        self._config, self._ids, self._seeds, self._side_stream = config, ids, seeds, side_stream
        self._parameters, self._needs_gradient = parameters, needs_gradient
        self.gradients: list[Tensor | None] = [None] * len(parameters)
        first = list(needs_gradient).index(True)
        self.trains_embedding = first < _EMBEDDING_SIZE
        self.lowest_layer = 0 if self.trains_embedding else (first - _EMBEDDING_SIZE) // _LAYER_SIZE
        _, layers = group_parameters(range(len(parameters)))
        # indices of the parameters of which each kernel of the layers writes partial sums
        kernels = [(layer, names) for layer in layers for names in _LAYER_SUMS]
        summed = [[getattr(layer, name) for name in names] for layer, names in kernels]
        sizes = [sum(parameters[index].numel() for index in indices) for indices in summed]
        self._summed = list(chain(*summed))
        # where the partial sums of each kernel start; the last are those of the embedding
        self._columns = list(accumulate(sizes, initial=0))
        columns = self._columns[-1] + len(_EMBEDDING_SUMS) * config.encoder.width
        # zeros if the columns of lower layers and of the embedding will not be written
        allocate = torch.empty if self.trains_embedding else torch.zeros
        self._partials = allocate(config.parts, columns, device=ids.device)

    def run_layer(
        self,
        number: int,
        layer: LayerParameters,
        cast: HalfWeights,
        saved: SavedActivations,
        dstates: Tensor,
        dhalf: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Runs one layer and returns the gradient of its input as two terms to be added.

        One is the gradient of the float32 residual stream, the other that of its half-precision
        copy, which the matrix products read.

        Args:
            number: The number of the layer.
            layer: Its parameters.
            cast: Its half-precision weights.
            saved: Its saved activations.
            dstates: The float32 gradient of its output.
            dhalf: The half-precision gradient of its output; None for the last layer.
        """
        config = self._config
        count = len(_LAYER_SUMS)
        columns = self._columns[count * number : count * (number + 1)]
        partials = [self._partials[:, column:] for column in columns]
        dropouts = [config.dropout(3 * number + index, self._seeds) for index in (1, 2, 3)]
        start = _EMBEDDING_SIZE + number * _LAYER_SIZE
        dstates, dy = add_norm_backward(
            config, dstates=dstates, dhalf=dhalf, y=saved.mlp_output, residual=saved.middle,
            norm_weight=layer.output_norm_weight, norm_stats=saved.output_norm_stats,
            dropout=dropouts[2], partials=partials[3],
        )  # fmt: skip
        self._weight_gradient(start, ("output",), dy, saved.after_gelu)
        dy = gelu_backward(config, dy @ cast.output, saved.before_gelu, partials[2])
        self._weight_gradient(start, ("intermediate",), dy, saved.middle_half)
        dstates, dy = add_norm_backward(
            config, dstates=dstates, dhalf=dy @ cast.intermediate, y=saved.projected,
            residual=saved.input, norm_weight=layer.attention_norm_weight,
            norm_stats=saved.attention_norm_stats, dropout=dropouts[1], partials=partials[1],
        )  # fmt: skip
        self._weight_gradient(start, ("projection",), dy, saved.heads)
        dy = attend_backward(
            config, dout=dy @ cast.projection, qkv=saved.qkv, ids=self._ids,
            dropout=dropouts[0], partials=partials[0],
        )  # fmt: skip
        self._weight_gradient(start, ("query", "key", "value"), dy, saved.input_half)
        return dstates, dy @ cast.qkv

    def _weight_gradient(self, start: int, names: Sequence[str], dy: Tensor, x: Tensor) -> None:
        """Computes the gradients dy.T @ x of weights whose outputs are side by side in dy."""
        indices = [start + LayerParameters._fields.index(name) for name in names]
        if not any(self._needs_gradient[index] for index in indices):
            return
        weights = [self._parameters[index] for index in indices]
        if self._side_stream is not None and self._side_stream.can_accumulate(weights):
            launch_linear_weight_gradient(self._side_stream, weights, dy, x)
            return
        gradient = torch.empty(dy.shape[1], x.shape[1], device=x.device)
        compute_linear_weight_gradient(dy, x, gradient)
        parts = torch.split(gradient, [len(weight) for weight in weights])
        for index, part in zip(indices, parts, strict=True):
            self._set_gradient(index, part)

    def run_embedding(
        self, embedding: EmbeddingParameters, norm_stats: Tensor, dstates: Tensor, dhalf: Tensor
    ) -> None:
        """Computes the gradients of the embedding; those of norm and token type as partial sums."""
        config, width = self._config, self._config.encoder.width
        dsum = embed_backward(
            config, dstates=dstates, dhalf=dhalf, ids=self._ids, tables=embedding.tables,
            norm_weight=embedding.norm_weight, norm_stats=norm_stats,
            dropout=config.dropout(0, self._seeds), partials=self._partials[:, self._columns[-1] :],
        )  # fmt: skip
        word, position, *_ = range(_EMBEDDING_SIZE)
        if self._needs_gradient[word]:
            vocab_size, padding_index = len(embedding.word), config.encoder.padding_index
            gradient = embedding_gradient(dsum, self._ids, vocab_size, padding_index)
            self._set_gradient(word, gradient)
        if self._needs_gradient[position]:
            gradient = torch.zeros_like(embedding.position)
            if config.packing is not None:
                position_gradient(dsum, config.packing, gradient)
            else:
                torch.sum(dsum.view(*self._ids.shape, width), 0, out=gradient[: config.length])
            self._set_gradient(position, gradient)

    def add_partial_sums(self, embedding: EmbeddingParameters) -> None:
        """Computes the gradients that are sums over all tokens."""
        # The token type is the last of them. All tokens have type 0, so the rows of other types,
        # which follow in memory, are zero.
        columns, other_types = self._partials.shape[1], embedding.token_type[1:].numel()
        sums = torch.zeros(columns + other_types, device=self._partials.device)
        add_partial_sums(self._partials, sums)
        names = EmbeddingParameters._fields
        indices = [*self._summed, *(names.index(name) for name in _EMBEDDING_SUMS)]
        parameters = [self._parameters[index] for index in indices]
        parts = torch.split(sums, [parameter.numel() for parameter in parameters])
        for index, parameter, part in zip(indices, parameters, parts, strict=True):
            self._set_gradient(index, part.view_as(parameter))

    def _set_gradient(self, index: int, gradient: Tensor) -> None:
        if self._needs_gradient[index]:
            self.gradients[index] = gradient
