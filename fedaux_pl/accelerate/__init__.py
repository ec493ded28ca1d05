"""Everything that only makes the package faster on CUDA: kernels, fused layers, CUDA graphs.

Only ``fedaux_pl.federation.create_runner`` imports this folder. A copy of the package without it
computes the same, more slowly.
"""

# imported to register their fast versions
from fedaux_pl.accelerate import views as views
from fedaux_pl.accelerate.bert import fast_encoder as fast_encoder
from fedaux_pl.accelerate.convolution import networks as networks
from fedaux_pl.accelerate.recording.runner import CudaRunner
from fedaux_pl.accelerate.versions import speed_up

__all__ = ["CudaRunner", "speed_up"]
