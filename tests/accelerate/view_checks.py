"""The kernel of views equals the tensor code, in Triton's interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate import eligibility, speed_up
from fedaux_pl.accelerate import views as fast_views
from fedaux_pl.accelerate.views import views_in_one_kernel
from fedaux_pl.data.views import Boxes, SimCLRViews, apply_views
from tests.data.test_views import generator, neutral, random_images


def assert_same(images, parameters, tolerance=1e-5):
    """The kernel computes what the tensor code computes."""
    expected = apply_views(images, parameters)
    found = views_in_one_kernel(images, parameters)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    assert_close(found, expected, rtol=0, atol=tolerance)
    return found


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    strength=st.floats(0, 2.5),
)
def test_random_views(seed, channels, height, width, strength):
    images = torch.randint(
        0, 256, (2, channels, height, width), dtype=torch.uint8, generator=generator(seed)
    )
    views = SimCLRViews(strength=strength, min_scale=0.02, grayscale=0.3)
    drawn = views.sample(4, height, width, generator=generator(seed))
    # factors up to 3 amplify rounding errors
    assert_same(images, drawn, tolerance=1e-4 if strength > 1 else 2e-5)


def test_images_of_several_blocks(monkeypatch):
    """The last block is partial, and its masked pixels do not count in the mean."""
    monkeypatch.setattr(fast_views, "MAX_BLOCK_PIXELS", 128)
    images = random_images((3, 17, 33), count=8)[5:]
    assert_same(images, neutral(3, 17, 33)._replace(contrast=torch.tensor([0, 0.7, 3])))


def test_neutral_parameters_change_nothing():
    images = random_images((3, 9, 12), count=8)
    flipped = neutral(8, 9, 12)._replace(flip=torch.arange(8) % 2 == 0)
    found = assert_same(images, flipped)
    assert_close(found[::2], images[::2].flip(3), rtol=0, atol=1e-6)
    assert_close(found[1::2], images[1::2], rtol=0, atol=1e-6)


def test_pixels_outside_the_box_do_not_show():
    boxes = torch.cartesian_prod(*[torch.tensor([0, 5])] * 2, *[torch.tensor([1, 3])] * 2)
    images = torch.ones(len(boxes), 1, 8, 8)
    for image, (top, left, rows, columns) in zip(images, boxes.tolist(), strict=True):
        image[0, top : top + rows, left : left + columns] = 0.25
    drawn = neutral(len(boxes), 8, 8)._replace(boxes=Boxes(*boxes.T.contiguous()))
    found = views_in_one_kernel(images, drawn)
    assert_close(found, torch.full_like(found, 0.25), rtol=0, atol=1e-6)


def test_boxes_beyond_the_image_read_nothing_outside():
    """The tensor code repeats the border of the image."""
    images = random_images((3, 6, 5), count=8)[:4]
    starts, extents = torch.tensor([-9, 4, 100, -3]), torch.tensor([3, 9, 2, 20])
    assert_same(
        images, neutral(4, 6, 5)._replace(boxes=Boxes(starts, starts.flip(0), extents, extents))
    )


@pytest.mark.parametrize(
    ("name", "channels"),
    [("brightness", 1), ("brightness", 3), ("contrast", 3), ("saturation", 3)],
)
def test_factors_from_zero_to_three(name, channels):
    images = random_images((channels, 8, 12), count=8).flip(0)
    assert_same(images, neutral(8, 8, 12)._replace(**{name: torch.linspace(0, 3, 8)}))


def test_hue_of_every_corner_of_the_color_cube():
    levels, shifts = torch.tensor([0, 0.25, 0.5, 1]), torch.arange(-3, 4) / 6
    image = torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 8, 8)
    assert_same(image.repeat(7, 1, 1, 1), neutral(7, 8, 8)._replace(hue=shifts))


def test_grayscale():
    images = random_images((3, 8, 12), count=9)
    mask = torch.arange(9) % 3 == 0
    found = assert_same(images, neutral(9, 8, 12)._replace(grayscale=mask))
    assert torch.equal(found[mask], found[mask][:, :1].expand(-1, 3, -1, -1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
def test_types_and_layouts(dtype):
    images = random_images((3, 8, 12), count=8)[:2]
    images = ((images * 255).round() if dtype == torch.uint8 else images).to(dtype)
    drawn = SimCLRViews().sample(2, 8, 12, generator=generator())
    expected = assert_same(images, drawn)
    for same in (
        images.to(memory_format=torch.channels_last),
        images.transpose(2, 3).contiguous().transpose(2, 3),
        torch.cat([images, images], 3)[..., :12],
        torch.cat([images, images])[2:],
    ):
        assert torch.equal(views_in_one_kernel(same, drawn), expected)


def test_the_kernel_is_used_where_it_can_run(monkeypatch):
    taken = []

    def in_one_kernel(images, parameters):
        taken.append(len(parameters.flip))
        return views_in_one_kernel(images, parameters)

    monkeypatch.setattr(fast_views, "views_in_one_kernel", in_one_kernel)
    images, views = random_images((3, 8, 8), count=8), speed_up(SimCLRViews())
    expected = views(images, generator(), of_each=2)
    assert not taken
    monkeypatch.setattr(eligibility, "has_kernels", lambda device: True)
    found = views(images, generator(), of_each=2)
    assert taken == [16]
    assert_close(found, expected, rtol=0, atol=1e-5)
    # the kernel has no gradient, and no program for an empty batch
    views(images.clone().requires_grad_(), generator()).sum().backward()
    assert views(images[:0], generator()).shape == (0, 3, 8, 8)
    assert taken == [16]
