"""The losses against their definitions."""

import math

import pytest
import torch
from torch.testing import assert_close

from fedaux_pl.functional import (
    balanced_weights,
    distillation_loss,
    nt_xent_loss,
    proximal_penalty,
)


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


@pytest.mark.parametrize(("count", "temperature"), [(1, 0.5), (2, 2.0), (7, 0.1)])
def test_nt_xent_is_its_definition(count, temperature):
    first, second = views(count)
    expected = by_definition(first, second, temperature)
    assert float(nt_xent_loss(first, second, temperature)) == pytest.approx(expected, abs=1e-12)


def test_distillation_loss_is_the_mean_divergence():
    student, targets = torch.randn(6, 4), torch.randn(6, 4).softmax(1)
    targets[0] = torch.tensor([1.0, 0, 0, 0])
    naive = 0.0
    for row, target in zip(student.softmax(1).tolist(), targets.tolist(), strict=True):
        naive += sum(t * math.log(t / q) for q, t in zip(row, target, strict=True) if t > 0)
    assert distillation_loss(student, targets).item() == pytest.approx(naive / 6, rel=1e-5)


def test_distillation_loss_refuses_other_shapes():
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(2, 4\)"):
        distillation_loss(torch.zeros(2, 3), torch.zeros(2, 4))


def test_proximal_penalty_is_half_mu_times_the_squared_distance():
    params = [torch.randn(3, 2, requires_grad=True), torch.randn(4, requires_grad=True)]
    anchor = [torch.randn(3, 2, requires_grad=True), torch.randn(4)]
    naive = 0.0
    for param, origin in zip(params, anchor, strict=True):
        for a, b in zip(param.flatten().tolist(), origin.flatten().tolist(), strict=True):
            naive += 0.3 / 2 * (a - b) ** 2
    penalty = proximal_penalty(params, anchor, mu=0.3)
    assert penalty.item() == pytest.approx(naive, rel=1e-5)
    penalty.backward()
    for param, origin in zip(params, anchor, strict=True):
        assert_close(param.grad, 0.3 * (param - origin).detach())
    assert anchor[0].grad is None


def test_distillation_with_temperature_by_definition():
    torch.manual_seed(0)
    logits, teacher = torch.randn(2, 5, 4, dtype=torch.double)
    tau = 3.0
    total = 0.0
    for f, g in zip(logits, teacher, strict=True):
        p, q = (g / tau).softmax(0), (f / tau).softmax(0)
        total += tau**2 * sum(p[c] * (p[c] / q[c]).log() for c in range(4))
    assert_close(distillation_loss(logits, teacher.softmax(1), tau), total / 5)


@pytest.mark.parametrize("labels", [[3], [3, 3, 3], [0, 9, 9, 9, 2, 9]])
def test_weights_balance_the_classes_that_occur(labels):
    weights = balanced_weights(torch.tensor(labels)).tolist()
    kinds = sorted(set(labels))
    for label, weight in zip(labels, weights, strict=True):
        count = sum(other == label for other in labels)
        assert weight == pytest.approx(len(labels) / (len(kinds) * count))
    assert sum(weights) == pytest.approx(len(labels))
