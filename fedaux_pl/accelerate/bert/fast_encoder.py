"""Fast versions of the text encoders; every call chooses by device, precision and inputs."""

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedaux_pl.accelerate.bert.encoder_pass import bert_states
from fedaux_pl.accelerate.bert.packing import Packing, mean_of_tokens, pack, packed_rows, unpack
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
        """Return the states of the last layer, shape (N, L, feature_dim)."""
        if can_fuse(self.encoder, ids):
            return unpack(*self._fused_states(ids, causal=causal))
        inputs = self.encoder_inputs(ids, causal=causal)
        with sdpa_kernel(_SDPA_BACKENDS) if ids.is_cuda else nullcontext():
            last: Tensor = call_cast(self.encoder, ids.device, inputs).last_hidden_state
        return last

    def _fused_states(self, ids: Tensor, *, causal: bool = False) -> tuple[Tensor, Packing]:
        packing = pack(ids, packed_rows(ids), self.pad_id)
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
    encoders = [one for one in module.modules() if isinstance(one, FastEncoder)]
    if len(encoders) != 1 or ids.is_floating_point() or not can_fuse(encoders[0].encoder, ids):
        return None
    return encoders[0]
