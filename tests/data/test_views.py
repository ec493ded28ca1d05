"""The batched views against torchvision's operations on one image at a time."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import ColorJitter, RandomResizedCrop
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from fedaux_pl.data import views as color
from fedaux_pl.data.views import (
    NUMBERS_PER_BOX,
    Boxes,
    SimCLRViews,
    ViewParameters,
    apply_views,
    boxes_from,
    resized_crop,
)

SHAPES = [(3, 8, 8), (3, 24, 40), (1, 64, 9), (3, 9, 64)]


def sample_boxes(count, height, width, min_scale, generator):
    """Boxes from new random numbers."""
    uniform = torch.rand((NUMBERS_PER_BOX, count), generator=generator)
    return boxes_from(uniform, height, width, min_scale)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_images(shape, count=24, seed=0):
    """Noise with some gray, black, white and fully saturated pixels."""
    images = torch.rand((count, *shape), generator=generator(seed))
    images[0] = 0
    images[1] = 1
    images[2] = images[2, :1]
    images[3] = images[3].round()
    images[4:8, :, ::2] = images[4:8, :1, ::2]
    return images


def neutral(count, height, width):
    zeros, ones = torch.zeros(count, dtype=torch.int64), torch.ones(count)
    no = torch.zeros(count, dtype=torch.bool)
    boxes = Boxes(zeros, zeros, zeros + height, zeros + width)
    return ViewParameters(boxes, no, ones, ones, ones, ones * 0, no)


def reference_crop(image, boxes, flip, index):
    box = [int(side[index]) for side in boxes]
    size = list(image.shape[-2:])
    crop = tv.resized_crop(
        image, *box, size=size, interpolation=InterpolationMode.BILINEAR, antialias=True
    )
    return tv.horizontal_flip(crop) if flip[index] else crop


def reference_view(image, parameters, index):
    view = reference_crop(image, parameters.boxes, parameters.flip, index)
    view = tv.adjust_brightness(view, float(parameters.brightness[index]))
    view = tv.adjust_contrast(view, float(parameters.contrast[index]))
    view = tv.adjust_saturation(view, float(parameters.saturation[index]))
    view = tv.adjust_hue(view, float(parameters.hue[index]))
    if parameters.grayscale[index]:
        view = tv.rgb_to_grayscale(view, num_output_channels=view.shape[0])
    return view


def assert_close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


# --- operations with given parameters -------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_crop_and_flip_equal_torchvision(shape):
    images = random_images(shape, count=48)
    boxes = sample_boxes(48, *shape[1:], min_scale=0.02, generator=generator(1))
    # the smallest box in a corner and the whole image are the extremes
    for side, smallest, whole in zip(
        boxes, (shape[1] - 1, 0, 1, 1), (0, 0, *shape[1:]), strict=True
    ):
        side[0], side[8], side[1], side[9] = smallest, smallest, whole, whole
    flip = torch.arange(48) % 16 < 8
    expected = [reference_crop(x, boxes, flip, i) for i, x in enumerate(images)]
    assert_close(resized_crop(images, boxes, flip), torch.stack(expected))


@pytest.mark.parametrize(
    ("name", "low", "high", "shape"),
    [
        ("brightness", 0, 3, SHAPES[1]),
        ("contrast", 0, 3, SHAPES[1]),
        ("contrast", 0, 3, SHAPES[2]),
        ("saturation", 0, 3, SHAPES[3]),
        ("hue", -0.5, 0.5, SHAPES[0]),
    ],
)
def test_color_operation_equals_torchvision(name, low, high, shape):
    images = random_images(shape, count=31)
    before = images.clone()
    factors = torch.linspace(low, high, 31)[torch.randperm(31, generator=generator(2))]
    found = getattr(color, f"adjust_{name}")(images, factors)
    reference = getattr(tv, f"adjust_{name}")
    expected = [reference(x, float(f)) for x, f in zip(images, factors, strict=True)]
    assert_close(found, torch.stack(expected))
    assert torch.equal(images, before)


def test_hue_of_every_corner_of_the_color_cube():
    """At the corners and on the edges of the cube, the cases of the hue computation meet."""
    levels = torch.tensor([0, 0.25, 0.5, 1])
    image = torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 8, 8)
    for factor in (-0.5, -1 / 3, -1 / 6, 0.0, 1 / 6, 1 / 3, 0.5):
        found = color.adjust_hue(image, torch.tensor([factor]))
        assert_close(found[0], tv.adjust_hue(image[0], factor))
        assert found.min() >= 0
        assert found.max() <= 1


@pytest.mark.parametrize("shape", SHAPES)
def test_view_equals_the_chain_of_torchvision_operations(shape):
    images = random_images(shape, count=64)
    views = SimCLRViews(strength=1.0, jitter=0.9, grayscale=0.3)
    parameters = views.sample(64, *shape[1:], generator=generator(3))
    expected = torch.stack([reference_view(x, parameters, i) for i, x in enumerate(images)])
    found = apply_views(images, parameters)
    assert_close(found, expected, tolerance=2e-5)  # contrast and saturation widen what came before
    assert found.min() >= 0
    assert found.max() <= 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_several_views_of_each_image(dtype):
    """The first view of every image, then the second; ``part`` selects images in both."""
    images = (random_images((3, 9, 12)) * (255 if dtype == torch.uint8 else 1)).to(dtype)
    drawn = SimCLRViews().sample(72, 9, 12, generator=generator(9))
    found = apply_views(images, drawn)
    assert found.shape == (72, 3, 9, 12)
    assert_close(found, apply_views(torch.cat([images, images, images]), drawn), tolerance=1e-6)
    assert torch.equal(SimCLRViews()(images, generator(9), of_each=3), found)
    some = apply_views(images[5:11], drawn.part(slice(5, 11), views=3))
    assert_close(some, found.view(3, 24, 3, 9, 12)[:, 5:11].flatten(0, 1), tolerance=1e-6)
    assert apply_views(images[7:7], drawn.part(slice(7, 7), views=3)).shape == (0, 3, 9, 12)
    assert len(SimCLRViews().sample(0, 9, 12).part(slice(0, 0), views=2).flip) == 0


def test_settings_that_switch_everything_off():
    views = SimCLRViews(min_scale=1.0, flip=0, jitter=0, grayscale=0)
    parameters = views.sample(200, 16, 16, generator=generator())
    expected = neutral(200, 16, 16)
    torch.testing.assert_close(parameters[1:], expected[1:])
    # rounding can still take a row or column off a crop of nearly the whole area
    assert (parameters.boxes.height >= 15).all()
    assert (parameters.boxes.width >= 15).all()
    strong = SimCLRViews(jitter=1, strength=0).sample(200, 16, 16, generator=generator())
    torch.testing.assert_close(strong[2:6], expected[2:6])


# --- types, shapes, surroundings ------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_uint8_is_float_over_255(channels):
    images = torch.randint(0, 256, (16, channels, 12, 10), dtype=torch.uint8, generator=generator())
    views = SimCLRViews()
    found = views(images, generator(4))
    assert found.dtype == torch.float32
    assert torch.equal(found, views(images / 255, generator(4)))
    assert_close(found, views(images.double() / 255, generator(4)))


def test_a_module_without_state():
    views = SimCLRViews()
    assert views(torch.zeros(0, 3, 8, 8)).shape == (0, 3, 8, 8)
    assert not list(views.parameters())
    assert not views.state_dict()
    assert "strength=0.5" in repr(views)


def test_autocast_and_default_dtype_do_not_degrade_the_views():
    images = random_images((3, 16, 16))
    expected = SimCLRViews()(images, generator(5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = SimCLRViews()(images, generator(5))
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(SimCLRViews()(images, generator(5)), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.nightly
def test_compiles_without_a_graph_break_for_batches_of_several_sizes():
    """A full graph is possible only if no branch or shape depends on a value."""
    views = SimCLRViews()
    compiled = torch.compile(views, backend="eager", fullgraph=True, dynamic=True)
    for count in (24, 9):
        images = random_images((3, 16, 16), count)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            expected = views(images, of_each=2)
            torch.manual_seed(0)
            assert_close(compiled(images, of_each=2), expected)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(SHAPES[0], torch.uint8), (SHAPES[1], torch.float32), (SHAPES[2], torch.uint8)],
)
def test_gpu_equals_cpu(shape, dtype):
    images = (random_images(shape) * (255 if dtype == torch.uint8 else 1)).to(dtype)
    parameters = SimCLRViews(strength=1.0).sample(48, *shape[1:], generator=generator())
    boxes, *rest = parameters
    on_gpu = ViewParameters(Boxes(*(x.cuda() for x in boxes)), *(x.cuda() for x in rest))
    expected = apply_views(images, parameters)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert_close(apply_views(images.cuda(), on_gpu).cpu(), expected, tolerance=5e-5)


@pytest.mark.cuda
def test_cuda_graph_draws_new_views_at_each_replay():
    views = SimCLRViews()
    images = torch.rand(64, 3, 32, 32, device="cuda")
    views(images, of_each=2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # capture fails at any synchronization
        static = views(images, of_each=2)
    graph.replay()
    first = static.clone()
    graph.replay()
    assert not torch.equal(static, first)
    assert not torch.equal(static[:64], static[64:])
    assert static.isfinite().all()


# --- random parameters ----------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    height=st.integers(1, 64),
    width=st.integers(1, 64),
    min_scale=st.floats(0.001, 1),
    strength=st.floats(0, 2.5),
)
def test_parameters_stay_within_bounds(seed, height, width, min_scale, strength):
    views = SimCLRViews(min_scale=min_scale, strength=strength)
    parameters = views.sample(256, height, width, generator=generator(seed))
    boxes = parameters.boxes
    sides = (boxes.top, boxes.height, height), (boxes.left, boxes.width, width)
    for start, extent, size in sides:
        assert start.dtype == extent.dtype == torch.int64
        assert (start >= 0).all()
        assert (extent >= 1).all()
        assert (start + extent <= size).all()
    spread = 0.8 * strength
    for factor in (parameters.brightness, parameters.contrast, parameters.saturation):
        assert factor.dtype == torch.float32
        assert (factor >= max(0, 1 - spread) - 1e-6).all()
        assert (factor <= 1 + spread + 1e-6).all()
    assert (parameters.hue.abs() <= 0.2 * strength + 1e-7).all()
    assert parameters.flip.dtype == parameters.grayscale.dtype == torch.bool


@pytest.mark.parametrize(("height", "width"), [(100, 4), (4, 100), (1, 1), (3, 90), (1, 64)])
def test_images_too_narrow_for_most_boxes(height, width):
    """If all boxes drawn are too large, the result is torchvision's central crop."""
    boxes = sample_boxes(50, height, width, min_scale=0.9, generator=generator())
    reference = RandomResizedCrop.get_params(
        torch.zeros(1, height, width), [0.9, 1.0], [3 / 4, 4 / 3]
    )
    assert torch.equal(torch.stack(boxes, 1), torch.tensor([reference]).expand(50, 4))


