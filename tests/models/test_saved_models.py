"""The weights of h_0 in a file."""

import pytest
import torch

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.models import create_model, load_backbone, save_backbone
from tests.models.own_networks import Plain


def small(num_classes=3, name="resnet8", **options):
    return create_model(name, num_classes, **{"width": 0.125, **options})


def test_h0_is_one_call_to_save_and_one_to_load(tmp_path):
    one, other = small(), small(num_classes=7)
    head = other.head.weight.clone()
    path = save_backbone(tmp_path / "deep" / "h0.safetensors", one)
    load_backbone(other, str(path))
    assert torch.equal(other.layer4[0].conv1.weight, one.layer4[0].conv1.weight)
    assert torch.equal(other.bn1.num_batches_tracked, one.bn1.num_batches_tracked)
    assert torch.equal(other.head.weight, head)


def test_channels_last_and_shared_tensors_are_saved(tmp_path):
    model = small().to(memory_format=torch.channels_last)
    model.layer2[0].conv2.weight = model.layer2[0].conv2.weight
    model.alias = model.layer1
    load_backbone(model, save_backbone(tmp_path / "h0.safetensors", model))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            lambda: small(width=0.25),
            r"these weights, of resnet8 {\"width\": 0.125}, are not of this architecture: \d+ entr",
        ),
        (lambda: small(name="shufflenet"), r"of resnet8 .*such as 'bn1.bias'; create the model"),
        (
            lambda: small(mean=0.0, std=1.0),
            r"trained on inputs normalized with mean=\[0.5\], std=\[0.25\], but this model has "
            r"mean=\[0.0\], std=\[1.0\]; create it with the same mean and std",
        ),
    ],
)
def test_another_architecture_is_named(tmp_path, other, message):
    path = save_backbone(tmp_path / "h0.safetensors", small())
    model = other()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        load_backbone(model, path)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_module_without_a_name(tmp_path):
    path = save_backbone(tmp_path / "h0.safetensors", Plain(3))
    load_backbone(Plain(5), path)
    with pytest.raises(ValueError, match="these weights, of Plain, are not of this architecture"):
        load_backbone(Plain(5, width=3), path)


def test_files_that_are_none(tmp_path):
    with pytest.raises(ConfigurationError, match=r"there is no file .*h0.safetensors: correct"):
        load_backbone(small(), tmp_path / "h0.safetensors")
    (tmp_path / "h0.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(ConfigurationError, match=r"cannot be read as safetensors \(.*damaged or"):
        load_backbone(small(), tmp_path / "h0.safetensors")
