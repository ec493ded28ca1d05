import math
from types import SimpleNamespace

import pytest

pytest.importorskip("sklearn")

import torch
from sklearn.linear_model import LogisticRegression
from torch.testing import assert_close

from fedaux_pl.functional import fit_linear_head, fit_scoring_head, fit_softmax_head, head_fits
from fedaux_pl.functional.head_fits import _ScoringObjective, _SoftmaxObjective


@pytest.fixture
def newton(monkeypatch):
    """Fit by Newton steps alone, which solve for a head on a GPU."""

    def fit(*arguments, **options):
        with monkeypatch.context() as patch:
            patch.setattr(head_fits, "minimize", lambda _, x0, **__: SimpleNamespace(x=x0))
            return fit_scoring_head(*arguments, **options)

    return fit


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
def test_both_solvers_and_scikit_learn_agree(newton, regularization):
    negatives = rows(300, 12, 0.0, seed=9)
    positives = [rows(n, 12, shift, seed=n) for n, shift in ((40, 0.3), (1, 0.0), (150, -0.2))]
    for data in positives:
        weight, newton_norm = newton(data, negatives, regularization)
        fitted, norm = fit_scoring_head(data, negatives, regularization)
        assert max(norm, newton_norm) <= 1e-10
        assert (fitted - weight).norm() <= 1e-6
        assert (fitted - sklearn_fit(data, negatives, regularization)).norm() <= 1e-6


def test_the_objective_and_its_gradient_are_those_of_the_paper():
    positives, negatives = rows(20, 4, 0.4, seed=1), rows(30, 4, 0.0, seed=2)
    weight, norm = fit_scoring_head(positives, negatives, 0.05, max_iter=1, tolerance=1e-30)
    ours = _ScoringObjective(positives[None], negatives, torch.tensor(50.0), 0.05)
    expected = objective(weight, positives, negatives, 0.05)
    assert ours.value(weight[None]) == pytest.approx(expected)
    gradient = []
    for k in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[k] = 1e-6
        up = objective(weight + step, positives, negatives, 0.05)
        down = objective(weight - step, positives, negatives, 0.05)
        gradient.append((up - down) / 2e-6)
    assert norm == pytest.approx(math.hypot(*gradient), abs=1e-8)


@pytest.mark.parametrize("options", [{"max_iter": 0}, {"tolerance": 0.0}, {"tolerance": math.nan}])
def test_a_fit_that_cannot_end_is_refused(options):
    with pytest.raises(ValueError, match=r"(max_iter: got .*to be at|tolerance: got .*to be ab)"):
        fit_scoring_head(rows(9, 4, 0.4, seed=1), rows(9, 4, 0.0, seed=2), 0.05, **options)


@pytest.mark.parametrize("n", [50, 500])
def test_a_fit_ends_at_the_limit_of_rounding(newton, n):
    positives, negatives = rows(n, 6, 0.5, seed=n), rows(50, 6, 0.0, seed=2)
    weight, norm = newton(positives, negatives, 1e-3, tolerance=1e-30, max_iter=50)
    assert norm < 1e-14
    assert (weight - fit_scoring_head(positives, negatives, 1e-3)[0]).norm() < 1e-7


def test_what_is_not_finite_is_reported_at_once():
    _, norm = fit_scoring_head(torch.full((3, 4), math.nan), torch.zeros(5, 4), 0.1)
    assert math.isnan(norm)


def test_separable_data_with_hardly_any_regularization_converge(newton):
    positives = torch.eye(3, dtype=torch.float64)
    negatives = -torch.eye(3, dtype=torch.float64)
    weight, norm = newton(positives, negatives, 1e-8)
    assert norm <= 1e-10
    assert torch.isfinite(weight).all()
    assert weight.min() > 1


def problem(n=60, d=5, classes=4):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(n, d, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (n,), generator=generator)
    rows[torch.arange(n), labels] += 1
    return rows / rows.norm(dim=1).max(), labels


@pytest.mark.parametrize("regularization", [1.0, 0.01, 1e-4])
def test_the_head_is_that_of_scikit_learn(regularization):
    rows, labels = problem()
    one_hot = torch.eye(4)[labels]
    weight, gradient_norm = fit_softmax_head(rows, one_hot, regularization, tolerance=1e-10)
    theirs = LogisticRegression(
        C=1 / (regularization * len(rows)), fit_intercept=False, tol=1e-10, max_iter=10_000
    ).fit(rows.numpy(), labels.numpy())
    assert gradient_norm <= 1e-10
    assert_close(weight, torch.from_numpy(theirs.coef_), atol=1e-5, rtol=1e-5)


def test_a_class_without_records_has_a_row_too():
    rows, _ = problem()
    weight, gradient_norm = fit_softmax_head(rows, torch.eye(3)[torch.zeros(60).long()], 0.1)
    assert weight.shape == (3, 5)
    assert gradient_norm <= 1e-8
    assert_close(weight[1], weight[2])


def test_the_derivatives_are_those_of_autograd():
    rows, labels = problem()
    objective = _SoftmaxObjective(rows, torch.eye(4).double()[labels], 0.1)
    generator = torch.Generator().manual_seed(1)
    weight, vector = torch.randn(2, 1, 20, generator=generator, dtype=torch.float64)

    def value(w):
        losses = torch.nn.functional.cross_entropy(rows @ w.view(4, 5).T, labels)
        return losses + 0.05 * w.square().sum()

    assert objective.value(weight) == pytest.approx(float(value(weight)))
    gradient = torch.func.grad(value)(weight)
    assert_close(objective.gradient(weight), gradient)
    product = torch.func.jvp(torch.func.grad(value), (weight,), (vector,))[1]
    found = objective.hessian(weight)(vector)
    assert_close(found, product)


def test_the_head_of_a_linear_teacher_is_found():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(500, 6, generator=generator) @ torch.randn(6, 6, generator=generator) + 3
    weight = torch.randn(4, 6, generator=generator).double() / 5
    labels = (features.double() @ weight.T + torch.arange(4)).softmax(dim=1)
    found, bias = fit_linear_head(features, labels)
    answers = (features.double() @ found.T + bias).softmax(dim=1)
    assert_close(answers, labels, rtol=0, atol=0.01)


def test_probabilities_of_zero_do_not_decide_the_fit():
    features = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.eye(3)[features.argmax(dim=1)]
    weight, bias = fit_linear_head(features, labels)
    assert weight.isfinite().all()
    answers = (features.double() @ weight.T + bias).argmax(dim=1)
    assert (answers == features.argmax(dim=1)).float().mean() > 0.9


def test_constant_features_give_a_constant_head():
    weight, bias = fit_linear_head(torch.ones(5, 2), torch.tensor([[0.25, 0.75]]).repeat(5, 1))
    assert float(weight.abs().max()) < 1e-6
    assert_close(bias.softmax(dim=0), torch.tensor([0.25, 0.75]).double())
