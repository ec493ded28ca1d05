"""How activations of shape (rows, channels) are shared among the programs of a kernel.

Fixed numbers and no tuning at run time, which would take its time at every start and let the order
of summation, and with it the last bits of a result, depend on the machine. They were measured on an
H200 with ResNet-8: for a network that has the device to itself by steps of 128 images, for networks
side by side by steps of 32 images of eight of them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

import torch

from fedaux_pl.models.contexts import holding

Kernel = Literal["moments", "normalize", "sums", "gradient"]

BLOCK_CHANNELS = 32
# From so many rows on there is enough to do for twice the programs with half as much in hand, which
# makes the backward pass of (1048576, 64) take 300 us and not 386.
MANY_ROWS = 2**19
# One kernel instead of two below so many rows, where starting a kernel costs more than it saves
# to share the rows among many programs. It has narrower blocks, as only they make up its grid.
SINGLE_ROWS = 1024
SINGLE_BLOCK_CHANNELS = 16
# What is under way lies in shared memory, of which smaller GPUs have 100 KB.
SHARED_BYTES = 2**16
MOST_TENSORS = 4  # that a kernel reads


@dataclass(frozen=True)
class Loop:
    """How a kernel goes through its rows.

    Args:
        part: It has a tile divided by this in hand at once.
        stages: Parts that are under way at the same time; 1 loads each when it is needed.
    """

    part: int
    stages: int


@dataclass(frozen=True)
class Shares:
    """What a program gets.

    Args:
        programs: About how many there are.
        tile: Values of a tile, a power of two; a program has whole tiles to do.
        warps: Warps of a program.
        loops: How each kernel goes through them.
    """

    programs: int
    tile: int
    warps: int
    loops: Mapping[Kernel, Loop]


# Two programs for each multiprocessor. The sums of the pass backward take 144 us of a step of
# 128 images like this, 170 with a load at a time; the pass forward gains nothing.
ALONE = Shares(
    264,
    8192,
    8,
    {
        "moments": Loop(2, 3),
        "normalize": Loop(1, 1),
        "sums": Loop(2, 3),
        "gradient": Loop(2, 3),
    },
)
# Eight clients take 2.84 ms for a step, with the shares above 3.26 ms.
CROWDED = Shares(
    132,
    2048,
    4,
    {
        "moments": Loop(1, 3),
        "normalize": Loop(1, 3),
        "sums": Loop(2, 3),
        "gradient": Loop(1, 3),
    },
)
_shares: ContextVar[Shares | None] = ContextVar("shares", default=None)


@contextmanager
def crowded() -> Iterator[None]:
    """Within it kernels leave room for those of other networks on the same device.

    They do not where results are to repeat: how many networks there is room for depends on what
    else is on the device.
    """
    with holding(_shares, None if to_be_repeated() else CROWDED):
        yield


def to_be_repeated() -> bool:
    """Whether PyTorch was told that results are to be the same every time, to the last bit."""
    return torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()


@dataclass(frozen=True)
class Tiling:
    """Who does what.

    Args:
        single: Whether a program sees all rows of its channels, so that one kernel is enough.
        block_rows: Rows of a tile, a power of two.
        block_channels: Channels of a tile, a power of two.
        chunk_rows: Rows of a program.
        chunks: Number of programs along the rows, none of them without rows.
        blocks: Number of programs along the channels.
        shares: What it was made from.
    """

    single: bool
    block_rows: int
    block_channels: int
    chunk_rows: int
    chunks: int
    blocks: int
    shares: Shares

    @property
    def grid(self) -> tuple[int, int]:
        """The programs."""
        return self.blocks, self.chunks

    @property
    def block_partials(self) -> int:
        """How many chunks are merged at once."""
        return max(1, self.shares.tile // 2 // self.block_channels)

    def options(self, kernel: Kernel, itemsize: int) -> dict[str, int]:
        """What a kernel is started with.

        Args:
            kernel: Which one.
            itemsize: Bytes of a value of the activations.
        """
        loop = self.shares.loops[kernel]
        block_rows = max(1, self.block_rows // (1 if self.single else loop.part))
        under_way = (loop.stages - 1) * MOST_TENSORS * block_rows * self.block_channels * itemsize
        return {
            "BLOCK_M": block_rows,
            "BLOCK_C": self.block_channels,
            "STAGES": loop.stages if under_way <= SHARED_BYTES else 1,
            "num_warps": self.shares.warps,
        }


def tiling(rows: int, channels: int, *, single: bool | None = None) -> Tiling:
    """Share (rows, channels) among programs; ``single`` is for comparisons."""
    shares = _shares.get() or ALONE
    single = rows <= SINGLE_ROWS if single is None else single
    widest = SINGLE_BLOCK_CHANNELS if single else BLOCK_CHANNELS
    block_channels = min(widest, max(4, 1 << (channels - 1).bit_length()))
    blocks = -(-channels // block_channels)
    many = 2 if rows >= MANY_ROWS else 1
    block_rows = shares.tile // many // block_channels
    if single:
        return Tiling(True, block_rows, block_channels, rows, 1, blocks, shares)
    share = -(-rows * blocks // (shares.programs * many))
    chunk_rows = -(-share // block_rows) * block_rows
    chunks = -(-rows // chunk_rows)
    return Tiling(False, block_rows, block_channels, chunk_rows, chunks, blocks, shares)
