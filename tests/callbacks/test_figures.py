import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.text import Text

from fedaux_pl.callbacks import figures
from fedaux_pl.callbacks.figures.client_weights import certainty_figure, weight_by_class_figure
from fedaux_pl.callbacks.figures.counts import client_lines_figure, partition_figure
from fedaux_pl.callbacks.figures.samples import top_images_figure

CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def names(n):
    return CIFAR10 if n == 10 else [f"class number {i}" for i in range(n)]


def random_counts(clients, classes, seed=0):
    """About a third of the cells are empty."""
    rng = np.random.default_rng(seed)
    return rng.integers(1, 500, (clients, classes)) * (rng.random((clients, classes)) < 0.65)


def random_scores(clients, samples, seed=0):
    return 1 / (1 + np.exp(-3 * np.random.default_rng(seed).normal(size=(clients, samples))))


def bubbles(figure):
    (collection,) = figure.axes[0].collections
    return collection.get_offsets(), collection.get_sizes()


def named(figure, label):
    """The artist of the first axes with a label in the legend."""
    (artist,) = [a for a in figure.axes[0].get_children() if a.get_label() == label]
    return artist


def label_texts(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def check_legible(figure):
    """Draws the figure; no text may cover another, and the picture is not too large."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    # slanted labels overlap as boxes, not as text: only upright and vertical ones are judged
    boxes = [
        (text.get_text(), text.get_window_extent(renderer))
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text.get_rotation() % 90 == 0
    ]
    assert max(figure.get_tightbbox(renderer).size) <= 15  # inches
    # a pixel of overlap is the empty margin of the box
    extents = np.array([box.padded(-1).extents for _, box in boxes]).reshape(-1, 2, 2)
    low, high = np.sort(extents, axis=1).transpose(1, 0, 2)
    overlaps = ((low[:, None] <= high) & (low <= high[:, None])).all(axis=2)
    covering = [(boxes[i][0], boxes[j][0]) for i, j in np.argwhere(np.triu(overlaps, 1))]
    assert not covering


# ------------------------------------------------------------------------------------ partition


@pytest.mark.parametrize(("clients", "classes"), [(1, 10), (100, 100)])
def test_a_bubble_stands_for_every_count_and_its_area_is_proportional(clients, classes):
    counts = random_counts(clients, classes)
    places, sizes = bubbles(partition_figure(counts, names(classes)))
    assert len(places) == np.count_nonzero(counts)
    values = [counts[round(x), round(y)] for x, y in places]
    assert min(values) > 0
    np.testing.assert_allclose(sizes / sizes[0], np.array(values) / values[0])


def test_the_largest_bubbles_of_neighbors_do_not_overlap():
    figure = partition_figure(np.full((20, 10), 250), CIFAR10)
    FigureCanvasAgg(figure).draw()
    axes = figure.axes[0]
    diameter = math.sqrt(bubbles(figure)[1].max()) / 72 * figure.dpi
    origin, right, below = axes.transData.transform([(0, 0), (1, 0), (0, 1)])
    assert diameter < min(right[0] - origin[0], origin[1] - below[1])
    assert diameter > 0.5 * min(right[0] - origin[0], origin[1] - below[1])


@pytest.mark.parametrize(
    ("counts", "shown"),
    [([[700, 30], [0, 5]], [200, 400, 600]), ([[3, 0], [1, 2]], [1, 2, 3]), ([[7, 7]], [7])],
)
def test_the_legend_of_the_bubbles_has_their_scale(counts, shown):
    counts = np.array(counts)
    figure = partition_figure(counts, ["no", "yes"])
    places, sizes = bubbles(figure)
    area = sizes[0] / counts[tuple(places[0].astype(int))]
    legend = figure.axes[0].get_legend()
    labels = [int(re.search(r"\d+", text.get_text())[0]) for text in legend.get_texts()]
    assert labels == shown
    drawn = [handle.get_markersize() ** 2 for handle in legend.legend_handles]
    assert drawn == pytest.approx([count * area for count in labels])


def test_the_first_class_is_on_top_and_the_title_counts():
    figure = partition_figure(torch.tensor([[1000, 200], [0, 34]]), ["first", "second"])
    axes = figure.axes[0]
    assert label_texts(axes.yaxis) == ["first", "second"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    assert figure.get_suptitle() == "2 clients, 1,234 samples"


def test_more_than_100_clients_are_cut_and_the_title_says_so():
    counts = random_counts(250, 10)
    figure = partition_figure(counts, CIFAR10)
    assert len(bubbles(figure)[0]) == np.count_nonzero(counts[:100])
    assert "250 clients" in figure.get_suptitle()
    assert f"{counts.sum():,} samples" in figure.get_suptitle()
    assert "first 100 of 250" in figure.get_suptitle()
    check_legible(figure)


def test_a_partition_without_samples_is_an_empty_grid():
    figure = partition_figure(np.zeros((3, 2), dtype=int), ["a", "b"])
    assert len(bubbles(figure)[0]) == 0
    check_legible(figure)


@pytest.mark.parametrize(("clients", "classes"), [(1, 100), (100, 2)])
def test_partition_is_legible(clients, classes):
    counts = random_counts(clients, classes)
    sites = [f"hospital {i} of the north-western region" for i in range(clients)]
    for named in (None, sites):
        figure = partition_figure(counts, names(classes), named)
        check_legible(figure)
        is_turned = any(text.get_rotation() for text in figure.axes[0].get_xticklabels())
        assert is_turned == (named is not None)
    assert figure.axes[0].get_xticklabels()[0].get_text() == "hospital 0 of the nor…"


# ------------------------------------------------------------------------------------ certainty


def relative_weights(scores):
    """n s_i(x) / sum_j s_j(x), one by one."""
    n = len(scores)
    return [
        [n * scores[i][k] / sum(row[k] for row in scores) for k in range(len(scores[0]))]
        for i in range(n)
    ]


def test_certainty_rows_are_the_quantiles_of_the_weights_ordered_by_main_class():
    scores = random_scores(4, 201)
    weights = np.sort(relative_weights(scores.tolist()), axis=1)
    figure = certainty_figure(torch.from_numpy(scores), torch.tensor([2, 0, 2, 1]), "abc")
    order = [1, 3, 0, 2]
    assert label_texts(figure.axes[0].yaxis) == ["a · 1", "b · 3", "c · 0", "c · 2"]
    # with 201 samples the quantiles are the samples 10, 50, 100, 150 and 190
    medians = named(figure, "median").get_offsets()
    np.testing.assert_allclose(medians[:, 0], weights[order, 100])
    np.testing.assert_allclose(medians[:, 1], range(4))
    means = named(figure, "mean").get_offsets()
    np.testing.assert_allclose(means[:, 0], weights[order].mean(axis=1))
    for label, low, high in (("5-95 % of samples", 10, 190), ("middle half", 50, 150)):
        ends = np.array(named(figure, label).get_segments())[:, :, 0]
        np.testing.assert_allclose(ends, weights[order][:, [low, high]])


def test_certainty_marks_the_uniform_share_within_the_axis():
    for scores in (np.full((5, 7), 0.3), random_scores(5, 70) ** 8):
        figure = certainty_figure(scores, np.zeros(5, dtype=int), ["a"])
        assert set(named(figure, "uniform weight").get_xdata()) == {1}
        low, high = figure.axes[0].get_xlim()
        assert low <= 0.5
        assert high >= 2


def test_weights_too_small_for_the_axis_stay_visible_and_are_marked():
    scores = np.array([[1.0, 1.0, 1.0], [1e-8, 1e-8, 1e-8]])
    figure = certainty_figure(scores, np.array([0, 1]), ["a", "b"])
    low, high = figure.axes[0].get_xlim()
    for artist in figure.axes[0].collections:
        points = (
            artist.get_offsets()
            if isinstance(artist, PathCollection)
            else np.concatenate(artist.get_segments())
        )
        assert isinstance(artist, PathCollection | LineCollection)
        assert (points[:, 0] >= low).all()
        assert (points[:, 0] <= high).all()
    assert label_texts(figure.axes[0].xaxis)[0].startswith("≤ 0.001")
    check_legible(figure)


@pytest.mark.parametrize(
    ("clients", "classes", "power"),
    [(20, 10, 1), (100, 100, 10)],
)
def test_certainty_is_legible(clients, classes, power):
    main = np.random.default_rng(0).integers(0, classes, clients)
    scores = random_scores(clients, 50) ** power
    check_legible(certainty_figure(scores, main, names(classes)))


@pytest.mark.parametrize("by_class", [False, True])
def test_of_rows_too_thin_for_a_label_some_are_named(by_class):
    main = np.array([2, 0, 0, 1, 2, 2, 0, 2] * 12)  # 36 of a, 12 of b, 48 of c
    scores = random_scores(len(main), 9)
    if by_class:
        figure = weight_by_class_figure(scores, np.arange(9) % 3, main, "abc")
    else:
        figure = certainty_figure(scores, main, "abc")
        bands = [(p.get_y() + 0.5, p.get_height()) for p in figure.axes[0].patches]
        assert bands == [(0, 36), (48, 48)]
    assert label_texts(figure.axes[0].yaxis)[:4] == ["a · 1", "a · 14", "a · 26", "a · 41"]
    assert figure.axes[0].get_yticks().tolist() == list(range(0, 96, 5))


@pytest.mark.parametrize("by_class", [False, True])
def test_of_many_clients_the_first_are_shown_with_their_share_of_all(by_class):
    scores = random_scores(130, 30)
    scores[100:] *= 50
    main, labels = np.zeros(130, dtype=int), np.zeros(30, dtype=int)
    expected = np.array(relative_weights(scores.tolist()))[:100].mean(axis=1)
    if by_class:
        figure = weight_by_class_figure(scores, labels, main, ["a"])
        means = figure.axes[0].images[0].get_array()[:, 0]
    else:
        figure = certainty_figure(scores, main, ["a"])
        means = named(figure, "mean").get_offsets()[:, 0]
    np.testing.assert_allclose(means, expected)
    assert "first 100 of 130 clients" in figure.get_suptitle()


# ------------------------------------------------------------------------------ weight by class


def test_heat_map_is_the_mean_weight_and_grey_without_samples():
    scores, main = random_scores(5, 40), [2, 0, 3, 2, 1]
    labels = np.random.default_rng(1).choice([0, 1, 3], 40)  # class 2 has no sample
    weights = relative_weights(scores.tolist())
    figure = weight_by_class_figure(
        torch.from_numpy(scores), torch.from_numpy(labels), torch.tensor(main), "abcd"
    )
    image = figure.axes[0].images[0]
    shown = image.get_array()
    assert shown.shape == (5, 4)
    for y, client in enumerate([1, 4, 0, 3, 2]):
        for kind in range(4):
            values = [weights[client][k] for k in range(40) if labels[k] == kind]
            if values:
                assert shown[y, kind] == pytest.approx(sum(values) / len(values), rel=1e-12)
            else:
                assert np.ma.getmaskarray(shown)[y, kind]
    assert label_texts(figure.axes[0].yaxis) == ["a · 1", "b · 4", "c · 0", "c · 3", "d · 2"]
    assert label_texts(figure.axes[0].xaxis) == list("abcd")
    outlines = [(*patch.get_xy(), patch.get_height()) for patch in figure.axes[0].patches]
    assert outlines == [(-0.5, -0.5, 1), (0.5, 0.5, 1), (1.5, 1.5, 2), (2.5, 3.5, 1)]


@pytest.mark.parametrize("power", [0.01, 20])
def test_uniform_is_the_neutral_color_and_twice_and_half_are_equally_far(power):
    scores = random_scores(20, 300) ** power
    labels = np.arange(300) % 10
    figure = weight_by_class_figure(scores, labels, np.arange(20) % 10, CIFAR10)
    image = figure.axes[0].images[0]
    assert float(image.norm(1.0)) == pytest.approx(0.5)
    assert float(image.norm(0.5)) == pytest.approx(1 - float(image.norm(2.0)))
    red, _, blue, _ = image.to_rgba([2.0])[0]
    assert red > blue
    assert figure.axes[1].get_ylabel() == "weight relative to uniform"


def test_scores_that_say_nothing_look_pale():
    """The colors are not stretched until noise looks like knowledge."""
    scores = 0.5 + 0.005 * np.random.default_rng(0).normal(size=(20, 1000))
    figure = weight_by_class_figure(scores, np.arange(1000) % 10, np.arange(20) % 10, CIFAR10)
    image = figure.axes[0].images[0]
    assert np.ptp(image.to_rgba(image.get_array())[..., :3]) < 0.1


@pytest.mark.parametrize(("count", "ends"), [(2, ("≤ 0.5", "2")), (20, ("≤ 0.0625", "≥ 16"))])
def test_a_weight_of_zero_is_blue_not_missing(count, ends):
    figure = weight_by_class_figure(np.eye(count), *[np.arange(count)] * 2, names(count))
    low, *_, high = label_texts(figure.axes[1].yaxis)
    assert (low[:-1], high[:-1]) == ends
    image = figure.axes[0].images[0]
    assert not np.ma.getmaskarray(image.get_array()).any()
    red, _, blue, _ = image.to_rgba(image.get_array())[0, 1]
    assert blue > red + 0.2
    check_legible(figure)


@pytest.mark.parametrize(
    ("clients", "classes", "power"),
    [(1, 2, 1), (3, 2, 20), (5, 100, 1), (100, 10, 20)],
)
def test_heat_map_is_legible(clients, classes, power):
    main = np.random.default_rng(0).integers(0, classes, clients)
    scores = random_scores(clients, 200) ** power
    figure = weight_by_class_figure(scores, np.arange(200) % classes, main, names(classes))
    check_legible(figure)


# ----------------------------------------------------------------------------------- top images


def constant_images(count, channels=3, size=(4, 4)):
    """Image k has the value k everywhere, so that it is known again."""
    return torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(-1, channels, *size)


def image_ids(figure):
    """The value of each image drawn, by row from the top and column from the left."""
    placed = {}
    for image in figure.axes[0].images:
        left, _, _, upper = image.get_extent()
        placed[round(upper, 6), round(left, 6)] = int(np.asarray(image.get_array()).flat[0])
    rows = sorted({y for y, _ in placed})
    return [[placed[place] for place in sorted(placed) if place[0] == y] for y in rows]


@pytest.mark.parametrize(("kind", "channels"), [("torch", 1), ("numpy", 3)])
def test_images_come_in_the_order_of_descending_score(kind, channels):
    images, scores = constant_images(30, channels), torch.from_numpy(random_scores(3, 30))
    if kind == "numpy":
        images, scores = images.numpy(), scores.numpy()
    figure = top_images_figure(images, scores, ["client 0", "client 4", "client 9"], top=5)
    expected = [sorted(range(30), key=lambda k: -row[k])[:5] for row in scores.tolist()]
    assert image_ids(figure) == expected
    texts = [text.get_text() for text in figure.axes[0].texts]
    captions = [t for t in texts if not t.startswith("client")]
    assert captions == [f"{scores[i, k]:.3f}" for i, row in enumerate(expected) for k in row]
    assert [t for t in texts if t.startswith("client")] == ["client 0", "client 4", "client 9"]
    check_legible(figure)


def test_colors_and_orientation_are_kept():
    image = torch.zeros(1, 3, 2, 3, dtype=torch.uint8)
    image[0, :, 0, 2] = torch.tensor([10, 20, 30], dtype=torch.uint8)  # the upper right corner
    figure = top_images_figure(image, torch.ones(1, 1), ["client"])
    (drawn,) = figure.axes[0].images
    assert drawn.get_array().shape == (2, 3, 3)
    assert drawn.get_array()[0, 2].tolist() == [10, 20, 30]
    left, right, lower, upper = drawn.get_extent()
    assert (lower - upper) / (right - left) == pytest.approx(2 / 3)
    assert drawn.origin == "upper"


def test_grey_images_keep_their_brightness():
    """A dim image with little contrast is not stretched to black and white."""
    images = constant_images(2, 1) + torch.tensor([60, 200], dtype=torch.uint8).view(2, 1, 1, 1)
    figure = top_images_figure(images, torch.tensor([[0.9, 0.1]]), ["client"])
    for image, value in zip(figure.axes[0].images, (60, 201), strict=True):
        np.testing.assert_allclose(
            image.to_rgba(image.get_array())[0, 0, :3], value / 255, atol=1 / 255
        )


def test_of_equal_scores_the_first_image_comes_first():
    figure = top_images_figure(constant_images(40), torch.full((1, 40), 0.5), ["a"], top=4)
    assert image_ids(figure) == [[0, 1, 2, 3]]


def test_at_most_six_clients_and_no_more_images_than_there_are():
    scores = random_scores(9, 3)
    figure = top_images_figure(constant_images(3), scores, [f"client {i}" for i in range(9)])
    assert image_ids(figure) == np.argsort(-scores[:6]).tolist()
    assert "first 6 of 9 clients" in figure.get_suptitle()
    check_legible(figure)


@pytest.mark.parametrize(("clients", "top", "size"), [(1, 1, (8, 8)), (2, 8, (4, 9))])
def test_top_images_are_legible(clients, top, size):
    scores = random_scores(clients, 40) * np.array([1e-6, 1.0, 1e6, 1.0])[np.arange(40) % 4]
    labels = [f"client {i} with a rather long name ($5)" for i in range(clients)]
    check_legible(top_images_figure(constant_images(40, 3, size), scores, labels, top))


# ------------------------------------------------------------------------------------ all figures


def all_figures(classes):
    scores = torch.from_numpy(random_scores(2, 12)).bfloat16().requires_grad_()
    main = torch.tensor([0, 1])
    return [
        partition_figure(torch.ones(2, 2, dtype=torch.int32), classes),
        certainty_figure(scores, main, classes),
        weight_by_class_figure(scores, torch.arange(12) % 2, main, classes),
        top_images_figure(constant_images(12), scores, classes),
    ]


def test_names_are_not_formulas_and_long_ones_are_cut():
    """A broken formula would raise when the figure is drawn."""
    for figure in all_figures([r"$\frac$", "supercalifragilisticexpialidocious" * 5]):
        check_legible(figure)
        texts = [t.get_text() for t in figure.findobj(Text)]
        assert any(r"$\frac$" in text for text in texts)


def test_matplotlib_is_imported_only_to_draw():
    for path in Path(figures.__file__).parent.glob("*.py"):
        text = path.read_text()
        assert not re.search(r"^(import|from) matplotlib", text, re.MULTILINE)
        assert "pyplot" not in text  # which would hold every figure until it is closed


def test_the_metrics_of_few_clients_are_colored_and_of_many_the_worst():
    curves = {
        "val/accuracy": np.array([[0.2, 0.4], [0.3, 0.1]]),
        "val/ece": np.full((2, 2), np.nan),
    }
    figure = client_lines_figure([1, 3], ["north", "south"], curves)
    upper, lower = figure.axes[0].child_axes
    assert [line.get_label() for line in upper.lines] == ["north", "south", "mean"]
    np.testing.assert_allclose(upper.lines[2].get_ydata(), [25, 25])  # in percent
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("accuracy in %", "ece")
    values = np.roll(np.linspace(0.1, 0.9, 12), 4)[:, None]
    many = client_lines_figure([1], [f"c{i}" for i in range(12)], {"accuracy": values})
    [axes] = many.axes[0].child_axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["c4", "mean"]
