"""One Newton step: loops over records, an attack on the sensitivity, and a dense Hessian."""

import math

import pytest
import torch
from torch.testing import assert_close

from fedaux_pl.functional import LinearClassifier, newton_step, sum_residuals
from fedaux_pl.functional.discriminant import Discriminant
from fedaux_pl.functional.newton_step import RESIDUAL_BOUND, RESIDUAL_SENSITIVITY, recolor
from fedaux_pl.scoring import PublicMap
from tests.functional.rows import drawn, unit


def classifier(classes, k, scale=2.0, seed=1):
    return LinearClassifier(scale * drawn(classes, k, seed=seed), drawn(classes, seed=seed + 1))


@pytest.mark.parametrize("scale", [0.1, 2.0, 50.0])
def test_residuals_are_those_of_a_loop(scale):
    rows, labels, own = unit(drawn(20, 3)), torch.arange(20) % 4, classifier(4, 3, scale)
    expected = torch.zeros(4, 4).double()
    for row, label in zip(rows, labels, strict=True):
        residual = torch.eye(4)[label] - (own.weight @ row + own.bias).softmax(dim=0)
        residual *= min(1.0, RESIDUAL_BOUND / float(residual.norm()))
        expected += residual.outer(torch.cat([row, torch.tensor([0.5])]))
    assert_close(sum_residuals(rows, torch.eye(4)[labels], own), expected)


def test_no_pair_of_records_exceeds_the_sensitivity_of_any_classifier():
    """Long, short, broken and opposite rows, as a client makes them; certain and uncertain p."""
    for classes in (1, 2, 3, 10):
        for scale in (0.0, 0.3, 3.0, 1e3):
            features = drawn(12, 4).float()
            features = torch.cat([features, -features, 1e15 * features, 1e-3 * features])
            rows = PublicMap(bound=0.7).private_rows(features)
            rows = torch.cat([rows, PublicMap(unit=True).private_rows(features)])
            own, one_hot = classifier(classes, 4, scale), torch.eye(classes)
            parts = torch.stack(
                [
                    sum_residuals(row[None], one_hot[c : c + 1], own).flatten()
                    for row in rows
                    for c in range(min(classes, 3))
                ]
            )
            exact = "donot_use_mm_for_euclid_dist"
            moved = float(torch.cdist(parts, parts, compute_mode=exact).max())
            assert moved <= RESIDUAL_SENSITIVITY
            assert float(parts.norm(dim=1).max()) <= RESIDUAL_SENSITIVITY / 2


@pytest.mark.parametrize("classes", [2, 3])
def test_gradient_ascent_attains_the_sensitivity(classes):
    """By rows, weight and bias."""
    labels, point = torch.eye(classes), [drawn(2, 3), *classifier(classes, 3)]
    parameters, found = [tensor.requires_grad_() for tensor in point], 0.0
    optimizer = torch.optim.Adam(parameters, lr=0.1, maximize=True)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    for _ in range(250):
        rows = point[0] / point[0].norm(dim=1, keepdim=True).clamp(min=1.0)
        own = LinearClassifier(*point[1:])
        one, other = (sum_residuals(rows[i][None], labels[i][None], own) for i in range(2))
        moved = (one - other).norm()
        optimizer.zero_grad()
        moved.backward()
        optimizer.step()
        decay.step()
        found = max(found, float(moved.detach()))
    assert 0.999 * RESIDUAL_SENSITIVITY < found <= RESIDUAL_SENSITIVITY


N = 1000


def dense(own, gradient, noise, public, moments):
    """H + ridge as a matrix, entry by entry in classes."""
    x = recolor(public, moments.mean, moments.covariance)
    x = torch.cat([x, torch.full((len(x), 1), 0.5).double()], dim=1)
    p = (x[:, :-1] @ own.weight.T + own.bias).softmax(dim=1)
    hessian = sum(
        torch.kron(q.diag() - q.outer(q), row.outer(row)) for q, row in zip(p, x, strict=True)
    ) / len(x)
    gradient = (gradient - gradient.mean(dim=0)).flatten()
    variance = noise**2 + hessian.trace() / (N * len(gradient))
    signal = gradient @ gradient - 0.9 * len(gradient) * variance
    omega = max(signal, 1e-3 * gradient @ gradient) / hessian.trace()
    # the Hessian does not act on shifts of all classes: the mean is over the other eigenvalues
    mean = hessian.trace() / (max(len(own.bias) - 1, 1) * x.shape[1])
    ridge = 0.03 * mean + variance / omega
    step = torch.linalg.solve(hessian + ridge * torch.eye(len(hessian)), gradient)
    step = step.view(len(own.bias), -1)
    return LinearClassifier(own.weight + step[:, :-1], own.bias + step[:, -1] / 2)


def setting(classes, k=3):
    """A classifier, a gradient, public rows and moments."""
    root = drawn(k, k, seed=5)
    moments = Discriminant(classifier(classes, k), drawn(k, seed=6), root @ root.T + torch.eye(k))
    return moments.classifier, 0.1 * drawn(classes, k + 1, seed=7), unit(drawn(40, k)), moments


@pytest.mark.parametrize("noise", [0.0, 0.03, 10.0])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_step_is_that_of_a_dense_hessian(classes, noise):
    own, gradient, public, moments = setting(classes)
    found = newton_step(own, gradient, noise, N, public, moments)
    expected = dense(own, gradient, noise, public, moments)
    for new, same, old in zip(found, expected, own, strict=True):
        size = float((same - old).abs().max())
        assert size > (1e-3 if noise < 1 else 1e-8)
        assert_close(new - old, same - old, rtol=0.0, atol=1e-5 * size)


@pytest.mark.parametrize("k", [1, 4])
def test_recolored_rows_have_the_mean_and_covariance_asked_for(k):
    rows, root, mean = unit(drawn(50, k + 1))[:, :k], drawn(k, k, seed=2), drawn(k, seed=3)
    covariance = root @ root.T + 0.1 * torch.eye(k)
    found = recolor(rows, mean, covariance)
    assert_close(found.mean(dim=0), mean)
    assert_close(torch.cov(found.T).view(k, k), covariance)
    same = recolor(rows, rows.mean(dim=0), torch.cov(rows.T).view(k, k))
    assert_close(same, rows)


def test_a_step_without_a_gradient_or_of_a_certain_classifier_is_none():
    own, gradient, public, moments = setting(3)
    shift = gradient[:1].expand(3, -1)  # of all classes: without effect
    for none in (torch.zeros_like(gradient), shift):
        found = newton_step(own, none, 0.1, N, public, moments)
        assert_close(found, own)
    certain = LinearClassifier(1e9 * own.weight, own.bias)
    assert torch.equal(
        newton_step(certain, gradient, 0.1, N, public, moments).weight, certain.weight
    )


def test_one_class_has_no_residual_and_no_step():
    own, gradient, public, moments = setting(1)
    assert not sum_residuals(public, torch.ones(len(public), 1), own).any()
    assert torch.equal(newton_step(own, gradient, 0.1, N, public, moments).weight, own.weight)


def test_public_rows_that_do_not_vary_leave_a_finite_step():
    own, gradient, public, moments = setting(3)
    found = newton_step(own, gradient, 0.01, N, public[:1].expand(10, -1), moments)
    assert math.isfinite(float(found.weight.sum() + found.bias.sum()))
