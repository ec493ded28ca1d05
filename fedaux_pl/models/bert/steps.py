"""The steps between the products of a BERT, forward and backward, each of them one kernel.

All take and give states as (rows, width) with a row for each token, next to each other in memory.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedaux_pl.models.batch_norm import on_device_of

# Fixed numbers and no tuning at run time, as for convolutions.
TILE = 2048  # values that a program has in hand at once; one that sums over rows has twice as many
WARPS = 4
FEW_PARTS, MANY_PARTS = 128, 512  # programs that sum over rows, each leaving a row of sums
MANY_ROWS = 2**14  # from so many rows on it is the latter


@dataclass(frozen=True)
class Sizes:
    """What all steps of a pass know.

    Args:
        texts: N.
        length: L.
        width: Length of a token's state.
        heads: Of attention.
        pad: The id of the padding token.
        causal: Whether a token sees only those before it.
        eps: Of LayerNorm.
    """

    texts: int
    length: int
    width: int
    heads: int
    pad: int
    causal: bool
    eps: float

    @property
    def rows(self) -> int:
        """Tokens, with the padding."""
        return self.texts * self.length

    @property
    def parts(self) -> int:
        """How many partial sums there are of a sum over all rows."""
        return FEW_PARTS if self.rows < MANY_ROWS else MANY_PARTS

    @property
    def chunk_rows(self) -> int:
        """The rows of a partial sum."""
        return -(-self.rows // self.parts)


@dataclass(frozen=True)
class Dropout:
    """Dropout somewhere in a pass.

    Args:
        rate: The share of values that become zero.
        seeds: Of all places in a pass where there is dropout; None if there is none.
        site: Which of them this one is.
    """

    rate: float
    seeds: Tensor | None
    site: int

    def given(self, other: Tensor) -> tuple[Tensor, int]:
        """What kernels take for it; without dropout any tensor does."""
        return (other if self.seeds is None else self.seeds), self.site

    @property
    def drops(self) -> bool:
        """Whether there is any."""
        return self.rate > 0


@dataclass(frozen=True)
class Partials:
    """Partial sums (parts, columns) of several gradients, of which one step fills some columns."""

    sums: Tensor
    first: int

    @property
    def place(self) -> Tensor:
        """Where the first row of that step begins."""
        return self.sums[0, self.first :]

    @property
    def columns(self) -> int:
        """How far rows are apart."""
        return self.sums.shape[1]


def embed(
    sizes: Sizes, ids: Tensor, tables: tuple[Tensor, ...], norm: tuple[Tensor, Tensor],
    dtype: torch.dtype, dropout: Dropout,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """States, their copy in half precision, and the statistics of LayerNorm."""
    from fedaux_pl.models import kernels

    made = _states(ids, sizes, dtype)
    blocks = _blocks(sizes.width)
    with on_device_of(ids):
        kernels.embed_kernel[(-(-sizes.rows // blocks["BLOCK_R"]),)](
            ids,
            *tables,
            *norm,
            *made,
            len(tables[0]),
            *dropout.given(ids),
            sizes.rows,
            sizes.length,
            sizes.eps,
            dropout.rate,
            DROPOUT=dropout.drops,
            WIDTH=sizes.width,
            **blocks,
        )
    return made


def embed_backward(
    sizes: Sizes, dstates: Tensor, dhalf: Tensor, ids: Tensor, tables: tuple[Tensor, ...],
    stats: Tensor, scale: Tensor, partials: Partials, dropout: Dropout,
) -> Tensor:  # fmt: skip
    """The gradient of the sum of each token's vectors.

    Sums over all rows are left behind for scale and shift of the norm and for the type's vector.
    """
    from fedaux_pl.models import kernels

    dsum = torch.empty_like(dstates)
    with on_device_of(ids):
        kernels.embed_backward_kernel[(sizes.parts,)](
            dstates,
            dhalf,
            ids,
            *tables,
            stats,
            scale,
            dsum,
            partials.place,
            len(tables[0]),
            *dropout.given(ids),
            sizes.rows,
            sizes.length,
            sizes.chunk_rows,
            partials.columns,
            dropout.rate,
            DROPOUT=dropout.drops,
            WIDTH=sizes.width,
            **_blocks(sizes.width, 2),
        )
    return dsum


def add_norm(
    sizes: Sizes, y: Tensor, residual: Tensor, norm: tuple[Tensor, Tensor], dropout: Dropout
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm(residual + dropout(y)), its copy in half precision, and the norm's statistics."""
    from fedaux_pl.models import kernels

    made = _states(y, sizes, y.dtype)
    blocks = _blocks(sizes.width)
    with on_device_of(y):
        kernels.add_norm_kernel[(-(-sizes.rows // blocks["BLOCK_R"]),)](
            y,
            residual,
            *norm,
            *made,
            *dropout.given(y),
            sizes.rows,
            sizes.eps,
            dropout.rate,
            DROPOUT=dropout.drops,
            WIDTH=sizes.width,
            **blocks,
        )
    return made


def add_norm_backward(
    sizes: Sizes, dstates: Tensor, dhalf: Tensor | None, y: Tensor, residual: Tensor,
    stats: Tensor, scale: Tensor, partials: Partials, dropout: Dropout,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of residual and y; sums are left behind for scale, shift and the bias of y."""
    from fedaux_pl.models import kernels

    dresidual, dy = torch.empty_like(dstates), torch.empty_like(y)
    with on_device_of(y):
        kernels.add_norm_backward_kernel[(sizes.parts,)](
            dstates,
            dstates if dhalf is None else dhalf,
            y,
            residual,
            stats,
            scale,
            dresidual,
            dy,
            partials.place,
            *dropout.given(y),
            sizes.rows,
            sizes.chunk_rows,
            partials.columns,
            dropout.rate,
            HAS_HALF=dhalf is not None,
            DROPOUT=dropout.drops,
            WIDTH=sizes.width,
            **_blocks(sizes.width, 2),
        )
    return dresidual, dy


def gelu(x: Tensor) -> Tensor:
    """GELU by the error function."""
    from fedaux_pl.models import kernels

    y = torch.empty_like(x)
    with on_device_of(x):
        grid = (-(-x.numel() // TILE),)
        kernels.gelu_kernel[grid](x, y, x.numel(), BLOCK=TILE, num_warps=WARPS)
    return y


def gelu_backward(sizes: Sizes, dy: Tensor, x: Tensor, partials: Partials) -> Tensor:
    """The gradient of x; sums are left behind for its bias."""
    from fedaux_pl.models import kernels

    dx = torch.empty_like(x)
    width = x.shape[1]
    block = min(256, power(width))
    with on_device_of(x):
        kernels.gelu_backward_kernel[sizes.parts, -(-width // block)](
            dy,
            x,
            dx,
            partials.place,
            sizes.rows,
            sizes.chunk_rows,
            partials.columns,
            WIDTH=width,
            BLOCK_R=TILE // block,
            BLOCK_W=block,
            num_warps=WARPS,
        )
    return dx


def sum_partials(partials: Tensor, sums: Tensor) -> None:
    """Adds up all partial sums into the first of ``sums``."""
    from fedaux_pl.models import kernels

    parts, columns = partials.shape
    with on_device_of(partials):
        kernels.sum_partials_kernel[(-(-columns // 32),)](
            partials, sums, parts, columns, BLOCK_R=TILE // 32, BLOCK_W=32, num_warps=WARPS
        )


def power(number: int, least: int = 1) -> int:
    """The next power of two."""
    return max(least, 1 << (number - 1).bit_length())


def _blocks(width: int, times: int = 1) -> dict[str, int]:
    block = power(width)
    rows = max(1, times * TILE // block)
    return {"BLOCK_R": rows, "BLOCK_W": block, "num_warps": times * WARPS}


def _states(like: Tensor, sizes: Sizes, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    shape, device = (sizes.rows, sizes.width), like.device
    return (
        torch.empty(shape, dtype=torch.float32, device=device),
        torch.empty(shape, dtype=dtype, device=device),
        torch.empty((sizes.rows, 2), dtype=torch.float32, device=device),
    )
