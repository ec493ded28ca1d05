"""Every row and channel has one program, and tiles are those that were measured."""

from itertools import cycle

import pytest

from fedaux_pl.accelerate.convolution.batch_norm import PROGRAMS, choose_tiling


@pytest.mark.parametrize(
    ("rows", "channels"), zip(cycle([2, 2048, 1_048_576]), [1, 3, 24, 200, 512, 64], strict=False)
)
def test_tiles_cover_everything_once(rows, channels):
    tiles = choose_tiling(rows, channels)
    channel_blocks, chunks = tiles.grid
    assert (chunks - 1) * tiles.chunk_rows < rows <= chunks * tiles.chunk_rows
    assert (channel_blocks - 1) * tiles.block_channels < channels
    assert channels <= channel_blocks * tiles.block_channels
    if rows == 1_048_576:
        assert 0.8 * PROGRAMS <= chunks * channel_blocks <= PROGRAMS
    for pipelined in (False, True):
        options = tiles.launch_options(2, pipelined=pipelined)
        assert tiles.chunk_rows % options["BLOCK_M"] == 0
        for size in (options["BLOCK_M"], options["BLOCK_C"], options["num_warps"]):
            assert size & (size - 1) == 0


@pytest.mark.parametrize(
    ("itemsize", "pipelined", "stages"), [(2, True, 3), (4, True, 1), (2, False, 1)]
)
def test_pipelined_loads_fit_into_shared_memory(itemsize, pipelined, stages):
    options = choose_tiling(131072, 64).launch_options(itemsize, pipelined=pipelined)
    assert options["STAGES"] == stages
    tensors, tile = 4, options["BLOCK_M"] * options["BLOCK_C"] * itemsize
    assert tensors * (stages - 1) * tile <= 2**16


def test_blocks_are_wide_where_it_is_faster():
    sizes = [(262144, 200), (65536, 400), (32768, 200), (1048576, 96)]
    assert [choose_tiling(*size).block_channels for size in sizes] == [64, 64, 32, 32]