@pytest.mark.parametrize(("height", "width", "min_scale"), [(20, 48, 0.08), (48, 12, 0.3)])
def test_boxes_have_the_distribution_of_torchvision(height, width, min_scale):
    with torch.random.fork_rng():
        torch.manual_seed(7)
        image = torch.zeros(1, height, width)
        reference = torch.tensor(
            [
                RandomResizedCrop.get_params(image, [min_scale, 1.0], [3 / 4, 4 / 3])
                for _ in range(1500)
            ]
        )
    found = torch.stack(sample_boxes(40_000, height, width, min_scale, generator=generator(7)), 1)
    areas = [(x[:, 2] * x[:, 3])[:, None] for x in (found, reference)]
    found, reference = torch.cat((found, areas[0]), 1), torch.cat((reference, areas[1]), 1)
    # the two-sample Kolmogorov-Smirnov distance of top, left, height, width and area; with ties
    # the bound holds all the more
    bound = 1.95 * math.sqrt(1 / 1500 + 1 / 40_000)  # passed by chance once in 1000
    for a, b in zip(found.T.contiguous(), reference.T.contiguous(), strict=True):
        places = torch.cat((a, b)).unique()
        cdf = [torch.searchsorted(x.sort().values, places, right=True) / len(x) for x in (a, b)]
        assert (cdf[0] - cdf[1]).abs().max() < bound


