"""The three kinds of figures, by what they draw."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from fedaux_pl.callbacks.figures.style import ORANGE
from fedaux_pl.reports.figures import (
    create_panels,
    label_x,
    make_figures,
    series_style,
    x_positions,
)
from fedaux_pl.sweeps.cells import CellState
from tests.reports.results import group, sweep

AXES = {"method": ["A", "ref", "B_$x$"], "alpha": ["0.01", "1", "100"], "model": ["m", "n"]}
LINES = {"name": "f", "kind": "lines", "x": "alpha", "series": "method", "panels": "model"}
CURVES = {"name": "f", "kind": "curves", "series": "method", "panels": "model"}


def draw(layout, groups, axes=AXES, published=None):
    [item] = make_figures(sweep(axes, figures=[layout], published=published), groups)
    item.figure.draw_without_rendering()
    return item


def lines_of(axes):
    return {line.get_label(): line for line in axes.lines}


def texts_of(axes):
    return [text.get_text() for text in axes.texts]


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_lines():
    groups = [
        group("method=A alpha=0.01 model=m", 10.0, 14.0),
        group("method=A alpha=1 model=m", None, published="55"),
        group("method=A alpha=100 model=m", 30.0),
        group("method=B_$x$ alpha=100 model=m", 50.0),
        group("method=B_$x$ alpha=100 model=n", None),
        group("method=ref model=m", 90.0),
        group("method=ref model=n", 80.0),
    ]
    item = draw({**LINES, "reference": "ref", "caption": "About."}, groups, published={})
    left, right = item.figure.axes
    assert (left.get_title(), right.get_title()) == ("m", "n")
    assert left.get_xscale() == "log"
    assert [text.get_text() for text in left.get_xticklabels()] == ["0.01", "1", "100"]
    lines = lines_of(left)
    assert lines["A"].get_xdata().tolist() == [0.01, 1, 100]
    np.testing.assert_array_equal(lines["A"].get_ydata(), [12, np.nan, 30])  # a gap
    assert lines["ref"].get_ydata() == [90, 90]
    assert (lines["ref"].get_color(), lines_of(right)["ref"].get_ydata()) == ("black", [80, 80])
    [hollow] = [
        x for x in left.lines if x.get_markerfacecolor() == "none" and x.get_xdata()[0] == 1
    ]
    assert (hollow.get_ydata()[0], hollow.get_linestyle()) == (55, "None")
    [bar] = left.containers
    low, high = bar.lines[2][0].get_segments()[0]
    assert (high[1] - low[1]) / 2 == pytest.approx(8**0.5)  # the standard deviation
    assert legend_of(item.figure) == ["A", "ref", "B_$x$", "published"]
    assert texts_of(right) == ["not run"]  # but for its reference
    assert texts_of(left) == []
    assert (left.get_ylabel(), right.get_ylabel(), left.get_xlabel()) == (
        *("accuracy in %", "", "alpha"),
    )
    assert item.caption.startswith("About. Means with")
    assert item.caption.endswith("published: Tab. 1.")


def test_the_legend_covers_no_panel():
    groups = [group(f"method={m} alpha={a} model=m", 5.0) for m in "AB" for a in (1, 2)]
    axes = {"method": "AB", "alpha": "12", "model": ["m"]}
    figure = draw(LINES, groups, axes).figure
    legend = figure.legends[0].get_window_extent()
    assert legend.y1 <= figure.axes[0].get_tightbbox().y0
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.x1


def test_curves():
    place = "method=A model=m"
    first, second = group(place, 20.0, curve=[10, 20, 30]), group(place, 40.0, curve=[20, 40])
    both = type(first)(first.coordinates, [*first.results, *second.results])
    running = group("method=B_$x$ model=m", None, curve=[5], state=CellState.RUNNING)
    groups = [both, running, group("method=ref model=m", 90.0), group("method=A model=n")]
    left, right = draw({**CURVES, "reference": "ref"}, groups).figure.axes
    lines = lines_of(left)
    assert lines["A"].get_xdata().tolist() == [1, 2]  # the rounds that both seeds have
    assert lines["A"].get_ydata().tolist() == [15, 30]
    assert lines["B_$x$"].get_ydata() == [5]
    assert lines["ref"].get_ydata() == [90, 90]
    [band] = left.collections
    bounds = band.get_datalim(left.transData).get_points()[:, 1]  # rounds 1 and 2
    assert bounds == pytest.approx([15 - 50**0.5, 30 + 200**0.5])  # standard deviations
    assert texts_of(right) == ["not run"]
    assert left.get_ylabel() == "accuracy in %"


def test_unfinished_curves_do_not_mix_with_finished_ones():
    done = group("method=A model=m", 20.0, curve=[10, 20, 30])
    rest = group("method=A model=m", None, curve=[50], state=CellState.UNFINISHED)
    both = type(done)(done.coordinates, [*done.results, *rest.results])
    [axes] = draw(CURVES, [both]).figure.axes
    assert lines_of(axes)["A"].get_ydata().tolist() == [10, 20, 30]
    assert not axes.collections


def test_validation_curves_say_so():
    [axes] = draw(
        CURVES, [group("method=A model=m", 5.0, curve=[1], is_validated=True)]
    ).figure.axes
    assert axes.get_ylabel() == "validation accuracy in %"


def test_heatmap():
    axes = {"lr": ["1", "2"], "mu": ["-", "3", "4"], "method": ["A", "B", "C"]}
    groups = [
        group("lr=1 mu=3 method=A", 10.0),
        group("lr=2 mu=3 method=A", 20.04),
        group("lr=1 mu=4 method=A", 20.0),
        group("lr=2 mu=4 method=A", None),
        group("lr=1 mu=- method=B", 40.0),
        group("lr=1 mu=3 method=C", None),
    ]
    layout = {"name": "f", "kind": "heatmap", "x": "lr", "y": "mu", "panels": "method"}
    first, second, third, bar = draw(layout, groups, axes).figure.axes
    assert sorted(texts_of(first)) == ["10.0", "20.0", "20.0", "\N{EN DASH}"]
    image = first.images[0].get_array()
    assert image.mask.tolist() == [[False, False], [False, True]]
    assert image[0].tolist() == [10, 20.04]
    frames = [p for p in first.patches if isinstance(p, Rectangle)]
    assert len(frames) == 2  # equal as they are written
    assert {to_hex(frame.get_edgecolor()) for frame in frames} == {ORANGE.lower()}
    assert [text.get_text() for text in second.get_yticklabels()] == ["-"]
    assert texts_of(third) == ["not run"]
    assert {axes.images[0].norm.vmin for axes in (first, second)} == {10}  # one scale
    assert {axes.images[0].norm.vmax for axes in (first, second)} == {40}
    assert first.get_ylim() == (1.5, -0.5)
    assert second.get_ylim() == (1.0, -1.0)  # cells of the same height
    assert bar.get_ylabel() == "accuracy in %"


@pytest.mark.parametrize("layout", [LINES, CURVES, {**LINES, "kind": "heatmap", "y": "method"}])
def test_nothing_was_run(layout):
    groups = [group(f"method=A alpha=1 model={m}", None) for m in "mn"]
    figure = draw(layout, groups).figure
    assert [texts_of(axes) for axes in figure.axes] == [["not run"]] * 2


def test_published_values_alone_are_drawn():
    groups = [group("method=A alpha=1 model=m", None, published="55")]
    [axes] = draw(LINES, groups, published={}).figure.axes
    assert texts_of(axes) == []


def test_nine_series_differ_in_color_marker_and_a_print_in_gray():
    styles = [series_style(i) for i in range(9)]
    assert len({style["color"] for style in styles}) == 9
    assert len({(style["marker"], str(style["linestyle"])) for style in styles}) == 9
    assert "#000000" not in {style["color"] for style in styles}


@pytest.mark.parametrize(
    ("labels", "places", "is_log"),
    [
        (["1", "2", "10"], [1, 2, 10], False),  # a decade, not more
        (["100", "0.01"], [100, 0.01], True),
        (["-1", "100"], [-1, 100], False),
        (["0", "1e-3", "1e-2", "0.1"], [1e-4, 1e-3, 1e-2, 0.1], True),
        (["1", "3", "off"], [1, 3, 5], False),
        (["0.1", "10", "no noise"], [0.1, 10, 1000], True),
        (["STL-10", "SVHN", "1"], [0, 1, 2], False),
        (["7"], [0], False),
    ],
)
def test_where_labels_stand(labels, places, is_log):
    found, scale = x_positions(labels)
    assert list(found) == labels
    assert list(found.values()) == pytest.approx(places)
    assert scale is is_log


def panels_of(places):
    figure, panels = create_panels(places, {"model": "model", "alpha": "alpha"}, (2, 2), "x", "y")
    return figure, [axes for _, axes in panels]


def test_a_product_of_labels_is_a_grid():
    places = [{"model": m, "alpha": a} for m in ("A", "B") for a in ("1", "2", "3")]
    _, panels = panels_of(places)
    assert panels[0].get_gridspec().get_geometry() == (2, 3)
    assert [axes.get_title() for axes in panels[2:4]] == ["A\nalpha = 3", "B\nalpha = 1"]
    assert [axes.get_ylabel() for axes in panels] == ["y", "", "", "y", "", ""]
    assert [axes.get_xlabel() for axes in panels] == [""] * 3 + ["x"] * 3


def test_other_panels_fill_rows():
    places = [{"model": m, "alpha": "1"} for m in "ABC"] + [
        {"model": m, "alpha": "2"} for m in "AB"
    ]
    figure, panels = panels_of(places)
    assert panels[0].get_gridspec().get_geometry() == (2, 3)
    assert panels[3].get_title() == "A\nalpha = 2"
    assert [axes.get_visible() for axes in figure.axes] == [True] * 5 + [False]
    assert panels[2].get_xlabel() == "x"  # nothing is drawn below it
    assert panels[2].xaxis.get_tick_params()["labelbottom"]


def test_labels_that_would_overlap_are_rotated():
    _, [axes] = panels_of([{}])
    for labels, rotation in (
        (["0.01", "1"], 0),
        (["0.001", "0.1", "1"], 0),
        (["0.001", "0.002", "1"], 35),  # neighbors on a logarithmic scale
        (["a very long label", "another long one", "and a third"], 35),
    ):
        label_x([({}, axes)], *x_positions(labels))
        assert {text.get_rotation() for text in axes.get_xticklabels()} == {rotation}
        assert [text.get_text() for text in axes.get_xticklabels()] == labels
