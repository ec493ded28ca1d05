"""Packed texts: a step computes the tokens of its texts, not the padding of its longest text.

With 32 texts in a batch, one is nearly always as long as the longest of the data, so that shorter
batches would save nothing. The sum of 32 lengths varies little: captured steps with a few numbers
of rows compute little more than the tokens.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedaux_pl.accelerate.context import current, launch

MAX_KINDS = 16  # the most numbers of rows of steps with one batch size
ROW_TILE = 64  # a number of rows is a multiple of it, as tiles of matrix products are
_BLOCKS = {"BLOCK_N": 128, "BLOCK_L": 64, "num_warps": 1}
_SUM_BLOCKS = {"BLOCK_N": 16, "BLOCK_W": 128, "num_warps": 4}


@dataclass(frozen=True)
class Packing:
    """Where the tokens of texts (N, L) are in packed rows.

    Attributes:
        ids: The token id of each row; that of padding in rows that are left over. Shape (rows,).
        slots: The index of each row's token in the padded texts, shape (rows,).
        starts: The first row of each text and of each spare text, and ``rows``.
        texts: The number of texts N.
        length: The length L of the padded texts.
    """

    ids: Tensor
    slots: Tensor
    starts: Tensor
    texts: int
    length: int

    @property
    def all_texts(self) -> int:
        """The number of texts and spare texts."""
        return len(self.starts) - 1


def choose_rows(tokens: int, texts: int, length: int) -> int:
    """The rows for the tokens of a batch: few different numbers, so that few steps are captured.

    0 if packing would save none.

    Example:
        >>> from fedaux_pl.accelerate.bert.packing import choose_rows
        >>> [choose_rows(tokens, texts=32, length=64) for tokens in (715, 768, 769, 2000)]
        [768, 768, 896, 0]
    """
    step = -(-texts * length // (MAX_KINDS * ROW_TILE)) * ROW_TILE
    rows = -(-tokens // step) * step
    return rows if rows < texts * length else 0


def packed_rows(ids: Tensor) -> int:
    """The rows that the current context has for these ids; 0 if they are not packed."""
    texts, rows = current().packed
    return rows if texts == len(ids) else 0


def pack(ids: Tensor, rows: int, pad_id: int) -> Packing:
    """Packs token ids (N, L) into rows, up to the last token of each text, at least one."""
    ids = ids.contiguous()
    texts, length = ids.shape
    all_texts = texts + -(-rows // length)
    lengths, slots, starts = (
        torch.empty(size, dtype=torch.int32, device=ids.device)
        for size in (texts, rows, all_texts + 1)
    )
    packed = ids.new_empty(rows)
    launch(
        "lengths_kernel",
        (texts,),
        ids,
        lengths,
        length,
        pad_id,
        BLOCK_L=_BLOCKS["BLOCK_L"],
        num_warps=1,
    )
    launch(
        "pack_kernel",
        (all_texts,),
        ids,
        lengths,
        packed,
        slots,
        starts,
        texts,
        length,
        rows,
        pad_id,
        **_BLOCKS,
    )
    return Packing(packed, slots, starts, texts, length)


def unpack(states: Tensor, packing: Packing) -> Tensor:
    """The states of all positions (N, L, width) from packed rows; zeros for padding."""
    padded: Tensor = _Unpack.apply(states, packing)  # type: ignore[no-untyped-call]
    return padded


def position_gradient(dtokens: Tensor, packing: Packing, out: Tensor) -> None:
    """Writes the sums of packed rows by position to ``out`` (at least L, width)."""
    width = dtokens.shape[1]
    blocks = -(-width // _SUM_BLOCKS["BLOCK_W"])
    launch(
        "position_sums_kernel",
        (packing.length, blocks),
        dtokens,
        packing.starts,
        out,
        packing.texts,
        WIDTH=width,
        **_SUM_BLOCKS,
    )


class _Unpack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, packing: Packing) -> Tensor:
        ctx.packing = packing
        first = packing.starts[: packing.texts, None].long()
        stop = packing.starts[1 : packing.texts + 1, None]
        rows = first + torch.arange(packing.length, device=states.device)
        padded = states[rows.clamp(max=len(states) - 1)]
        return padded.masked_fill((rows >= stop)[:, :, None], 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dpadded: Tensor) -> tuple[Tensor, None]:
        packing = ctx.packing
        dstates = dpadded.flatten(0, 1).index_select(0, packing.slots)
        rows = torch.arange(len(dstates), device=dpadded.device)
        is_spare = rows >= packing.starts[packing.texts]
        return dstates.masked_fill(is_spare[:, None], 0.0), None
