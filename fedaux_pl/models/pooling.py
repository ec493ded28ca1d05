"""The mean of a text's states, without those of padding."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedaux_pl.models.batch_norm import on_device_of
from fedaux_pl.models.fused import fusable

_BLOCKS = {"BLOCK_L": 16, "BLOCK_W": 128, "num_warps": 4}


def mean_states(states: Tensor, ids: Tensor, pad_id: int) -> Tensor:
    """The mean of the states of each text, shape (N, d); zeros for one of padding alone.

    On CUDA it is one kernel, which has first derivatives only.

    Args:
        states: Of shape (N, L, d).
        ids: Token ids (N, L).
        pad_id: The id of the padding token.
    """
    if fusable(ids) and states.dtype == torch.float32 and states.numel() > 0:
        mean: Tensor = _Mean.apply(states, ids, pad_id)  # type: ignore[no-untyped-call]
        return mean
    weight = (ids != pad_id)[:, :, None].to(states.dtype)
    return (states * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)


class _Mean(torch.autograd.Function):
    """One kernel each way."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, ids: Tensor, pad_id: int) -> Tensor:
        from fedaux_pl.models import kernels

        states, ids = states.contiguous(), ids.contiguous()
        texts, length, width = states.shape
        means = states.new_empty(texts, width)
        with on_device_of(states):
            kernels.mean_kernel[_grid(texts, width)](
                states, ids, means, length, pad_id, WIDTH=width, **_BLOCKS
            )
        ctx.save_for_backward(ids)
        ctx.pad_id = pad_id
        return means

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dmeans: Tensor) -> tuple[Tensor | None, ...]:
        from fedaux_pl.models import kernels

        (ids,) = ctx.saved_tensors
        dmeans = dmeans.contiguous()
        (texts, length), width = ids.shape, dmeans.shape[1]
        dstates = dmeans.new_empty(texts, length, width)
        with on_device_of(ids):
            kernels.mean_backward_kernel[_grid(texts, width)](
                dmeans, ids, dstates, length, ctx.pad_id, WIDTH=width, **_BLOCKS
            )
        return dstates, None, None


def _grid(texts: int, width: int) -> tuple[int, int]:
    return texts, -(-width // _BLOCKS["BLOCK_W"])
