"""Fast versions of the text encoders; every call chooses by device, precision and inputs."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedaux_pl.accelerate.bert.encoder_pass import bert_states, parameter_names
from fedaux_pl.accelerate.bert.packing import (
    Packing,
    mean_of_tokens,
    pack_texts,
    packed_rows,
    unpack_texts,
)
from fedaux_pl.accelerate.eligibility import ALIGNMENT, HALF, compute_dtype, fusable, has_hooks
from fedaux_pl.accelerate.versions import fast_version
from fedaux_pl.models.encoder import Encoder, TinyBERT

# All backends but cuDNN's, which builds a plan for every new shape: tens of milliseconds for each.
_SDPA_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

_MODULE = "transformers.models.bert.modeling_bert"
# Modules of any other type mean that a BERT was modified.
_CLASSES = "Model Embeddings Encoder Layer Attention SelfAttention SelfOutput Intermediate Output"
_BERT_MODULES = {f"{_MODULE}.Bert{name}" for name in _CLASSES.split()}
_BERT_MODULES.add("transformers.activations.GELUActivation")
_TORCH_MODULES = (nn.Embedding, nn.LayerNorm, nn.Linear, nn.Dropout, nn.ModuleList)
# A program of the attention kernels holds all keys and values of a head in registers.
MAX_LENGTH = 128
MAX_HEAD_DIM = 64


@fast_version(Encoder)
class FastEncoder(Encoder):
    """An encoder with fused kernels for BERT in half precision; others run as modules."""

    def states(self, ids: Tensor, *, causal: bool = False) -> Tensor:
        """Return the states of the last layer, shape (N, L, feature_dim)."""
        if can_fuse(self.encoder, ids):
            return unpack_texts(*self._fused_states(ids, causal=causal))
        with sdpa_kernel(_SDPA_BACKENDS) if ids.is_cuda else nullcontext():
            return super().states(ids, causal=causal)

    def _fused_states(self, ids: Tensor, *, causal: bool = False) -> tuple[Tensor, Packing]:
        packing = pack_texts(ids, packed_rows(ids), self.pad_id)
        return bert_states(self.encoder, packing, compute_dtype(ids), causal=causal), packing

    def _encode(self, ids: Tensor) -> Tensor:
        if not can_fuse(self.encoder, ids):
            return super()._encode(ids)
        states, packing = self._fused_states(ids)
        if self.pooling == "mean":
            return mean_of_tokens(states, packing)
        if packing.is_packed:
            return states.index_select(0, packing.starts[: packing.texts])
        return states[:, 0]

    def features(self, x: Tensor) -> Tensor:
        """Map token ids to features; during a CUDA graph capture without sorting by length."""
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return self._encode(x)  # sorting waits for the device, which a capture forbids
        return super().features(x)


@fast_version(TinyBERT)
class FastTinyBERT(FastEncoder, TinyBERT):
    """TinyBERT with fused kernels."""


def find_packable(module: nn.Module, ids: Tensor) -> Encoder | None:
    """Return the encoder of a module if its passes can be packed in the current context."""
    encoders = [layer for layer in module.modules() if isinstance(layer, FastEncoder)]
    if len(encoders) != 1 or ids.is_floating_point():
        return None
    return encoders[0] if can_fuse(encoders[0].encoder, ids) else None


def can_fuse(encoder: Any, ids: Tensor) -> bool:
    """Whether the fused pass can compute an unmodified BERT under autocast, with these ids."""
    return (
        _qualified_name(encoder) == f"{_MODULE}.BertModel"
        and ids.ndim == 2
        and ids.numel() > 0
        and fusable(ids)
        and torch.is_autocast_enabled(ids.device.type)
        and compute_dtype(ids) in HALF
        and is_unmodified(encoder)
        and ids.shape[1] <= min(MAX_LENGTH, len(encoder.embeddings.position_embeddings.weight))
        and all(parameter.device == ids.device for parameter in encoder.parameters())
    )


def is_unmodified(encoder: Any) -> bool:
    """Whether a BERT is as the library builds it, in float32, with options the kernels support."""
    config = encoder.config
    layers = len(encoder.encoder.layer)
    return (
        all(_is_standard(module, config.layer_norm_eps) for module in encoder.modules())
        and all(p.dtype == torch.float32 and p.is_contiguous() for p in encoder.parameters())
        and {name for name, _ in encoder.named_parameters()} == parameter_names(layers)
        and config.hidden_act == "gelu"
        and config._attn_implementation in ("sdpa", "eager")
        and not config.is_decoder
        and config.hidden_size % ALIGNMENT == config.hidden_size % config.num_attention_heads == 0
        and config.hidden_size // config.num_attention_heads <= MAX_HEAD_DIM
        and config.intermediate_size % ALIGNMENT == 0
        and config.num_hidden_layers == layers > 0
    )


def _is_standard(module: nn.Module, eps: float) -> bool:
    return (
        (type(module) in _TORCH_MODULES or _qualified_name(module) in _BERT_MODULES)
        and not has_hooks(module)
        and not (module.training and getattr(module, "gradient_checkpointing", False))
        and getattr(module, "eps", eps) == eps
        and getattr(module, "max_norm", None) is None
    )


def _qualified_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"
