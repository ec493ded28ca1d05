"""All Triton kernels of the package.

Sums are computed in a fixed order and without atomics, so results repeat bit for bit. Long argument
lists group tensors, numbers and compile-time constants; ``# fmt: skip`` preserves the groups.
"""

# ruff: noqa: F403
from fedaux_pl.accelerate.kernels.attention_kernels import *
from fedaux_pl.accelerate.kernels.batch_norm_kernels import *
from fedaux_pl.accelerate.kernels.depthwise_kernels import *
from fedaux_pl.accelerate.kernels.layer_norm_kernels import *
from fedaux_pl.accelerate.kernels.product_kernels import *
from fedaux_pl.accelerate.kernels.token_kernels import *
from fedaux_pl.accelerate.kernels.view_kernels import *
