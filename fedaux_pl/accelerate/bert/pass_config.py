"""What the kernels of one pass through a BERT share: sizes, settings and dropout seeds."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedaux_pl.accelerate.bert.packing import Packing
from fedaux_pl.accelerate.convolution.tiling import next_power_of_two

# fixed numbers, no tuning at run time
TILE = 2048  # values of a tile
WARPS = 4
# Kernels that sum over rows keep three tiles of sums. At 384 values a row they need 103 registers
# this way, and 193 with four warps or with tiles twice as large.
SUM_WARPS = 8
FEW_PARTS, MANY_PARTS = 128, 512  # programs that sum over rows, each writing a row of partial sums
MANY_ROWS = 2**14  # from this number of rows on there are MANY_PARTS


def row_blocks(width: int, warps: int = WARPS) -> dict[str, int]:
    """Launch options of a kernel whose programs process a tile of whole rows at once."""
    block = next_power_of_two(width)
    return {"BLOCK_R": max(1, TILE // block), "BLOCK_W": block, "num_warps": warps}


@dataclass(frozen=True)
class EncoderConfig:
    """The settings of an encoder.

    Args:
        width: The hidden size.
        heads: The number of attention heads.
        eps: The eps of LayerNorm.
        pad_id: The id of the padding token, to which no token attends.
        padding_index: The row of the word-embedding table without a gradient; -1 if there is none.
    """

    width: int
    heads: int
    eps: float
    pad_id: int
    padding_index: int


@dataclass(frozen=True)
class PassConfig:
    """One pass through an encoder. States are matrices (rows, width), a row for each token.

    Args:
        encoder: The settings of the encoder.
        texts: The number of texts N.
        length: The number of tokens L of each text, padding included.
        causal: Whether a token attends to itself and earlier tokens only.
        dtype: The dtype of matrix products.
        dropout_rates: The rates of all dropout layers: after the embedding, then for each layer in
            attention, after attention and after the MLP. An index identifies a dropout layer.
        packing: Where the tokens are in packed rows; None if there is a row for each position.
    """

    encoder: EncoderConfig
    texts: int
    length: int
    causal: bool
    dtype: torch.dtype
    dropout_rates: tuple[float, ...]
    packing: Packing | None = field(default=None, compare=False)

    @property
    def rows(self) -> int:
        """The number of rows: N * L, or those of packed texts."""
        return self.texts * self.length if self.packing is None else len(self.packing.ids)

    @property
    def is_packed(self) -> bool:
        """Whether texts are packed."""
        return self.packing is not None

    @property
    def all_texts(self) -> int:
        """The number of texts; if they are packed, with spare texts for the rows left over."""
        return self.texts if self.packing is None else self.packing.all_texts

    @property
    def parts(self) -> int:
        """The number of partial sums of a sum over all rows."""
        return FEW_PARTS if self.rows < MANY_ROWS else MANY_PARTS

    @property
    def rows_per_part(self) -> int:
        """The rows of a partial sum."""
        return -(-self.rows // self.parts)

    def slots(self, placeholder: Tensor) -> Tensor:
        """The slots as a kernel argument; ``placeholder`` if texts are not packed."""
        return placeholder if self.packing is None else self.packing.slots

    def starts(self, placeholder: Tensor) -> Tensor:
        """The first rows of texts as a kernel argument, like ``slots``."""
        return placeholder if self.packing is None else self.packing.starts

    def dropout(self, index: int, seeds: Tensor | None) -> "Dropout":
        """The dropout layer with an index."""
        return Dropout(self.dropout_rates[index], seeds, index)

    def draw_seeds(self, device: torch.device) -> Tensor | None:
        """Random seeds of all dropout layers; None if nothing is dropped."""
        if not any(self.dropout_rates):
            return None
        return torch.randint(2**63 - 1, (len(self.dropout_rates),), device=device)


@dataclass(frozen=True)
class Dropout:
    """A dropout layer of a pass.

    Args:
        rate: The probability that a value becomes zero.
        seeds: The seeds of all dropout layers of the pass; None without dropout.
        index: The index of this layer.
    """

    rate: float
    seeds: Tensor | None
    index: int

    @property
    def is_active(self) -> bool:
        """Whether any values are dropped."""
        return self.rate > 0

    def seed_arguments(self, placeholder: Tensor) -> tuple[Tensor, int]:
        """The seeds and the index as kernel arguments; ``placeholder`` stands for missing seeds."""
        return (placeholder if self.seeds is None else self.seeds), self.index
