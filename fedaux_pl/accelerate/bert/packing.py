"""Packed texts: a step computes the tokens of its texts, not the padding of its longest text.

The sum of 32 lengths varies little: captured steps with a few numbers of rows compute little more
than the tokens.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedaux_pl.accelerate.context import ceil_div, current, launch, round_up

MAX_KINDS = 16  # the most numbers of rows of steps with one batch size
ROW_TILE = 64  # a number of rows is a multiple of it, as tiles of matrix products are
_MEAN_BLOCKS = {"BLOCK_L": 16, "BLOCK_W": 128, "num_warps": 4}


@dataclass(frozen=True)
class Packing:
    """The rows of texts (N, L): one for each position or, if they are packed, for each token."""

    ids: Tensor  # the token id of each row, (N, L) or (rows,); that of padding in rows left over
    slots: Tensor  # the index of each row's token in the padded texts, (rows,)
    starts: Tensor  # the first row of each text and of each spare text, and ``rows``
    texts: int  # N
    length: int  # L
    pad_id: int  # of the padding token, to which no token attends
    is_packed: bool  # otherwise slots and starts are not used

    @property
    def all_texts(self) -> int:
        """The number of texts; if they are packed, with spare texts for the rows left over."""
        return len(self.starts) - 1 if self.is_packed else self.texts


def choose_rows(tokens: int, texts: int, length: int) -> int:
    """Return one of few numbers of rows for the tokens of a batch; 0 if packing saves none."""
    step = ceil_div(texts * length, MAX_KINDS * ROW_TILE) * ROW_TILE
    rows = round_up(tokens, step)
    return rows if rows < texts * length else 0


def packed_rows(ids: Tensor) -> int:
    """Return the rows that the current context has for these ids; 0 if they are not packed."""
    texts, rows = current().packed
    return rows if texts == len(ids) else 0


def pack_texts(ids: Tensor, rows: int, pad_id: int) -> Packing:
    """Pack ids (N, L) into rows, up to the last token of each text; 0 rows: not packed."""
    ids = ids.contiguous()
    texts, length = ids.shape
    if not rows:
        return Packing(ids, ids, ids, texts, length, pad_id, is_packed=False)
    all_texts = texts + ceil_div(rows, length)
    lengths = ids.new_empty(texts, dtype=torch.int32)
    slots = ids.new_empty(rows, dtype=torch.int32)
    starts = ids.new_empty(all_texts + 1, dtype=torch.int32)
    packed = ids.new_empty(rows)
    launch("lengths_kernel", (texts,), ids, lengths, length, pad_id, BLOCK_L=64, num_warps=1)
    launch("pack_kernel", (all_texts,),
        ids, lengths, packed, slots, starts, texts, length, rows, pad_id,
        BLOCK_N=128, BLOCK_L=64, num_warps=1,
    )  # fmt: skip
    return Packing(packed, slots, starts, texts, length, pad_id, is_packed=True)


def unpack_texts(states: Tensor, packing: Packing) -> Tensor:
    """Return the states of all positions (N, L, width); if they were packed, zeros for padding."""
    if not packing.is_packed:
        return states
    positions = packing.texts * packing.length
    is_spare = torch.arange(len(states), device=states.device) >= packing.starts[packing.texts]
    slots = packing.slots.long().masked_fill(is_spare, positions)  # to be cut off
    padded = states.new_zeros(positions + 1, states.shape[1]).index_copy(0, slots, states)
    return padded[:-1].view(packing.texts, packing.length, -1)


def mean_of_tokens(states: Tensor, packing: Packing) -> Tensor:
    """Return the mean of each text's states, (N, width); zeros for a text of padding only."""
    mean: Tensor = _MeanOfTokens.apply(states, packing)
    return mean


class _MeanOfTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, packing: Packing) -> Tensor:
        states = states.contiguous()
        width = states.shape[-1]
        means = states.new_empty(packing.texts, width)
        launch("mean_kernel", _mean_grid(packing.texts, width),
            states, packing.ids, packing.starts, means, packing.length, packing.pad_id,
            PACKED=packing.is_packed, WIDTH=width, **_MEAN_BLOCKS,
        )  # fmt: skip
        ctx.packing = packing
        ctx.shape = states.shape
        return means

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dmeans: Tensor) -> tuple[Tensor, None]:
        packing = ctx.packing
        texts, width = dmeans.shape
        dstates = dmeans.new_empty(ctx.shape)
        launch("mean_backward_kernel", _mean_grid(packing.all_texts, width),
            dmeans.contiguous(), packing.ids, packing.starts, dstates,
            texts, packing.length, packing.pad_id,
            PACKED=packing.is_packed, WIDTH=width, **_MEAN_BLOCKS,
        )  # fmt: skip
        return dstates, None


def _mean_grid(texts: int, width: int) -> tuple[int, int]:
    return texts, ceil_div(width, _MEAN_BLOCKS["BLOCK_W"])
