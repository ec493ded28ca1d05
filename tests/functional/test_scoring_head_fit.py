import math

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from fedaux_pl.functional import convex, fit_scoring_head
from fedaux_pl.functional.scoring_head_fit import _Objective


def newton(positives, negatives, regularization, max_iter=100, tolerance=1e-10):
    """Newton steps alone, which solve for a head on a GPU."""
    objective = _Objective.create(positives, negatives, regularization)
    start = torch.zeros(1, negatives.shape[1], dtype=torch.float64)
    weight, norm = convex.newton(objective, start, max_iter, tolerance)
    return weight[0], norm


def rows(n, d, shift, seed):
    """Features like those of a ReLU network: non-negative, norm at most 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, d, generator=generator, dtype=torch.float64) + shift
    return x / x.norm(dim=1).max()


def objective(weight, positives, negatives, regularization):
    """J, term by term."""
    total = 0.0
    for sign, data in ((1, positives), (-1, negatives)):
        for row in data.tolist():
            z = sign * sum(a * b for a, b in zip(weight.tolist(), row, strict=True))
            total += math.log1p(math.exp(-z))
    n = len(positives) + len(negatives)
    return total / n + regularization / 2 * sum(a * a for a in weight.tolist())


def sklearn_fit(positives, negatives, regularization):
    n = len(positives) + len(negatives)
    model = LogisticRegression(
        C=1 / (regularization * n),
        fit_intercept=False,
        solver="newton-cholesky",
        tol=1e-12,
        max_iter=1000,
    )
    data = torch.cat([positives, negatives]).numpy()
    model.fit(data, [1] * len(positives) + [0] * len(negatives))
    return torch.from_numpy(model.coef_[0])


@pytest.mark.parametrize("regularization", [1.0, 0.1, 1e-2, 1e-4])
def test_both_solvers_and_scikit_learn_agree(regularization):
    negatives = rows(300, 12, 0.0, seed=9)
    positives = [rows(n, 12, shift, seed=n) for n, shift in ((40, 0.3), (1, 0.0), (150, -0.2))]
    for data in positives:
        weight, newton_norm = newton(data, negatives, regularization)
        fitted, norm = fit_scoring_head(data, negatives, regularization)
        assert max(norm, newton_norm) <= 1e-10
        assert (fitted - weight).norm() <= 1e-6
        assert (fitted - sklearn_fit(data, negatives, regularization)).norm() <= 1e-6


def test_it_minimizes_the_equation_of_the_paper():
    positives, negatives = rows(20, 4, 0.4, seed=1), rows(30, 4, 0.0, seed=2)
    weight, _ = fit_scoring_head(positives, negatives, 0.05)
    best = objective(weight, positives, negatives, 0.05)
    generator = torch.Generator().manual_seed(0)
    for size in (1e-4, 1e-2, 1.0):
        for _ in range(20):
            step = torch.randn(4, generator=generator, dtype=torch.float64)
            other = weight + size * step / step.norm()
            # strong convexity: J(w + s) >= J(w) + lambda/2 |s|^2
            assert objective(other, positives, negatives, 0.05) >= best + 0.05 / 2 * size**2 - 1e-12


def test_the_gradient_norm_is_that_of_the_paper():
    positives, negatives = rows(20, 4, 0.4, seed=1), rows(30, 4, 0.0, seed=2)
    weight, norm = fit_scoring_head(positives, negatives, 0.05, max_iter=1, tolerance=1e-30)
    gradient = []
    for k in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[k] = 1e-6
        up = objective(weight + step, positives, negatives, 0.05)
        down = objective(weight - step, positives, negatives, 0.05)
        gradient.append((up - down) / 2e-6)
    assert norm == pytest.approx(math.hypot(*gradient), abs=1e-8)


def test_positives_score_higher():
    positives, negatives = rows(50, 6, 0.5, seed=1), rows(50, 6, 0.0, seed=2)
    weight, _ = fit_scoring_head(positives, negatives, 1e-3)
    assert (positives @ weight).mean() > (negatives @ weight).mean()


def test_too_few_iterations_are_reported_not_hidden():
    positives, negatives = rows(50, 6, 0.5, seed=1), rows(50, 6, 0.0, seed=2)
    _, norm = newton(positives, negatives, 1e-4, max_iter=1)
    assert norm > 1e-10


@pytest.mark.parametrize("n", [50, 500])
def test_a_fit_ends_at_the_limit_of_rounding(n):
    positives, negatives = rows(n, 6, 0.5, seed=n), rows(50, 6, 0.0, seed=2)
    weight, norm = newton(positives, negatives, 1e-3, tolerance=1e-30, max_iter=50)
    assert norm < 1e-14
    assert (weight - fit_scoring_head(positives, negatives, 1e-3)[0]).norm() < 1e-7


def test_what_is_not_finite_is_reported_at_once():
    _, norm = fit_scoring_head(torch.full((3, 4), math.nan), torch.zeros(5, 4), 0.1)
    assert math.isnan(norm)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"max_iter": 0}, "max_iter must be at least 1"),
        ({"tolerance": 0.0}, "tolerance must be positive"),
    ],
)
def test_fit_refuses(option, message):
    with pytest.raises(ValueError, match=message):
        fit_scoring_head(torch.ones(3, 4), torch.zeros(5, 4), 0.1, **option)


def test_separable_data_with_hardly_any_regularization_converge():
    positives = torch.eye(3, dtype=torch.float64)
    negatives = -torch.eye(3, dtype=torch.float64)
    weight, norm = newton(positives, negatives, 1e-8)
    assert norm <= 1e-10
    assert torch.isfinite(weight).all()
    assert weight.min() > 1


def test_float32_features_are_fitted_in_float64():
    positives, negatives = rows(20, 4, 0.4, seed=1).float(), rows(30, 4, 0.0, seed=2).float()
    weight, norm = fit_scoring_head(positives, negatives, 0.1)
    assert weight.dtype == torch.float64
    assert norm <= 1e-10
