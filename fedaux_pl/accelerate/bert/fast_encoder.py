"""Fast versions of the text encoders; every call chooses by device, precision and inputs."""

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedaux_pl.accelerate.bert.fused_pass import bert_states
from fedaux_pl.accelerate.bert.mean_pooling import can_fuse_mean, mean_of_tokens
from fedaux_pl.accelerate.bert.supported_encoders import can_fuse
from fedaux_pl.accelerate.casting import call_cast
from fedaux_pl.accelerate.eligibility import compute_dtype
from fedaux_pl.accelerate.versions import fast_version
from fedaux_pl.models.encoder import Encoder
from fedaux_pl.models.tinybert import TinyBERT

# All backends but cuDNN's, which builds a plan for every new shape: tens of milliseconds for each.
_SDPA_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@fast_version(Encoder)
class FastEncoder(Encoder):
    """An encoder with fused kernels for BERT in half precision.

    Other encoders run as modules, with the weights of all linear layers cast at once.
    """

    def states(self, ids: Tensor, *, causal: bool = False) -> Tensor:
        """The states of the last layer, shape (N, L, feature_dim)."""
        if can_fuse(self.encoder, ids):
            return bert_states(self.encoder, ids, self.pad_id, compute_dtype(ids), causal=causal)
        inputs = self.encoder_inputs(ids, causal=causal)
        with sdpa_kernel(_SDPA_BACKENDS) if ids.is_cuda else nullcontext():
            last: Tensor = call_cast(self.encoder, ids.device, inputs).last_hidden_state
        return last

    def pool(self, states: Tensor, ids: Tensor) -> Tensor:
        """One vector for each text, shape (N, feature_dim)."""
        if self.pooling == "mean" and can_fuse_mean(states, ids):
            return mean_of_tokens(states, ids, self.pad_id)
        return super().pool(states, ids)

    def features(self, x: Tensor) -> Tensor:
        """Maps token ids to features; during a CUDA graph capture without sorting by length."""
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return self._encode(x)  # sorting waits for the device, which a capture forbids
        return super().features(x)


@fast_version(TinyBERT)
class FastTinyBERT(FastEncoder, TinyBERT):
    """TinyBERT with fused kernels."""
