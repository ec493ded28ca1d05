"""Triton kernels of a convolution's surroundings: BatchNorm, residual and activation in one.

PyTorch's BatchNorm of channels-last half precision reaches a tenth of a GPU's bandwidth, and the
activation and the residual are further passes over the same values. Activations are seen here as
(rows, channels) with rows = N*H*W and the channels next to each other in memory. A program takes a
block of channels and a chunk of rows, and whatever is summed is summed in a fixed order and
without atomics, so that results can be repeated.

``channels`` is given as ``units * UNIT`` with a power of two ``UNIT`` that is known to the
compiler, because only then does it use wide memory accesses; ``units`` itself and the number of
rows are not specialised on, so that a network compiles a handful of variants.

Those of encoders of text, which have one or two widths, are compiled for these: the embedding and
the sums of the residual stream with LayerNorm and dropout, attention, GELU, the mean over a text,
and the gradient of word vectors.

This module needs triton, so that it is imported where a kernel is used and nowhere else.
"""

from fedaux_pl.models.kernels.attention import attention_backward_kernel, attention_kernel
from fedaux_pl.models.kernels.backward import gradient_sums_kernel, input_gradient_kernel
from fedaux_pl.models.kernels.forward import apply_kernel, moments_kernel, normalize_kernel
from fedaux_pl.models.kernels.gelu import gelu_backward_kernel, gelu_kernel, sum_partials_kernel
from fedaux_pl.models.kernels.inputs import fold_kernel, standardize_kernel
from fedaux_pl.models.kernels.layer_norm import (
    add_norm_backward_kernel,
    add_norm_kernel,
    embed_backward_kernel,
    embed_kernel,
)
from fedaux_pl.models.kernels.pooling import mean_backward_kernel, mean_kernel
from fedaux_pl.models.kernels.stem import planar_stem_kernel, stem_kernel
from fedaux_pl.models.kernels.words import rank_kernel, word_sums_kernel

__all__ = [
    "add_norm_backward_kernel",
    "add_norm_kernel",
    "apply_kernel",
    "attention_backward_kernel",
    "attention_kernel",
    "embed_backward_kernel",
    "embed_kernel",
    "fold_kernel",
    "gelu_backward_kernel",
    "gelu_kernel",
    "gradient_sums_kernel",
    "input_gradient_kernel",
    "mean_backward_kernel",
    "mean_kernel",
    "moments_kernel",
    "normalize_kernel",
    "planar_stem_kernel",
    "rank_kernel",
    "standardize_kernel",
    "stem_kernel",
    "sum_partials_kernel",
    "word_sums_kernel",
]
