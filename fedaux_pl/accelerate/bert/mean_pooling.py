"""The mean of each text's states over its tokens, one kernel forward and one backward."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedaux_pl.accelerate.convolution.batch_norm import on_device_of
from fedaux_pl.accelerate.eligibility import fusable

_BLOCKS = {"BLOCK_L": 16, "BLOCK_W": 128, "num_warps": 4}


def can_fuse_mean(states: Tensor, ids: Tensor) -> bool:
    """Whether :func:`mean_of_tokens` supports these states and ids."""
    return fusable(ids) and states.dtype == torch.float32 and states.numel() > 0


def mean_of_tokens(states: Tensor, ids: Tensor, pad_id: int) -> Tensor:
    """The mean of each text's states, shape (N, d); zeros for a text of padding only.

    Only first derivatives are supported.

    Args:
        states: The states of all tokens, shape (N, L, d), float32.
        ids: Token ids (N, L).
        pad_id: The id of the padding token.
    """
    mean: Tensor = _MeanOfTokens.apply(states, ids, pad_id)  # type: ignore[no-untyped-call]
    return mean


class _MeanOfTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, ids: Tensor, pad_id: int) -> Tensor:
        from fedaux_pl.accelerate import kernels

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
        from fedaux_pl.accelerate import kernels

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
