"""Batches for captured steps are those of the epoch, read from fixed addresses."""

import pytest
import torch

from fedaux_pl.accelerate.recording.static_batches import StaticBatches
from fedaux_pl.data import TensorBatches
from fedaux_pl.data.lazy_inputs import read_later
from tests.data import test_augmentation


def batches(x, y, **options):
    return TensorBatches(x, y, batch_size=8, shuffle=True, **options)


def data(rows=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 3, generator=generator), torch.arange(rows) + seed


def assert_epoch(static, given, epoch=0):
    """The batches that were loaded are those of the epoch."""
    given.set_epoch(epoch)
    expected = list(given)
    assert static.num_samples == sum(len(batch[1]) for batch in expected)
    for batch in expected:
        static.fetch()
        for one, other in zip(batch, static.next_batch(len(batch[0])), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("subset", [None, torch.tensor([3, 1, 20, 22, 7, 8, 9, 11, 29, 28])])
def test_the_batches_of_every_epoch(subset):
    static, given = StaticBatches(), batches(*data(), subset=subset, smallest=7)
    for epoch in (0, 1, 4):
        static.load_epoch(given, epoch)
        assert_epoch(static, given, epoch)


def test_changing_targets_are_in_a_buffer_from_the_start():
    """So the steps of the first round's soft labels are not captured again in the second."""
    x, y = data()
    static = StaticBatches()
    assert static.load_epoch(batches(x, y), 0)
    assert not static.load_epoch(batches(x, y), 1)
    labels = y + 100
    assert not static.load_epoch(batches(x, labels), 0)
    address = static._data[1].data_ptr()
    for step in range(3):
        given = batches(x, y + step, seed=step)
        assert not static.load_epoch(given, 0)
        assert_epoch(static, given)
    assert static._data[0].data_ptr() == x.data_ptr()
    assert static._data[1].data_ptr() == address
    assert torch.equal(labels, y + 100)  # unchanged


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (lambda x, y: (x[:, :2], y), {}),
        (lambda x, y: (x.double(), y), {}),
        (lambda x, y: (x, y, y), {}),
        (lambda x, y: (x, y), {"batch_size": 5}),
        (lambda x, y: (x, y), {"subset": torch.arange(55) % 10}),  # longer than the data
    ],
)
def test_data_of_another_format_or_size(change, options):
    x, y = data()
    static = StaticBatches()
    static.load_epoch(batches(x, y), 0)
    given = TensorBatches(*change(x, y), **({"batch_size": 8, "shuffle": True} | options))
    assert static.load_epoch(given, 0)
    assert_epoch(static, given)


def test_clients_with_different_data_share_one_buffer():
    """It grows to the size of the largest client."""
    static, moved = StaticBatches(), []
    for size in (20, 12, 30, 25, 30, 8):
        x, y = data(size, seed=size)
        given = batches(x, y)
        moved.append(static.load_epoch(given, 0))
        assert_epoch(static, given)
    assert moved == [True, True, True, False, False, False]


def test_inputs_in_host_memory_are_read_into_one_buffer():
    x, y = data()
    static, moved = StaticBatches(), []
    for epoch, subset in enumerate([None, torch.arange(20), torch.arange(5, 30)]):
        given = batches(read_later(x), y, subset=subset)
        moved.append(static.load_epoch(given, epoch))
        assert_epoch(static, given, epoch)
    assert moved == [True, False, False]
    assert len(static._data[0]) == 8


@pytest.mark.parametrize("form", [lambda t: t[:, :3], lambda t: t[:, :1].expand(-1, 3)])
def test_tensors_that_are_not_dense(form):
    static, moved = StaticBatches(), []
    for round_ in range(4):
        x, y = torch.randn(20, 4), form(torch.full((20, 5), float(round_)))
        moved.append(static.load_epoch(batches(x, y), 0))
        assert torch.equal(static.next_batch(8)[1], torch.full((8, 3), float(round_)))
    assert moved == [True, True, False, False]  # x is another one, too


@pytest.mark.parametrize("option", test_augmentation.OPTIONS)
def test_augmented_batches(option):
    """Of two clients in turn: what a captured step reads stays where it was."""
    static = StaticBatches()
    for turn, (epoch, subset) in enumerate([(0, None), (1, torch.arange(2, 17)), (0, None)]):
        given = test_augmentation.batches(option, seed=turn, subset=subset)
        moved = static.load_epoch(given, epoch)
        assert moved is (turn == 0)
        given.set_epoch(epoch)
        for expected in given:
            static.fetch()
            found = static.next_batch(len(expected[1]))
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
