import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from paper.gaussian_clients import (
    client_distribution,
    features,
    gaussian_clients,
    relative_scores,
    true_weights,
)
from tests.callbacks.test_figures import check_legible


def test_true_weights_are_those_of_the_densities():
    points = torch.tensor([[0.0, 2.0], [1.0, -1.0], [0.0, 0.0]], dtype=torch.float64)
    densities = np.array([client_distribution(i).pdf(points.numpy()) for i in range(3)])
    np.testing.assert_allclose(true_weights(points), densities / densities.sum(axis=0))
    np.testing.assert_allclose(true_weights(points)[:, 2], 1 / 3)  # the center
    assert true_weights(points)[:, 0].argmax() == 0  # the mean of the first client


def test_scores_are_those_of_a_logistic_regression_against_the_negatives():
    rng = np.random.default_rng(0)
    clients = [torch.from_numpy(rng.normal(m, 1.0, (30, 2))) for m in (-1.0, 0.5, 2.0)]
    negatives = torch.from_numpy(rng.normal(0.0, 3.0, (50, 2)))
    points = torch.from_numpy(rng.normal(0.0, 1.0, (7, 2)))
    bound = negatives.norm(dim=1).max().item()

    def rows(x):  # clipped to the largest norm of a negative
        x = x.numpy()
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        return x * np.minimum(1, bound / norms) / bound

    scores = []
    for own in clients:
        signed = np.concatenate([rows(own), -rows(negatives)])
        weight = minimize(
            lambda w, a=signed: np.logaddexp(0, -a @ w).mean() + 0.005 * w @ w, np.zeros(2)
        ).x
        scores.append(1 / (1 + np.exp(-rows(points) @ weight)))
    expected = np.array(scores) / np.sum(scores, axis=0)
    found = relative_scores(clients, negatives, points, regularization=0.01)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_features_have_a_constant():
    points = torch.zeros(4, 2)
    assert features(points).shape == (4, 3)
    assert features(points)[:, 2].unique().tolist() == [3.0]
    assert features(points, constant=False).shape == (4, 2)


def test_scores_approximate_the_densities():
    """Much better than equal weights do at small lambda, hardly at the lambda of the paper."""
    figure, table = gaussian_clients(samples=300, negatives=1000, regularization=1e-3, seed=0)
    by_lambda = {row[0]: [float(value) for value in row[1:]] for row in table.rows}
    assert by_lambda["0.001"][0] == pytest.approx(0.051, abs=0.002)
    assert by_lambda["0.1"][0] == pytest.approx(0.385, abs=0.005)
    assert all(with_one < without for with_one, without in by_lambda.values())
    assert "differ by 0.051 on average; equal weights of 1/3 would by 0.423" in figure.caption
    maps = [axes.images[0].get_array() for axes in figure.figure.axes if axes.images]
    np.testing.assert_allclose(sum(maps[:3]), 1)
    np.testing.assert_allclose(sum(maps[3:6]), 1)
    check_legible(figure.figure)


def test_the_ellipse_holds_90_percent():
    distribution = client_distribution(1)
    samples = distribution.rvs(20_000, random_state=np.random.default_rng(0))
    centered = samples - distribution.mean
    inverse = np.linalg.inv(distribution.cov)
    inside = np.einsum("ni,ij,nj->n", centered, inverse, centered) < -2 * math.log(0.1)
    assert inside.mean() == pytest.approx(0.9, abs=0.01)
