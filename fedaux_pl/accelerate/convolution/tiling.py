"""How a BatchNorm kernel divides activations of shape (rows, channels) into programs and tiles.

All numbers are fixed. Tuning at run time would cost time at every start, and the order of
summation, and so the last bits of a result, would depend on the machine. The numbers were measured
on an H200 with ResNet-8, in steps of 128 images.
"""

from typing import NamedTuple

PROGRAMS = 264  # approximately; two on each of an H200's 132 multiprocessors
TILE_SIZE = 8192  # values in a tile; a program processes whole tiles
WARPS = 8
BLOCK_CHANNELS = 32
# Large inputs with many channels: wider blocks, whose rows are longer pieces of memory. BatchNorm
# takes 5.7 ms of a step of ShuffleNet with 1,024 images this way, 6.1 ms otherwise.
WIDE_BLOCK_CHANNELS = 64
WIDE_VALUES = 2**24
MANY_CHANNELS = 100
MIN_BLOCK = 16  # the smallest matrix that tensor cores multiply
STAGES = 3  # of pipelined loops


class Tiling(NamedTuple):
    """The grid of a kernel and its tiles."""

    block_channels: int  # channels of a tile and of a program, a power of two
    channel_blocks: int  # programs along the channels
    chunk_rows: int  # rows of a program
    chunks: int  # programs along the rows, each with at least one row

    @property
    def grid(self) -> tuple[int, int]:
        """The programs, (channel blocks, chunks of rows)."""
        return self.channel_blocks, self.chunks

    @property
    def block_partials(self) -> int:
        """How many chunks' partial results are merged in one iteration."""
        return max(1, TILE_SIZE // 2 // self.block_channels)

    def launch_options(self, itemsize: int, *, pipelined: bool = True) -> dict[str, int]:
        """Return the compile-time arguments of a kernel.

        Args:
            itemsize: Bytes of a value. The loads of all stages must fit into shared memory, of
                which smaller GPUs have 100 KB; those of float32 do not.
            pipelined: Whether the kernel gains from loading half tiles ahead. With it the sums of
                the backward pass take 144 us of a step of 128 images, 170 us otherwise.
        """
        return {
            "BLOCK_M": TILE_SIZE // (2 if pipelined else 1) // self.block_channels,
            "BLOCK_C": self.block_channels,
            "STAGES": STAGES if pipelined and itemsize == 2 else 1,
            "num_warps": WARPS,
        }


def choose_tiling(rows: int, channels: int) -> Tiling:
    """Choose the grid and the tiles for activations of shape (rows, channels)."""
    is_wide = channels >= MANY_CHANNELS and rows * channels >= WIDE_VALUES
    max_block = WIDE_BLOCK_CHANNELS if is_wide else BLOCK_CHANNELS
    block_channels = min(max_block, next_power_of_two(channels, 4))
    channel_blocks = -(-channels // block_channels)
    block_rows = TILE_SIZE // block_channels
    chunk_rows = -(-rows * channel_blocks // (PROGRAMS * block_rows)) * block_rows
    return Tiling(block_channels, channel_blocks, chunk_rows, -(-rows // chunk_rows))


def next_power_of_two(number: int, least: int = 1) -> int:
    """The smallest power of two that is at least ``number`` and ``least``."""
    return max(least, 1 << (number - 1).bit_length())
