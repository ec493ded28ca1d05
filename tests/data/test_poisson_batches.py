import pytest
import torch

from fedaux_pl.data.augmentation import Augmentation
from fedaux_pl.data.lazy_inputs import read_later
from fedaux_pl.data.poisson_batches import PoissonBatches

IMAGES = torch.arange(200 * 4).view(200, 1, 2, 2)
LABELS = torch.arange(200)
MINE = torch.arange(50, 150)


def batches(seed=0, rate=0.1, steps=400, images=IMAGES, **options):
    return PoissonBatches(images, LABELS, rate=rate, steps=steps, subset=MINE, seed=seed, **options)


@pytest.mark.parametrize("seed", [0, None])
def test_every_sample_is_drawn_on_its_own_at_the_rate(seed):
    """The size of a batch is binomial, and so is the number of batches of a sample."""
    drawn = list(batches(seed))
    sizes = torch.tensor([float(len(labels)) for _, labels in drawn])
    counts = torch.bincount(torch.cat([labels for _, labels in drawn]), minlength=200)
    assert len(drawn) == len(batches()) == 400
    assert sizes.mean() == pytest.approx(10, abs=5 * 3 / 20)
    assert sizes.var() == pytest.approx(9, rel=0.5)
    assert counts[:50].sum() == counts[150:].sum() == 0
    assert counts[50:150].float().var() == pytest.approx(36, rel=0.8)
    for images, labels in drawn[:5]:
        assert torch.equal(images, IMAGES[labels])
        assert len(labels.unique()) == len(labels)


def test_seeded_draws_repeat_and_secret_ones_do_not():
    def labels(seed, epoch=0):
        chosen = batches(seed, steps=5)
        chosen.set_epoch(epoch)
        return [labels.tolist() for _, labels in chosen]

    assert labels(0) == labels(0)
    assert len({str(labels(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert labels(None) != labels(None)


def test_an_epoch_follows_after_another():
    chosen = batches(steps=3)
    first, second = list(chosen), list(chosen)
    assert str(first) != str(second)


def test_rates_of_all_and_almost_none():
    assert [len(labels) for _, labels in batches(rate=1.0, steps=2)] == [100, 100]
    empty = list(batches(rate=1e-9, steps=2))
    assert [tuple(images.shape) for images, _ in empty] == [(0, 1, 2, 2)] * 2


def test_lazy_inputs_are_read_likewise():
    lazy = batches(images=read_later(IMAGES), steps=4, rate=0.01)
    for (images, labels), (read, same) in zip(batches(steps=4, rate=0.01), lazy, strict=True):
        assert torch.equal(images, read)
        assert torch.equal(labels, same)


def test_each_image_is_augmented_on_its_own():
    flipped = batches(steps=1, rate=1.0, augmentation=Augmentation.create("flip"))
    [(images, labels)] = flipped
    is_flipped = [torch.equal(x, IMAGES[y].flip(-1)) for x, y in zip(images, labels, strict=True)]
    is_same = [torch.equal(x, IMAGES[y]) for x, y in zip(images, labels, strict=True)]
    assert 20 < sum(is_flipped) < 80
    assert all(a != b for a, b in zip(is_flipped, is_same, strict=True))
    assert str(list(flipped)) != str([(images, labels)])
