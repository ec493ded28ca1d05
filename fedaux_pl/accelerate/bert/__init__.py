"""BERT under autocast with fused kernels: the fast versions of the text encoders.

Matrix products are PyTorch's. All operations between two of them, such as dropout, residual sum and
LayerNorm, are one Triton kernel. ``fast_encoder`` has the fast versions, ``supported_encoders``
decides when the kernels can run, and ``fused_pass`` runs them.
"""

from fedaux_pl.accelerate.bert.fast_encoder import FastEncoder, FastTinyBERT

__all__ = ["FastEncoder", "FastTinyBERT"]
