import pytest
import torch
from sklearn.linear_model import LogisticRegression

from fedaux_pl.functional import fit_softmax_head
from fedaux_pl.functional.softmax_head_fit import _Objective


def problem(n=60, d=5, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
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
    torch.testing.assert_close(weight, torch.from_numpy(theirs.coef_), atol=1e-5, rtol=1e-5)


def test_a_class_without_records_has_a_row_too():
    rows, _ = problem()
    weight, gradient_norm = fit_softmax_head(rows, torch.eye(3)[torch.zeros(60).long()], 0.1)
    assert weight.shape == (3, 5)
    assert gradient_norm <= 1e-8
    torch.testing.assert_close(weight[1], weight[2])


def test_the_derivatives_are_those_of_autograd():
    rows, labels = problem()
    objective = _Objective(rows, torch.eye(4).double()[labels], 0.1)
    generator = torch.Generator().manual_seed(1)
    weight, vector = torch.randn(2, 1, 20, generator=generator, dtype=torch.float64)

    def value(w):
        losses = torch.nn.functional.cross_entropy(rows @ w.view(4, 5).T, labels)
        return losses + 0.05 * w.square().sum()

    assert objective.value(weight) == pytest.approx(float(value(weight)))
    gradient = torch.func.grad(value)(weight)
    torch.testing.assert_close(objective.gradient(weight), gradient)
    product = torch.func.jvp(torch.func.grad(value), (weight,), (vector,))[1]
    found = objective.hessian_product(objective.curvature(weight), vector)
    torch.testing.assert_close(found, product)


def test_the_gradient_norm_is_returned_when_the_solver_stops_early():
    rows, labels = problem()
    weight, gradient_norm = fit_softmax_head(rows, torch.eye(4)[labels], 1e-6, max_iter=1)
    objective = _Objective(rows, torch.eye(4).double()[labels], 1e-6)
    assert gradient_norm == pytest.approx(float(objective.gradient(weight.view(1, -1)).norm()))
    assert gradient_norm > 1e-8
