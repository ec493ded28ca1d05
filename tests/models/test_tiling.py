"""Every row and channel has one program, and what programs hold fits."""

from contextlib import nullcontext

import pytest
import torch

from fedaux_pl.models.tiling import (
    ALONE,
    CROWDED,
    SHARED_BYTES,
    SINGLE_ROWS,
    crowded,
    tiling,
)


@pytest.mark.parametrize("among", [nullcontext, crowded])
@pytest.mark.parametrize("channels", [1, 3, 8, 24, 32, 64, 200, 512, 1280])
@pytest.mark.parametrize("rows", [2, 511, 1025, 2048, 32768, 1_048_576])
def test_tiles_cover_everything_once(rows, channels, among):
    with among():
        tiles = tiling(rows, channels)
    assert tiles.shares == (CROWDED if among is crowded else ALONE)
    assert tiles.single == (rows <= SINGLE_ROWS)
    assert (tiles.chunks - 1) * tiles.chunk_rows < rows <= tiles.chunks * tiles.chunk_rows
    assert (tiles.blocks - 1) * tiles.block_channels < channels
    assert channels <= tiles.blocks * tiles.block_channels
    assert tiles.grid == (tiles.blocks, tiles.chunks)
    # as many programs as there are to be, where there are enough rows for them
    if rows == 1_048_576:
        programs = tiles.shares.programs
        assert 1.6 * programs <= tiles.chunks * tiles.blocks <= 2.4 * programs


@pytest.mark.parametrize("among", [nullcontext, crowded])
@pytest.mark.parametrize("kernel", ["moments", "normalize", "sums", "gradient"])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize(("rows", "channels"), [(512, 512), (2048, 8), (131072, 64)])
def test_options_of_kernels(rows, channels, itemsize, kernel, among):
    with among():
        tiles = tiling(rows, channels)
    options = tiles.options(kernel, itemsize)
    for size in (options["BLOCK_M"], options["BLOCK_C"], options["num_warps"]):
        assert size & (size - 1) == 0
    assert tiles.single or tiles.chunk_rows % options["BLOCK_M"] == 0
    held = options["BLOCK_M"] * options["BLOCK_C"] * itemsize
    assert 4 * (options["STAGES"] - 1) * held <= SHARED_BYTES
    assert options["STAGES"] in (1, tiles.shares.loops[kernel].stages)


def test_loads_run_ahead_where_it_was_measured():
    assert tiling(131072, 64).options("sums", 2)["STAGES"] == 3
    assert tiling(131072, 64).options("sums", 4)["STAGES"] == 1
    with crowded():
        assert tiling(32768, 64).options("normalize", 2)["STAGES"] == 3


def test_a_crowd_ends():
    with crowded():
        assert tiling(2048, 64).shares is CROWDED
    assert tiling(2048, 64).shares is ALONE


def test_results_that_are_to_repeat_do_not_depend_on_the_crowd(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    with crowded():
        assert tiling(2048, 64).shares is ALONE
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with crowded():
        assert tiling(2048, 64).shares is ALONE
