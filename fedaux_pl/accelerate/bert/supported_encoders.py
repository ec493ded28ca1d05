"""Which encoders and inputs the fused kernels support."""

from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.accelerate.bert.encoder_pass import parameter_names
from fedaux_pl.accelerate.eligibility import HALF, compute_dtype, fusable, has_hooks

_MODULE = "transformers.models.bert.modeling_bert"
# The modules that a BERT of the library consists of. Any other type means that it was modified.
_CLASSES = "Model Embeddings Encoder Layer Attention SelfAttention SelfOutput Intermediate Output"
_BERT_MODULES = {f"{_MODULE}.Bert{name}" for name in _CLASSES.split()}
_BERT_MODULES.add("transformers.activations.GELUActivation")
_TORCH_MODULES = (nn.Embedding, nn.LayerNorm, nn.Linear, nn.Dropout, nn.ModuleList)
_ALIGNMENT = 8  # half-precision values in one 16-byte access of tensor cores and kernels
# A program of the attention kernels holds all keys and values of a head in registers.
MAX_LENGTH, MAX_HEAD_DIM = 128, 64


def can_fuse(encoder: Any, ids: Tensor) -> bool:
    """Whether the fused pass can replace a call of the encoder with these ids.

    This needs an unmodified BERT on CUDA, autocast to half precision, and texts that fit the
    attention kernels.
    """
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
    config, layers = encoder.config, len(encoder.encoder.layer)
    return (
        all(
            (type(module) in _TORCH_MODULES or _qualified_name(module) in _BERT_MODULES)
            and not has_hooks(module)
            and not (module.training and getattr(module, "gradient_checkpointing", False))
            for module in encoder.modules()
        )
        and all(p.dtype == torch.float32 and p.is_contiguous() for p in encoder.parameters())
        and {name for name, _ in encoder.named_parameters()} == parameter_names(layers)
        and config.hidden_act == "gelu"
        and config._attn_implementation in ("sdpa", "eager")
        and not config.is_decoder
        and config.hidden_size % _ALIGNMENT == config.hidden_size % config.num_attention_heads == 0
        and config.hidden_size // config.num_attention_heads <= MAX_HEAD_DIM
        and config.intermediate_size % _ALIGNMENT == 0
        and config.num_hidden_layers == layers > 0
    )


def _qualified_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"
