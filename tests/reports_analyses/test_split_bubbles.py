import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection

from fedaux_pl.data import Digits, FederatedDataModule
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.reports.analyses.split_bubbles import LabelsOnly, split_bubbles
from tests.callbacks.test_figures import check_legible

BALANCED = {"clients": 20, "classes": 10, "samples_per_class": 5000, "seed": 0}


def drawn(axes, clients, classes):
    """The areas of the bubbles as a table."""
    (bubbles,) = [c for c in axes.collections if isinstance(c, PathCollection)]
    table = np.zeros((clients, classes))
    for (i, k), area in zip(bubbles.get_offsets(), bubbles.get_sizes(), strict=True):
        table[int(i), int(k)] = area
    return table


def test_the_areas_are_the_counts_of_the_split_that_fit_uses():
    alphas = [0.01, 1.0]
    figure, _ = split_bubbles(["--config", "quickstart"], alphas=alphas)
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
    labels = torch.arange(10).repeat_interleave(5000)
    shuffled = labels[torch.randperm(50_000, generator=torch.Generator().manual_seed(0))]
    tables = []
    for own in (labels, shuffled):
        data = FederatedDataModule(LabelsOnly(own, list("0123456789")), num_clients=20, alpha=0.04)
        data.setup()
        tables.append(data.class_counts())
    np.testing.assert_array_equal(*tables)
    assert (tables[0].sum(axis=1) == 2500).all()


def test_the_table_says_how_many_classes_a_client_has():
    _, table = split_bubbles(alphas=[0.01, 100], **BALANCED)
    small, large = table.rows
    assert small[0] == "0.01"
    assert float(small[1].rstrip("%")) > 85
    assert float(small[2]) < 2
    assert large[1:] == ["12%", "9.0", "10.0"]  # nearly 10 % each: 90 % take nine classes


def test_panels_fill_rows():
    figure, _ = split_bubbles(alphas=[0.01, 0.1, 1, 10], columns=3, **BALANCED)
    panels = figure.figure.axes
    titles = [axes.get_title(loc="left").partition(" = ")[2] for axes in panels]
    assert titles == ["0.01", "0.1", "1", "10"]
    assert panels[3].get_position().y1 < panels[0].get_position().y0
    check_legible(figure.figure)


@pytest.mark.parametrize(
    ("base", "options", "message"),
    [
        (None, {"alphas": [1.0]}, "without a base, the options must have clients, classes"),
        (None, {"alphas": [], **BALANCED}, "alphas must hold at least one"),
        (None, {"alphas": [1.0], **BALANCED, "classes": 0}, "must be at least 1, but are 20, 0"),
        (["--config", "quickstart"], {"alphas": [1.0], "seed": 1}, "seed would contradict"),
    ],
)
def test_mistakes(base, options, message):
    with pytest.raises(ConfigurationError, match=message):
        split_bubbles(base, **options)