def test_frequencies_and_factors():
    count = 40_000
    views = SimCLRViews(flip=0.3, jitter=0.7, strength=0.5, grayscale=0.15)
    p = views.sample(count, 32, 32, generator=generator(9))
    jittered = p.brightness != 1
    for mask, probability in ((p.flip, 0.3), (p.grayscale, 0.15), (jittered, 0.7)):
        tolerance = 4 * math.sqrt(probability * (1 - probability) / count)
        assert mask.double().mean().item() == pytest.approx(probability, abs=tolerance)
    assert ((p.hue == 0) == ~jittered).double().mean() > 0.999
    assert (p.contrast[~jittered] == 1).all()
    assert (p.saturation[~jittered] == 1).all()

    reference = ColorJitter(0.4, 0.4, 0.4, 0.1)
    drawn = (p.brightness, p.contrast, p.saturation, p.hue)
    names = ("brightness", "contrast", "saturation", "hue")
    for factor, name in zip(drawn, names, strict=True):
        low, high = getattr(reference, name)
        unit = (factor[jittered].double() - low) / (high - low)
        assert unit.mean().item() == pytest.approx(0.5, abs=0.008)
        assert unit.std().item() == pytest.approx(1 / math.sqrt(12), abs=0.005)
        assert unit.min() == pytest.approx(0, abs=1e-3)
        assert unit.max() == pytest.approx(1, abs=1e-3)
    # all are drawn independently
    table = torch.stack(
        [x[jittered].double() for x in (*drawn, *p.boxes, p.flip, p.grayscale)]
    ).corrcoef()
    table[4:8, 4:8] = torch.eye(4)  # the sides of a box do depend on each other
    assert (table - torch.eye(10)).abs().max() < 0.03
    masks = torch.stack([x.double() for x in (jittered, p.flip, p.grayscale)]).corrcoef()
    assert (masks - torch.eye(3)).abs().max() < 0.03


# --- wrong arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("min_scale", (0, 1.2)),
        ("flip", (-0.1, 1.5)),
        ("jitter", (2,)),
        ("strength", (-1, 2.6)),
        ("grayscale", (float("nan"),)),
    ],
)
def test_wrong_settings(argument, values):
    for value in values:
        with pytest.raises(ValueError, match=rf"{argument}: got {value}; expected to lie in"):
            SimCLRViews(**{argument: value})


def test_wrong_shapes_dtypes_and_counts():
    for shape in ((3, 8, 8), (4, 2, 8, 8), (4, 8, 8, 3), (1, 1, 3, 8, 8)):
        with pytest.raises(ValueError, match=r"got torch.float32 of shape .* with 1 or 3 channels"):
            SimCLRViews()(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"got torch.int64 .*; expected uint8"):
        SimCLRViews()(torch.zeros(2, 3, 8, 8, dtype=torch.int64))
    for count in (1, 3):
        message = rf"got those of {count} views; .* of 2 images: sample them"
        with pytest.raises(ValueError, match=message):
            apply_views(torch.zeros(2, 3, 8, 8), neutral(count, 8, 8))
