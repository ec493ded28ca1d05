"""Tile sizes of the kernels: fixed numbers, no tuning at run time."""

TILE = 2048  # values of a tile; kernels that sum over rows take twice as many
WARPS = 4
FEW_PARTS, MANY_PARTS = 128, 512  # programs that sum over rows, each writing a row of partial sums
MANY_ROWS = 2**14  # from this number of rows on there are MANY_PARTS


def next_power_of_two(number: int, least: int = 1) -> int:
    """The smallest power of two that is at least ``number`` and ``least``."""
    return max(least, 1 << (number - 1).bit_length())


def row_blocks(width: int, tiles: int = 1) -> dict[str, int]:
    """Launch options of a kernel whose programs process ``tiles`` tiles of whole rows at once."""
    block = next_power_of_two(width)
    rows = max(1, tiles * TILE // block)
    return {"BLOCK_R": rows, "BLOCK_W": block, "num_warps": tiles * WARPS}
