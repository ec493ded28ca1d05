"""The mean of each text's states over its tokens, one kernel forward and one backward."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedaux_pl.accelerate.bert.packing import Packing
from fedaux_pl.accelerate.context import launch
from fedaux_pl.accelerate.eligibility import fusable

_BLOCKS = {"BLOCK_L": 16, "BLOCK_W": 128, "num_warps": 4}


def can_fuse_mean(states: Tensor, ids: Tensor) -> bool:
    """Whether :func:`mean_of_tokens` supports these states and ids."""
    return fusable(ids) and states.dtype == torch.float32 and states.numel() > 0


def mean_of_tokens(
    states: Tensor, ids: Tensor, pad_id: int, packing: Packing | None = None
) -> Tensor:
    """The mean of each text's states, shape (N, d); zeros for a text of padding only.

    Only first derivatives are supported.
    """
    mean: Tensor = _MeanOfTokens.apply(states, ids, pad_id, packing)  # type: ignore[no-untyped-call]
    return mean


class _MeanOfTokens(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, ids: Tensor, pad_id: int, packing: Packing | None
    ) -> Tensor:
        states = states.contiguous()
        (texts, length), width = ids.shape, states.shape[-1]
        ids = ids.contiguous() if packing is None else packing.ids
        starts = ids if packing is None else packing.starts
        means = states.new_empty(texts, width)
        launch("mean_kernel", _grid(texts, width),
            states, ids, starts, means, length, pad_id,
            PACKED=packing is not None, WIDTH=width, **_BLOCKS,
        )  # fmt: skip
        ctx.save_for_backward(ids, starts)
        ctx.pad_id, ctx.length, ctx.packing, ctx.shape = pad_id, length, packing, states.shape
        return means

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dmeans: Tensor) -> tuple[Tensor | None, ...]:
        ids, starts = ctx.saved_tensors
        dmeans = dmeans.contiguous()
        texts, width = dmeans.shape
        all_texts = texts if ctx.packing is None else ctx.packing.all_texts
        dstates = dmeans.new_empty(ctx.shape)
        launch("mean_backward_kernel", _grid(all_texts, width),
            dmeans, ids, starts, dstates, texts, ctx.length, ctx.pad_id,
            PACKED=ctx.packing is not None, WIDTH=width, **_BLOCKS,
        )  # fmt: skip
        return dstates, None, None, None


def _grid(texts: int, width: int) -> tuple[int, int]:
    return texts, -(-width // _BLOCKS["BLOCK_W"])
