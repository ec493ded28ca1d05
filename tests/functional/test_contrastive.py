"""NT-Xent against its definition, and against lightly's."""

import math

import pytest
import torch
from lightly.loss.ntx_ent_loss import NTXentLoss

from fedaux_pl.functional import nt_xent_loss


def views(count=6, dim=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, count, dim, generator=generator, dtype=torch.float64)


def by_definition(first, second, temperature):
    z = [v / v.norm() for v in [*first, *second]]
    count = len(first)
    total = 0.0
    for i in range(2 * count):
        j = (i + count) % (2 * count)
        weights = [math.exp(float(z[i] @ z[k]) / temperature) for k in range(2 * count) if k != i]
        total -= math.log(math.exp(float(z[i] @ z[j]) / temperature) / sum(weights))
    return total / (2 * count)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_it_is_the_definition(count, temperature):
    first, second = views(count)
    expected = by_definition(first, second, temperature)
    assert float(nt_xent_loss(first, second, temperature)) == pytest.approx(expected, abs=1e-12)


def test_it_and_its_gradient_are_lightlys():
    ours, theirs = (views().requires_grad_() for _ in range(2))
    loss, reference = nt_xent_loss(*ours, 0.5), NTXentLoss(temperature=0.5)(*theirs)
    torch.testing.assert_close(loss, reference)
    loss.backward()
    reference.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_parts_of_several_processes_make_the_whole():
    first, second = views(6)
    whole = nt_xent_loss(first, second, 0.5)
    parts = [
        nt_xent_loss(first[at : at + 2], second[at : at + 2], 0.5, (first, second), at)
        for at in (0, 2, 4)
    ]
    torch.testing.assert_close(torch.stack(parts).mean(), whole)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_not_positive(temperature):
    with pytest.raises(ValueError, match="temperature must be positive, but is"):
        nt_xent_loss(*views(), temperature)


def test_views_that_do_not_match():
    with pytest.raises(ValueError, match=r"\(6, 5\) and \(3, 5\)"):
        nt_xent_loss(views()[0], views()[1][:3], 0.5)
