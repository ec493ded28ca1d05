"""Every row and channel has one program, and pipelined loads fit into shared memory."""

from contextlib import nullcontext
from itertools import cycle

import pytest
import torch

from fedaux_pl.accelerate.convolution.tiling import (
    EXCLUSIVE_DEVICE,
    SHARED_DEVICE,
    SHARED_MEMORY_BYTES,
    SINGLE_KERNEL_ROWS,
    choose_tiling,
    sharing_device,
)
from tests.accelerate.pairwise import pairwise

CONTEXTS = [nullcontext, sharing_device]


@pytest.mark.parametrize(
    ("context", "rows", "channels"),
    zip(
        cycle(CONTEXTS),
        cycle([2, 511, 1025, 2048, 32768, 1_048_576]),
        [1, 3, 8, 24, 32, 64, 200, 512, 1280, 3, 24, 64],
    ),
)
def test_tiles_cover_everything_once(rows, channels, context):
    with context():
        tiles = choose_tiling(rows, channels)
    assert tiles.parameters == (SHARED_DEVICE if context is sharing_device else EXCLUSIVE_DEVICE)
    assert tiles.is_single_kernel == (rows <= SINGLE_KERNEL_ROWS)
    assert (tiles.chunks - 1) * tiles.chunk_rows < rows <= tiles.chunks * tiles.chunk_rows
    assert (tiles.channel_blocks - 1) * tiles.block_channels < channels
    assert channels <= tiles.channel_blocks * tiles.block_channels
    assert tiles.grid == (tiles.channel_blocks, tiles.chunks)
    # large inputs have about twice as many programs as the parameters say
    if rows == 1_048_576:
        programs = tiles.parameters.programs
        assert 1.6 * programs <= tiles.chunks * tiles.channel_blocks <= 2.4 * programs


@pytest.mark.parametrize(
    ("size", "itemsize", "kernel", "context"),
    pairwise(
        [(512, 512), (2048, 8), (131072, 64)],
        [2, 4],
        ["moments", "normalize", "sums", "gradient"],
        CONTEXTS,
    ),
)
def test_launch_options(size, itemsize, kernel, context):
    with context():
        tiles = choose_tiling(*size)
    options = tiles.launch_options(kernel, itemsize)
    for size in (options["BLOCK_M"], options["BLOCK_C"], options["num_warps"]):
        assert size & (size - 1) == 0
    assert tiles.is_single_kernel or tiles.chunk_rows % options["BLOCK_M"] == 0
    tile = options["BLOCK_M"] * options["BLOCK_C"] * itemsize
    assert 4 * (options["STAGES"] - 1) * tile <= SHARED_MEMORY_BYTES
    assert options["STAGES"] in (1, tiles.parameters.loops[kernel].stages)


def test_loads_are_pipelined_where_it_is_faster():
    assert choose_tiling(131072, 64).launch_options("sums", 2)["STAGES"] == 3
    assert choose_tiling(131072, 64).launch_options("sums", 4)["STAGES"] == 1
    with sharing_device():
        assert choose_tiling(32768, 64).launch_options("normalize", 2)["STAGES"] == 3


@pytest.mark.parametrize(
    ("rows", "channels", "block"),
    [(262144, 200, 64), (65536, 400, 64), (32768, 200, 32), (1048576, 96, 32), (1024, 32768, 16)],
)
def test_blocks_are_wide_where_it_is_faster(rows, channels, block):
    assert choose_tiling(rows, channels).block_channels == block


def test_sharing_a_device_ends():
    with sharing_device():
        assert choose_tiling(2048, 64).parameters is SHARED_DEVICE
    assert choose_tiling(2048, 64).parameters is EXCLUSIVE_DEVICE


def test_deterministic_results_do_not_depend_on_sharing(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    with sharing_device():
        assert choose_tiling(2048, 64).parameters is EXCLUSIVE_DEVICE
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with sharing_device():
        assert choose_tiling(2048, 64).parameters is EXCLUSIVE_DEVICE
