"""The network of a file of weights is created from what the file says."""

import sys

import pytest
import torch

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.models import create_model, load_network, save_backbone
from fedaux_pl.models.saved_models import write_safetensors

PUBLIC = {"image_size": 32, "weights": "DEFAULT", "pretrained": False}


@pytest.mark.parametrize(
    ("name", "options"), [("resnet8", {"width": 0.25}), ("torchvision/resnet18", PUBLIC)]
)
def test_a_network_comes_back_with_its_features(tmp_path, name, options):
    model = create_model(name, 10, **options)
    model.created_as["options"].pop("pretrained", None)  # as if its weights had been loaded
    again = load_network(save_backbone(tmp_path / "n.safetensors", model))
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(again.eval().features(images), model.eval().features(images))
    assert not again.created_as["options"].get("pretrained")  # nothing is downloaded


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({}, "does not say of which network its weights are"),
        ({"architecture": "ResNet8"}, "does not say of which network its weights are"),
        ({"architecture": 'resnet8 {"depth": 3}'}, "cannot be created: .* no option depth=3"),
        (
            {"architecture": "tests.models.evil.Net {}"},
            r"class tests\.models\.evil\.Net, whose mod",
        ),
        ({"architecture": 'resnet8 {"width": 9}'}, "ask for more than the file"),
        ({"architecture": 'resnet8 {"width": 0.125}'}, "entries are missing"),
    ],
)
def test_a_file_creates_and_imports_nothing_else(tmp_path, about, message):
    path = tmp_path / "n.safetensors"
    write_safetensors(path, {"conv1.weight": torch.zeros(1000)}, about)
    with pytest.raises(ConfigurationError, match=message):
        load_network(path)
    assert "tests.models.evil" not in sys.modules
