"""Tile sizes of the kernels: fixed numbers, no tuning at run time."""

from fedaux_pl.accelerate.convolution.tiling import next_power_of_two

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
