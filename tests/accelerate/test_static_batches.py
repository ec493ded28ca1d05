"""Batches for captured steps are those of the epoch, read from fixed addresses."""

import pytest
import torch

from fedaux_pl.accelerate.recording.static_batches import StaticBatches
from fedaux_pl.data import TensorBatches


def batches(x, y, **options):
    return TensorBatches(x, y, batch_size=8, shuffle=True, **options)


def data(rows=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 3, generator=generator), torch.arange(rows) + seed


def all_batches(static, count, size=8):
    sizes = [min(size, count - start) for start in range(0, count, size)]
    return [static.next_batch(one) for one in sizes]


@pytest.mark.parametrize("subset", [None, torch.tensor([3, 1, 20, 22, 7, 8, 9, 11, 29, 28])])
@pytest.mark.parametrize("smallest", [1, 7])
def test_the_batches_of_every_epoch(subset, smallest):
    static, given = StaticBatches(), batches(*data(), subset=subset, smallest=smallest)
    for epoch in (0, 1, 4):
        static.load_epoch(given, epoch)
        given.set_epoch(epoch)
        expected = list(given)
        assert static.num_samples == sum(len(batch[1]) for batch in expected)
        for one, other in zip(expected, all_batches(static, static.num_samples), strict=True):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[1], other[1])


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
        assert torch.equal(
            torch.cat([b[1] for b in all_batches(static, 30)]), (y + step)[given.order(0)]
        )
    assert static._data[0].data_ptr() == x.data_ptr()
    assert static._data[1].data_ptr() == address
    assert torch.equal(labels, y + 100)  # unchanged


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: (x[:, :2], y),
        lambda x, y: (x.double(), y),
        lambda x, y: (x, y, y),
    ],
)
def test_data_of_another_format_is_not_copied(other):
    x, y = data()
    static = StaticBatches()
    static.load_epoch(batches(x, y), 0)
    tensors = other(x, y)
    given = TensorBatches(*tensors, batch_size=8, shuffle=True)
    assert static.load_epoch(given, 0)
    found = all_batches(static, static.num_samples)
    for number, tensor in enumerate(tensors):
        assert torch.equal(torch.cat([batch[number] for batch in found]), tensor[given.order(0)])


def test_another_batch_size():
    x, y = data()
    static = StaticBatches()
    static.load_epoch(batches(x, y), 0)
    given = TensorBatches(x, y, batch_size=5, shuffle=True)
    assert static.load_epoch(given, 0)
    found = torch.cat([batch[1] for batch in all_batches(static, 30, 5)])
    assert torch.equal(found, y[given.order(0)])


def test_a_subset_may_be_longer_than_the_data():
    x, y = data(10)
    subset = torch.arange(35) % 10
    given = batches(x, y, subset=subset)
    static = StaticBatches()
    static.load_epoch(batches(x, y), 0)
    assert static.load_epoch(given, 0)
    assert torch.equal(torch.cat([b[1] for b in all_batches(static, 35)]), y[given.order(0)])


def test_clients_with_different_data_share_one_buffer():
    """It grows to the size of the largest client."""
    static, moved = StaticBatches(), []
    for size in (20, 12, 30, 25, 30, 8):
        x, y = data(size, seed=size)
        given = batches(x, y)
        moved.append(static.load_epoch(given, 0))
        found = all_batches(static, static.num_samples)
        assert torch.equal(torch.cat([batch[0] for batch in found]), x[given.order(0)])
        assert torch.equal(torch.cat([batch[1] for batch in found]), y[given.order(0)])
    assert moved == [True, True, True, False, False, False]


@pytest.mark.parametrize("form", [lambda t: t[:, :3], lambda t: t[:, :1].expand(-1, 3)])
def test_tensors_that_are_not_dense(form):
    static, moved = StaticBatches(), []
    for round_ in range(4):
        x, y = torch.randn(20, 4), form(torch.full((20, 5), float(round_)))
        moved.append(static.load_epoch(batches(x, y), 0))
        assert torch.equal(static.next_batch(8)[1], torch.full((8, 3), float(round_)))
    assert moved == [True, True, False, False]  # x is another one, too
