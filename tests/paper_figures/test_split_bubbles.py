import numpy as np
from matplotlib.collections import PathCollection

from fedaux_pl.data import Digits, FederatedDataModule
from paper.split_bubbles import split_bubbles, split_counts
from tests.callbacks.test_figures import check_legible

CIFAR10 = np.arange(10).repeat(5000)


def drawn(axes, clients, classes):
    """The areas of the bubbles as a table."""
    (bubbles,) = [c for c in axes.collections if isinstance(c, PathCollection)]
    table = np.zeros((clients, classes))
    for (i, k), area in zip(bubbles.get_offsets(), bubbles.get_sizes(), strict=True):
        table[int(i), int(k)] = area
    return table


def test_the_areas_are_the_counts_of_the_split_that_fit_uses():
    alphas = [0.01, 1.0, 100.0]
    figure, _ = split_bubbles(Digits().train().targets.numpy(), alphas)
    per_sample = set()
    for axes, alpha in zip(figure.figure.axes, alphas, strict=True):
        data = FederatedDataModule(Digits(), Digits(), num_clients=20, alpha=alpha, seed=0)
        data.setup()
        counts = data.class_counts()
        areas = drawn(axes, 20, 10)
        assert ((areas > 0) == (counts > 0)).all()
        ratios = areas[counts > 0] / counts[counts > 0]
        np.testing.assert_allclose(ratios, ratios[0])
        per_sample.add(round(float(ratios[0]), 9))
    assert len(per_sample) == 1  # one scale for all panels
    check_legible(figure.figure)


def test_a_split_depends_on_the_sizes_of_classes_alone():
    """So the labels of CIFAR-10, in any order, give the figure of balanced labels."""
    shuffled = np.random.default_rng(0).permutation(CIFAR10)
    table = split_counts(CIFAR10, alpha=0.04)
    np.testing.assert_array_equal(table, split_counts(shuffled, alpha=0.04))
    assert (table.sum(axis=1) == 2500).all()


def test_the_table_says_how_many_classes_a_client_has():
    figure, table = split_bubbles(CIFAR10, [0.01, 1, 100])
    assert table.rows[0] == ["0.01", "92%", "1.3", "2.5"]
    assert table.rows[2][1:] == ["12%", "9.0", "10.0"]  # nearly 10 % each: 90 % take nine classes
    titles = [axes.get_title(loc="left").partition(" = ")[2] for axes in figure.figure.axes]
    assert titles == ["0.01", "1", "100"]
    check_legible(figure.figure)
