import re

import pytest
import torch
from torch.testing import assert_close

from fedaux_pl.models import InputNormalization, create_model


def test_defaults_map_bytes_to_plus_minus_two():
    x = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 4, 4)
    out = InputNormalization()(x)
    assert out.dtype == torch.float32
    assert out.shape == (2, 3, 4, 4)
    assert_close(out[:, 0, 0, 0], torch.tensor([-2.0, 2.0]))
    x, layer = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16), InputNormalization(1)
    assert_close(layer(x), layer(x / 255))


def test_channels_have_their_own_constants():
    layer = InputNormalization(3, mean=[0.0, 0.5, 1.0], std=(1.0, 0.5, 0.25))
    out = layer(torch.full((1, 3, 2, 2), 0.75))
    assert_close(out[0, :, 1, 1], torch.tensor([0.75, 0.5, -1.0]))
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(InputNormalization(3, mean=0, std=1)(x), x)


def test_dtype_is_that_of_the_module():
    layer = InputNormalization(1).to(torch.float64)
    for dtype in (torch.uint8, torch.float16, torch.float32, torch.float64):
        assert layer(torch.ones(1, 1, 2, 2, dtype=dtype)).dtype == torch.float64


@pytest.mark.parametrize(
    "shape", [(3, 8, 8), (2, 1, 8, 8), (2, 8, 8, 3), (1, 2, 3, 8, 8), (2, 192)]
)
def test_wrong_shape(shape):
    message = rf"expected .*\(N, 3, H, W\), got {re.escape(str(shape))}; .* in_channels set to"
    with pytest.raises(ValueError, match=message):
        create_model("resnet8", 2, width=0.1)(torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool])
def test_wrong_dtype(dtype):
    with pytest.raises(TypeError, match=rf"{dtype}; pass torch.uint8 in 0..255 or floats"):
        InputNormalization(1)(torch.zeros(1, 1, 2, 2, dtype=dtype))


IMAGES = torch.linspace(0, 1, 192).view(1, 3, 8, 8)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (IMAGES * 255, r"got 0 to 255; expected \[0, 1\]: .* mean=0, std=1"),
        (IMAGES - 0.5, r"got -0.5 to 0.5; expected \[0, 1\]"),
        (IMAGES.where(IMAGES > 0, torch.nan), "the images hold NaN or infinity"),
        (IMAGES / 0, "the images hold NaN or infinity"),
        (IMAGES[:, :1], r"got \(1, 1, 8, 8\)"),
    ],
)
def test_values_that_would_be_misread(images, message):
    with pytest.raises(ValueError, match=message):
        create_model("resnet8", 2, width=0.1).check_inputs(images)


def test_values_that_are_read():
    for images in ((IMAGES * 255).byte(), IMAGES, IMAGES.half(), IMAGES + 1e-4, IMAGES[:0]):
        create_model("resnet8", 2, width=0.1).check_inputs(images)
    create_model("resnet8", 2, width=0.1, mean=0, std=1).check_inputs(IMAGES * 9 - 4)
    with pytest.raises(ValueError, match="NaN or infinity"):
        create_model("resnet8", 2, width=0.1, mean=0, std=1).check_inputs(IMAGES * torch.inf)
