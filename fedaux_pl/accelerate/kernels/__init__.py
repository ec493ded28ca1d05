"""All Triton kernels of the package.

Kernels for convolutional networks compile in few variants, because the numbers of rows and channels
are run-time arguments. Kernels for text encoders compile for each width, of which there are few.

Sums are computed in a fixed order and without atomics, so results repeat bit for bit. Triton is
available on Linux only, so this module is imported inside the functions that launch kernels.
Long argument lists group tensors, numbers and compile-time constants; ``# fmt: skip`` preserves the
groups.
"""

from fedaux_pl.accelerate.kernels.attention_kernels import (
    attention_backward_kernel,
    attention_kernel,
)
from fedaux_pl.accelerate.kernels.batch_norm_backward_kernels import (
    gradient_sums_kernel,
    input_gradient_kernel,
)
from fedaux_pl.accelerate.kernels.batch_norm_kernels import (
    moments_kernel,
    normalize_eval_kernel,
    normalize_kernel,
)
from fedaux_pl.accelerate.kernels.depthwise_kernels import (
    depthwise_backward_kernel,
    depthwise_kernel,
)
from fedaux_pl.accelerate.kernels.fold_kernels import fold_kernel
from fedaux_pl.accelerate.kernels.gelu_kernels import (
    gelu_backward_kernel,
    gelu_kernel,
    sum_partials_kernel,
)
from fedaux_pl.accelerate.kernels.grouped_kernels import (
    block_diagonal_kernel,
    block_diagonals_kernel,
    diagonal_blocks_kernel,
)
from fedaux_pl.accelerate.kernels.layer_norm_kernels import (
    add_norm_backward_kernel,
    add_norm_kernel,
    embed_backward_kernel,
    embed_kernel,
)
from fedaux_pl.accelerate.kernels.mean_pooling_kernels import mean_backward_kernel, mean_kernel
from fedaux_pl.accelerate.kernels.packing_kernels import (
    lengths_kernel,
    pack_kernel,
    position_sums_kernel,
)
from fedaux_pl.accelerate.kernels.pointwise_kernels import (
    pointwise_kernel,
    pointwise_moments_kernel,
)
from fedaux_pl.accelerate.kernels.stem_kernels import (
    nchw_stem_kernel,
    standardize_kernel,
    stem_kernel,
)
from fedaux_pl.accelerate.kernels.word_gradient_kernels import rank_kernel, word_sums_kernel

__all__ = [
    "add_norm_backward_kernel",
    "add_norm_kernel",
    "attention_backward_kernel",
    "attention_kernel",
    "block_diagonal_kernel",
    "block_diagonals_kernel",
    "depthwise_backward_kernel",
    "depthwise_kernel",
    "diagonal_blocks_kernel",
    "embed_backward_kernel",
    "embed_kernel",
    "fold_kernel",
    "gelu_backward_kernel",
    "gelu_kernel",
    "gradient_sums_kernel",
    "input_gradient_kernel",
    "lengths_kernel",
    "mean_backward_kernel",
    "mean_kernel",
    "moments_kernel",
    "nchw_stem_kernel",
    "normalize_eval_kernel",
    "normalize_kernel",
    "pack_kernel",
    "pointwise_kernel",
    "pointwise_moments_kernel",
    "position_sums_kernel",
    "rank_kernel",
    "standardize_kernel",
    "stem_kernel",
    "sum_partials_kernel",
    "word_sums_kernel",
]
