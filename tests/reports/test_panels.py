import pytest

from fedaux_pl.reports.panels import create_panels, label_x, series_style, x_positions

NAMES = {"model": "model", "alpha": "alpha"}


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


def test_a_product_of_labels_is_a_grid():
    places = [{"model": m, "alpha": a} for m in ("A", "B") for a in ("1", "2", "3")]
    _, panels = create_panels(places, NAMES, (2, 2))
    assert panels[0].axes.get_subplotspec().get_gridspec().get_geometry() == (2, 3)
    assert [panel.axes.get_title() for panel in panels] == [
        *("alpha = 1", "alpha = 2", "alpha = 3", "", "", "")
    ]
    assert [panel.row for panel in panels] == ["A"] * 3 + ["B"] * 3
    assert [panel.is_bottom for panel in panels] == [False] * 3 + [True] * 3


def test_other_panels_fill_rows():
    places = [{"model": m, "alpha": "1"} for m in "ABC"] + [
        {"model": m, "alpha": "2"} for m in "AB"
    ]
    figure, panels = create_panels(places, NAMES, (2, 2))
    assert panels[0].axes.get_subplotspec().get_gridspec().get_geometry() == (2, 3)
    assert panels[3].axes.get_title() == "A, alpha = 2"
    assert [axes.get_visible() for axes in figure.axes] == [True] * 5 + [False]
    assert panels[2].is_bottom  # nothing is drawn below it
    assert panels[2].axes.xaxis.get_tick_params()["labelbottom"]


def test_long_labels_are_rotated():
    _, panels = create_panels([{}], NAMES, (2, 2))
    for labels, rotation in (
        (["0.01", "1"], 0),
        (["a very long label", "another long one", "and a third"], 35),
    ):
        label_x(panels, *x_positions(labels))
        assert {text.get_rotation() for text in panels[0].axes.get_xticklabels()} == {rotation}
        assert [text.get_text() for text in panels[0].axes.get_xticklabels()] == labels
