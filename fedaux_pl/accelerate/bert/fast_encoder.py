"""Fast versions of the text encoders; every call chooses by device, precision and inputs."""

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedaux_pl.accelerate.bert.fused_pass import bert_states
from fedaux_pl.accelerate.bert.mean_pooling import can_fuse_mean, mean_of_tokens
from fedaux_pl.accelerate.bert.packing import Packing, pack, packed_rows, unpack
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
            states, packing = self._fused_states(ids, causal=causal)
            return states if packing is None else unpack(states, packing)
        inputs = self.encoder_inputs(ids, causal=causal)
        with sdpa_kernel(_SDPA_BACKENDS) if ids.is_cuda else nullcontext():
            last: Tensor = call_cast(self.encoder, ids.device, inputs).last_hidden_state
        return last

    def pool(self, states: Tensor, ids: Tensor) -> Tensor:
        """One vector for each text, shape (N, feature_dim)."""
        if self.pooling == "mean" and can_fuse_mean(states, ids):
            return mean_of_tokens(states, ids, self.pad_id)
        return super().pool(states, ids)

    def _fused_states(self, ids: Tensor, *, causal: bool = False) -> tuple[Tensor, Packing | None]:
        """The states of all positions, or of packed rows if there is a packing."""
        rows = packed_rows(ids)
        packing = pack(ids, rows, self.pad_id) if rows else None
        dtype = compute_dtype(ids)
        states = bert_states(self.encoder, ids, self.pad_id, dtype, causal=causal, packing=packing)
        return states, packing

    def _encode(self, ids: Tensor) -> Tensor:
        if not packed_rows(ids) or not can_fuse(self.encoder, ids):
            return super()._encode(ids)
        states, packing = self._fused_states(ids)
        assert packing is not None  # noqa: S101 - there are packed rows
        if self.pooling == "cls":
            return states.index_select(0, packing.starts[: packing.texts])
        return mean_of_tokens(states, ids, self.pad_id, packing)

    def features(self, x: Tensor) -> Tensor:
        """Maps token ids to features; during a CUDA graph capture without sorting by length."""
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return self._encode(x)  # sorting waits for the device, which a capture forbids
        return super().features(x)


@fast_version(TinyBERT)
class FastTinyBERT(FastEncoder, TinyBERT):
    """TinyBERT with fused kernels."""


def find_packable(module: nn.Module, ids: Tensor) -> Encoder | None:
    """The encoder of a module if its passes can be packed in the current context, or None."""
    encoders = [one for one in module.modules() if isinstance(one, FastEncoder)]
    if len(encoders) != 1 or ids.is_floating_point() or not can_fuse(encoders[0].encoder, ids):
        return None
    return encoders[0]
