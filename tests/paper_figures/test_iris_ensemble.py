import pytest

pytest.importorskip("sklearn")

import numpy as np
import sklearn.datasets
import sklearn.decomposition
import sklearn.linear_model

from paper.iris_ensemble import (
    ToyEnsemble,
    fit_linear,
    iris_ensemble,
    load_iris,
    principal_axes,
)
from tests.callbacks.test_figures import check_legible


def test_the_asset_has_the_values_of_fishers_paper():
    measurements, labels, species = load_iris()
    reference = sklearn.datasets.load_iris()
    np.testing.assert_array_equal(measurements, reference.data)
    np.testing.assert_array_equal(labels, reference.target)
    assert species == reference.target_names.tolist()
    # the two flowers that are wrong in UCI's file
    assert measurements[[34, 37]].tolist() == [[4.9, 3.1, 1.5, 0.2], [4.9, 3.6, 1.4, 0.1]]


def test_principal_axes():
    measurements, *_ = load_iris()
    reference = sklearn.decomposition.PCA(2).fit_transform(measurements)
    ours = principal_axes(measurements)
    np.testing.assert_allclose(np.abs(ours), np.abs(reference), atol=1e-10)
    np.testing.assert_allclose(principal_axes(-measurements), -ours, atol=1e-10)  # fixed signs


def test_softmax_regression_is_that_of_scikit_learn():
    measurements, labels, _ = load_iris()
    points, strength = principal_axes(measurements), 0.05
    rows = np.column_stack([points, np.ones(len(points))])
    reference = sklearn.linear_model.LogisticRegression(
        C=1 / (strength * len(rows)), fit_intercept=False, tol=1e-10, max_iter=1000
    ).fit(rows, labels)
    ours = fit_linear(points, labels, 3, strength)
    np.testing.assert_allclose(ours, reference.coef_, atol=1e-3)


def test_the_ensembles_are_equations_2_and_3():
    """By a loop over points and clients; far from all data the weights become equal."""
    measurements, labels, _ = load_iris()
    points = principal_axes(measurements)
    ensemble = ToyEnsemble(points, labels, np.split(np.arange(150), [50, 100]), 0.01)
    some = np.concatenate([points[::15], [[40.0, -40.0]]])
    for weighted in (False, True):
        found = ensemble.predict(some, weighted)
        for x, predicted in zip(some, found, strict=True):
            total, sum_of_weights = np.zeros(3), 0.0
            for weight, density in zip(ensemble.weights, ensemble.densities, strict=True):
                s = density(x)[0] + 1e-8 if weighted else 1.0
                total, sum_of_weights = total + s * (weight @ [*x, 1.0]), sum_of_weights + s
            assert predicted == np.argmax(total / sum_of_weights)


@pytest.fixture(scope="module")
def item():
    return iris_ensemble()


def test_the_weighted_ensemble_is_better(item):
    """50 flowers of 150 are wrong in the mean, as no flower is a virginica; 3 in the other."""
    titles = [axes.get_title(loc="left") for axes in item.figure.axes]
    assert titles == ["Client 1", "Client 2", "Client 3", "Mean: 66.7%", "Weighted mean: 98.0%"]
    held = [axes.get_xlabel() for axes in item.figure.axes]
    assert held[0] == "50 virginica"
    assert held[3:] == ["50 of 150 wrong", "3 of 150 wrong"]
    rings = [axes.collections[-1].get_offsets() for axes in item.figure.axes[3:]]
    assert [len(points) for points in rings] == [50, 3]
    assert "seeds 0 to 9 the means are 83.5% and 96.5%" in item.caption
    check_legible(item.figure)


def test_opacity_is_the_certainty(item):
    image = item.figure.axes[0].images[0].get_array()
    assert image[..., 3].max() == pytest.approx(0.75)
    assert image[0, 0, 3] < 0.01  # far from the client's flowers
