"""Which encoders of the transformers library have a pass in few kernels, and that pass.

Its results differ from those of the library's modules under autocast by rounding only.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.models.bert.attention import fits_attention
from fedaux_pl.models.bert.backward import encode
from fedaux_pl.models.bert.forward import Embedding, Layer, Plan
from fedaux_pl.models.bert.steps import Sizes
from fedaux_pl.models.fused import HALF, compute_dtype, fusable, has_hooks

_MODULE = "transformers.models.bert.modeling_bert"
# Modules of which a BERT may be made. Any other means that something was changed.
_BERT = {
    *(f"{_MODULE}.Bert{name}" for name in ("Model", "Embeddings", "Encoder", "Layer")),
    *(f"{_MODULE}.Bert{name}" for name in ("Attention", "SelfAttention", "SelfOutput")),
    *(f"{_MODULE}.Bert{name}" for name in ("Intermediate", "Output")),
    "transformers.activations.GELUActivation",
}
_LAYERS = (nn.Embedding, nn.LayerNorm, nn.Linear, nn.Dropout, nn.ModuleList)
_ALIGNMENT = 8  # values of half precision that tensor cores, and our kernels, read at once


def is_fused(encoder: Any, ids: Tensor) -> bool:
    """Whether :func:`bert_states` can take the place of a call of the encoder, here and now."""
    return (
        f"{_MODULE}.BertModel" == _name(encoder)
        and ids.ndim == 2
        and ids.numel() > 0
        and fusable(ids)
        and torch.is_autocast_enabled(ids.device.type)
        and compute_dtype(ids) in HALF
        and is_ordinary(encoder)
        and _fits(encoder, ids)
    )


def is_ordinary(encoder: Any) -> bool:
    """Whether a BERT is as the library makes it, with nothing that only its modules would do."""
    config = encoder.config
    return (
        all(
            (type(module) in _LAYERS or _name(module) in _BERT)
            and not has_hooks(module)
            and not (module.training and getattr(module, "gradient_checkpointing", False))
            and not getattr(module, "is_decoder", False)
            for module in encoder.modules()
        )
        and all(_is_plain(module, config) for module in encoder.modules())
        and all(p.dtype == torch.float32 and p.is_contiguous() for p in encoder.parameters())
        and config.hidden_act == "gelu"
        and getattr(config, "position_embedding_type", None) in (None, "absolute")
        and config._attn_implementation in ("sdpa", "eager")
        and not config.is_decoder
        and not config.add_cross_attention
        and config.hidden_size % _ALIGNMENT == config.hidden_size % config.num_attention_heads == 0
        and config.intermediate_size % _ALIGNMENT == 0
        and config.num_hidden_layers == len(encoder.encoder.layer) > 0
        and len(parameters_of(encoder)) == len(list(encoder.parameters()))
    )


def bert_states(encoder: Any, ids: Tensor, pad_id: int, *, causal: bool = False) -> Tensor:
    """The states of the last layer, shape (N, L, width), float32.

    Args:
        encoder: A BERT that :func:`is_fused` says yes to.
        ids: Token ids (N, L), all of the first type.
        pad_id: The id of the padding token, which no token sees.
        causal: Whether a token sees only those before it.
    """
    return run(encoder, ids, pad_id, compute_dtype(ids), causal=causal)


def run(encoder: Any, ids: Tensor, pad_id: int, dtype: torch.dtype, *, causal: bool) -> Tensor:
    """The same in any precision."""
    config, table = encoder.config, encoder.embeddings.word_embeddings
    sizes = Sizes(
        ids.shape[0],
        ids.shape[1],
        config.hidden_size,
        config.num_attention_heads,
        pad_id,
        causal,
        float(config.layer_norm_eps),
    )
    padding = -1 if table.padding_idx is None else table.padding_idx
    plan = Plan(sizes, dtype, _rates(encoder), padding)
    return encode(plan, ids.contiguous(), parameters_of(encoder)).view(*ids.shape, -1)


def parameters_of(encoder: Any) -> list[Tensor]:
    """All parameters of a BERT, in the order of ``Embedding`` and ``Layer``."""
    first = encoder.embeddings
    found = [
        *Embedding(
            first.word_embeddings.weight,
            first.position_embeddings.weight,
            first.token_type_embeddings.weight,
            first.LayerNorm.weight,
            first.LayerNorm.bias,
        )
    ]
    for layer in encoder.encoder.layer:
        heads, after, last = layer.attention.self, layer.attention.output, layer.output
        found += Layer(
            heads.query.weight,
            heads.key.weight,
            heads.value.weight,
            heads.query.bias,
            heads.key.bias,
            heads.value.bias,
            after.dense.weight,
            after.dense.bias,
            after.LayerNorm.weight,
            after.LayerNorm.bias,
            layer.intermediate.dense.weight,
            layer.intermediate.dense.bias,
            last.dense.weight,
            last.dense.bias,
            last.LayerNorm.weight,
            last.LayerNorm.bias,
        )
    return found


def _rates(encoder: Any) -> tuple[float, ...]:
    """Of dropout, where there may be any, in the order of ``Plan``."""
    places = [encoder.embeddings.dropout]
    for layer in encoder.encoder.layer:
        places += [layer.attention.self.dropout, layer.attention.output.dropout]
        places.append(layer.output.dropout)
    return tuple(float(place.p) if place.training else 0.0 for place in places)


def _name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _is_plain(module: nn.Module, config: Any) -> bool:
    """Whether a layer has no option that our kernels know nothing of."""
    if isinstance(module, nn.Embedding):
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    if _name(module) == f"{_MODULE}.BertSelfAttention":
        dim = config.hidden_size // config.num_attention_heads
        square = (config.hidden_size, config.hidden_size)
        weights = (module.query.weight, module.key.weight, module.value.weight)  # type: ignore[union-attr]
        return module.scaling == dim**-0.5 and all(w.shape == square for w in weights)
    return not isinstance(module, nn.LayerNorm) or module.eps == config.layer_norm_eps


def _fits(encoder: Any, ids: Tensor) -> bool:
    """Whether our attention can read the texts, and the weights are where they are."""
    config = encoder.config
    return (
        fits_attention(ids.shape[1], config.hidden_size // config.num_attention_heads)
        and ids.shape[1] <= len(encoder.embeddings.position_embeddings.weight)
        and all(one.device == ids.device for one in encoder.parameters())
    )
