"""How a BatchNorm kernel divides activations of shape (rows, channels) into programs and tiles.

All numbers are fixed. Tuning at run time would cost time at every start, and the order of
summation, and so the last bits of a result, would depend on the machine. The numbers were measured
on an H200 with ResNet-8: steps of 128 images for a network with the device to itself, and steps of
32 images of eight networks at the same time for networks that share the device.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch

from fedaux_pl.accelerate.context import current, using

Kernel = Literal["moments", "normalize", "sums", "gradient"]

BLOCK_CHANNELS = 32
# Large inputs with many channels: wider blocks, whose rows are longer pieces of memory. BatchNorm
# takes 5.7 ms of a step of ShuffleNet with 1,024 images this way, 6.1 ms otherwise.
WIDE_BLOCK_CHANNELS = 64
WIDE_VALUES = 2**24
MANY_CHANNELS = 100
MIN_BLOCK = 16  # the smallest matrix that tensor cores multiply
# Large inputs: twice the programs, half the tile each. The backward pass of (1048576, 64) takes
# 300 us this way, 386 us otherwise.
LARGE_ROWS = 2**19
# Small inputs: one kernel in place of two, because a second launch costs more than the parallelism
# over rows gains. Its channel blocks are narrower, because the grid has no programs along the rows.
SINGLE_KERNEL_ROWS = 1024
SINGLE_KERNEL_BLOCK_CHANNELS = 16
# The loads of all pipeline stages stay in shared memory, of which smaller GPUs have 100 KB.
SHARED_MEMORY_BYTES = 2**16
MAX_INPUTS = 4  # tensors that a kernel loads tiles of


@dataclass(frozen=True)
class LoopOptions:
    """How a kernel loops over the rows of a program.

    Args:
        splits: An iteration loads a tile divided by this number, along the rows.
        stages: Pipeline stages of the loop; 1 means that loads are not issued ahead.
    """

    splits: int
    stages: int


@dataclass(frozen=True)
class TilingParameters:
    """The numbers that a tiling is computed from.

    Args:
        programs: Approximate number of programs.
        tile_size: Values in a tile, a power of two; a program processes whole tiles.
        warps: Warps per program.
        loops: The loop of each kernel.
    """

    programs: int
    tile_size: int
    warps: int
    loops: Mapping[Kernel, LoopOptions]


# Two programs per multiprocessor. With pipelined loads the sums of the backward pass take 144 us of
# a step of 128 images, without 170 us; "normalize" gains nothing from them.
EXCLUSIVE_DEVICE = TilingParameters(
    programs=264,
    tile_size=8192,
    warps=8,
    loops={
        "moments": LoopOptions(splits=2, stages=3),
        "normalize": LoopOptions(splits=1, stages=1),
        "sums": LoopOptions(splits=2, stages=3),
        "gradient": LoopOptions(splits=2, stages=3),
    },
)
# A step of eight clients takes 2.84 ms with these parameters, 3.26 ms with those above.
SHARED_DEVICE = TilingParameters(
    programs=132,
    tile_size=2048,
    warps=4,
    loops={
        "moments": LoopOptions(splits=1, stages=3),
        "normalize": LoopOptions(splits=1, stages=3),
        "sums": LoopOptions(splits=2, stages=3),
        "gradient": LoopOptions(splits=1, stages=3),
    },
)


def sharing_device() -> AbstractContextManager[None]:
    """Within it kernels are launched for a device that other networks use at the same time.

    Under deterministic algorithms this changes nothing: how many networks share a device depends on
    its free memory, and results must not.
    """
    return using(tiling=EXCLUSIVE_DEVICE if is_deterministic() else SHARED_DEVICE)


def is_deterministic() -> bool:
    """Whether PyTorch is set to give the same result every time, bit for bit."""
    return torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()


@dataclass(frozen=True)
class Tiling:
    """The grid of a kernel and its tiles.

    Args:
        is_single_kernel: Whether a program processes all rows of its channels. Then sums over rows
            need no second kernel.
        block_rows: Rows of a tile, a power of two.
        block_channels: Channels of a tile and of a program, a power of two.
        chunk_rows: Rows of a program.
        chunks: Number of programs along the rows, each with at least one row.
        channel_blocks: Number of programs along the channels.
        parameters: The numbers that it was computed from.
    """

    is_single_kernel: bool
    block_rows: int
    block_channels: int
    chunk_rows: int
    chunks: int
    channel_blocks: int
    parameters: TilingParameters

    @property
    def grid(self) -> tuple[int, int]:
        """The programs, (channel blocks, chunks of rows)."""
        return self.channel_blocks, self.chunks

    @property
    def block_partials(self) -> int:
        """How many chunks' partial results are merged in one iteration."""
        return max(1, self.parameters.tile_size // 2 // self.block_channels)

    def launch_options(self, kernel: Kernel, itemsize: int) -> dict[str, int]:
        """The compile-time arguments of a kernel."""
        loop = self.parameters.loops[kernel]
        block_rows = max(1, self.block_rows // (1 if self.is_single_kernel else loop.splits))
        stage_bytes = MAX_INPUTS * block_rows * self.block_channels * itemsize
        return {
            "BLOCK_M": block_rows,
            "BLOCK_C": self.block_channels,
            "STAGES": loop.stages if (loop.stages - 1) * stage_bytes <= SHARED_MEMORY_BYTES else 1,
            "num_warps": self.parameters.warps,
        }


def next_power_of_two(number: int, least: int = 1) -> int:
    """The smallest power of two that is at least ``number`` and ``least``."""
    return max(least, 1 << (number - 1).bit_length())


def choose_tiling(rows: int, channels: int, *, single_kernel: bool | None = None) -> Tiling:
    """Choose the grid and the tiles for activations of shape (rows, channels).

    Args:
        rows: N * H * W.
        channels: C.
        single_kernel: Whether a program processes all rows; by default small inputs only.
    """
    parameters: TilingParameters = current().tiling or EXCLUSIVE_DEVICE
    if single_kernel is None:
        single_kernel = rows <= SINGLE_KERNEL_ROWS
    max_block = BLOCK_CHANNELS
    if single_kernel:
        max_block = SINGLE_KERNEL_BLOCK_CHANNELS
    elif channels >= MANY_CHANNELS and rows * channels >= WIDE_VALUES:
        max_block = WIDE_BLOCK_CHANNELS
    block_channels = min(max_block, next_power_of_two(channels, 4))
    channel_blocks = -(-channels // block_channels)
    factor = 2 if rows >= LARGE_ROWS else 1
    block_rows = parameters.tile_size // factor // block_channels
    if single_kernel:
        chunk_rows, chunks = rows, 1
    else:
        program_rows = -(-rows * channel_blocks // (parameters.programs * factor))
        chunk_rows = -(-program_rows // block_rows) * block_rows
        chunks = -(-rows // chunk_rows)
    return Tiling(
        is_single_kernel=single_kernel,
        block_rows=block_rows,
        block_channels=block_channels,
        chunk_rows=chunk_rows,
        chunks=chunks,
        channel_blocks=channel_blocks,
        parameters=parameters,
    )
