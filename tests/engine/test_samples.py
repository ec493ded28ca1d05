"""Samples for recorded steps are those of the batches, from places that stay."""

import pytest
import torch

from fedaux_pl.data import TensorBatches
from fedaux_pl.engine.samples import Samples


def batches(x, y, **options):
    return TensorBatches(x, y, batch_size=8, shuffle=True, **options)


def data(rows=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 3, generator=generator), torch.arange(rows) + seed


def taken(samples, count, size=8):
    sizes = [min(size, count - start) for start in range(0, count, size)]
    return [samples.take(one) for one in sizes]


@pytest.mark.parametrize("subset", [None, torch.tensor([3, 1, 20, 22, 7, 8, 9, 11, 29, 28])])
@pytest.mark.parametrize("smallest", [1, 7])
def test_the_batches_of_every_epoch(subset, smallest):
    samples, given = Samples(), batches(*data(), subset=subset, smallest=smallest)
    for epoch in (0, 1, 4):
        samples.begin(given, epoch)
        given.set_epoch(epoch)
        expected = list(given)
        assert samples.count == sum(len(batch[1]) for batch in expected)
        for one, other in zip(expected, taken(samples, samples.count), strict=True):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[1], other[1])


def test_places_change_once():
    x, y = data()
    samples = Samples()
    assert samples.begin(batches(x, y), 0)
    assert not samples.begin(batches(x, y), 1)
    labels = y + 100
    assert samples.begin(batches(x, labels), 0)
    place = samples._places[1].data_ptr()
    for step in range(3):
        given = batches(x, y + step, seed=step)
        assert not samples.begin(given, 0)
        assert torch.equal(
            torch.cat([b[1] for b in taken(samples, 30)]), (y + step)[given.order(0)]
        )
    assert samples._places[0].data_ptr() == x.data_ptr()
    assert samples._places[1].data_ptr() == place
    assert torch.equal(labels, y + 100)  # what was given is left alone


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: (x[:, :2], y),
        lambda x, y: (x.double(), y),
        lambda x, y: (x, y, y),
    ],
)
def test_data_of_another_form_have_places_of_their_own(other):
    x, y = data()
    samples = Samples()
    samples.begin(batches(x, y), 0)
    tensors = other(x, y)
    given = TensorBatches(*tensors, batch_size=8, shuffle=True)
    assert samples.begin(given, 0)
    found = taken(samples, samples.count)
    for place, tensor in enumerate(tensors):
        assert torch.equal(torch.cat([batch[place] for batch in found]), tensor[given.order(0)])


def test_another_batch_size_has_an_order_of_its_own():
    x, y = data()
    samples = Samples()
    samples.begin(batches(x, y), 0)
    given = TensorBatches(x, y, batch_size=5, shuffle=True)
    assert samples.begin(given, 0)
    found = torch.cat([batch[1] for batch in taken(samples, 30, 5)])
    assert torch.equal(found, y[given.order(0)])


def test_a_subset_may_be_longer_than_the_data():
    x, y = data(10)
    subset = torch.arange(35) % 10
    given = batches(x, y, subset=subset)
    samples = Samples()
    samples.begin(batches(x, y), 0)
    assert samples.begin(given, 0)
    assert torch.equal(torch.cat([b[1] for b in taken(samples, 35)]), y[given.order(0)])


def test_clients_with_data_of_their_own_share_one_place():
    """Which grows with the largest of them, and is not new for every one."""
    samples, moved = Samples(), []
    for size in (20, 12, 30, 25, 30, 8):
        x, y = data(size, seed=size)
        given = batches(x, y)
        moved.append(samples.begin(given, 0))
        found = taken(samples, samples.count)
        assert torch.equal(torch.cat([batch[0] for batch in found]), x[given.order(0)])
        assert torch.equal(torch.cat([batch[1] for batch in found]), y[given.order(0)])
    assert moved == [True, True, True, False, False, False]


@pytest.mark.parametrize("form", [lambda t: t[:, :3], lambda t: t[:, :1].expand(-1, 3)])
def test_tensors_that_are_not_dense(form):
    samples, moved = Samples(), []
    for round_ in range(4):
        x, y = torch.randn(20, 4), form(torch.full((20, 5), float(round_)))
        moved.append(samples.begin(batches(x, y), 0))
        assert torch.equal(samples.take(8)[1], torch.full((8, 3), float(round_)))
    assert moved == [True, True, False, False]
