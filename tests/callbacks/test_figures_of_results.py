"""Figures of who took part, of views, texts and the confusion matrix."""

import numpy as np
import pytest
import torch

from fedaux_pl.callbacks.figures.counts import confusion_figure, participation_figure
from fedaux_pl.callbacks.figures.samples import ScoredText, top_texts_figure, views_figure
from tests.callbacks.test_figures import check_legible, label_texts, names


def clients(count):
    return [f"client {i}" for i in range(count)]


def cell_texts(figure):
    """The texts in the first axes, by their place."""
    return {text.get_position(): text.get_text() for text in figure.axes[0].texts}


# -------------------------------------------------------------------------------- participation


def test_rounds_go_right_and_clients_down():
    took_part = np.array([[1, 0, 1], [1, 0, 0]])
    axes = participation_figure(took_part, clients(3)).axes[0]
    image = axes.images[0]
    np.testing.assert_array_equal(image.get_array(), took_part.T)
    assert image.get_extent() == [0.5, 2.5, 2.5, -0.5]  # rounds count from 1, clients from 0
    assert label_texts(axes.yaxis) == clients(3)
    assert [text.get_text() for text in axes.texts] == ["2", "0", "1"]


def test_of_many_rounds_the_last_are_shown_and_all_are_counted():
    took_part = np.ones((300, 120), dtype=int)
    figure = participation_figure(took_part, clients(120))
    axes = figure.axes[0]
    assert axes.images[0].get_array().shape == (100, 250)
    assert axes.images[0].get_extent()[:2] == [50.5, 300.5]
    assert {text.get_text() for text in axes.texts} == {"300"}
    assert "100 of 120 clients" in figure._suptitle.get_text()


@pytest.mark.parametrize(("rounds", "count"), [(1, 1), (400, 150)])
def test_participation_is_legible(rounds, count):
    took_part = np.random.default_rng(0).integers(0, 2, (rounds, count))
    check_legible(participation_figure(took_part, clients(count)))


# ------------------------------------------------------------------------------------ confusion


def test_cells_have_counts_and_shares_of_their_row():
    counts = torch.tensor([[3, 1, 0], [0, 8, 0], [0, 0, 0]])
    figure = confusion_figure(counts, ["a", "b", "c"])
    axes = figure.axes[0]
    # x is the predicted class, y the true one
    assert cell_texts(figure) == {(0, 0): "3\n75 %", (1, 0): "1\n25 %", (1, 1): "8\n100 %"}
    np.testing.assert_allclose(axes.images[0].get_array()[0], [0.75, 0.25, 0])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "true class")
    assert figure._suptitle.get_text() == "Confusion matrix: 91.7% correct"
    assert "validation data" in confusion_figure(counts, "abc", "validation data").texts[-1]._text


def test_cells_of_many_classes_have_no_numbers():
    assert not cell_texts(confusion_figure(np.eye(21, dtype=int), names(21)))
    assert len(cell_texts(confusion_figure(np.eye(20, dtype=int), names(20)))) == 20


@pytest.mark.parametrize("size", [2, 60])
def test_confusion_is_legible(size):
    counts = np.random.default_rng(0).integers(0, 1000, (size, size))
    counts[2:-1] = 0  # few texts: to find their boxes takes long
    check_legible(confusion_figure(counts, names(size)))


# ---------------------------------------------------------------------------------------- views


@pytest.mark.parametrize("channels", [1, 3])
def test_views_stand_below_their_images(channels):
    images = torch.randint(256, (4, channels, 6, 5), dtype=torch.uint8)
    views = torch.rand(8, channels, 6, 5)
    figure = views_figure(images, views)
    check_legible(figure)
    drawn = figure.axes[0].images
    lefts = [image.get_extent()[0] for image in drawn]
    assert lefts[:4] == lefts[4:8] == lefts[8:]
    rows = torch.cat([images / 255, views])
    for image, expected in zip(drawn, rows, strict=True):
        pixels = expected[0] if channels == 1 else expected.permute(1, 2, 0)
        np.testing.assert_allclose(image.get_array(), pixels, atol=1e-6)


# ---------------------------------------------------------------------------------------- texts


def test_texts_stand_below_their_client():
    rows = [
        ScoredText("client 0 (food)", 0.9, "a sweet $x$ fruit"),
        ScoredText("client 0 (food)", 0.8, "bread " * 40),
        ScoredText("client 3 (plant)", 12.5, "a tree"),
    ]
    figure = top_texts_figure(rows, 2400)
    check_legible(figure)
    ordered = sorted(figure.axes[0].texts, key=lambda text: text.get_position()[::-1])
    texts = [text.get_text() for text in ordered]
    assert texts[:3] == ["client 0 (food)", "0.900", "a sweet $x$ fruit"]
    assert texts[4].endswith("…")
    assert texts[5:] == ["client 3 (plant)", "12.500", "a tree"]
    assert "2,400 auxiliary texts" in figure.texts[-1].get_text()
