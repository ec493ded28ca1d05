"""Weights in files: of h_0, and of exported models."""

import json
import sys

import pytest
import torch

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.models import (
    create_for,
    create_model,
    load_backbone,
    load_exported,
    save_backbone,
    save_ensemble,
    trained_models,
)
from tests.models import own_networks
from tests.models.own_networks import Plain
from tests.texts import CONFIG, encoder

OWN = f"{own_networks.__name__}.TinyNet"


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


def exported(folder, model, shape=(1, 8, 8), **changes):
    """Exports a model, with some entries of config.json changed."""
    federation = {
        "classes": list("abc"),
        "input_shape": list(shape),
        "settings": {"batchnorm_statistics": "running"},
    }
    save_ensemble(folder, {"model": model}, federation)
    config = json.loads((folder / "config.json").read_text())
    options = config["models"][0]["options"] | changes.pop("options", {})
    config["models"][0] |= {"options": options, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A module on the Python path that remembers being imported."""
    (tmp_path / "trap.py").write_text("import sys\nsys.is_trapped = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "trap.Net"
    assert not hasattr(sys, "is_trapped")


def test_an_export_chooses_no_imports(tmp_path, trap):
    folder = exported(tmp_path / "out", small(in_channels=1), name=trap)
    message = r"out.config.json has the class trap.Net, .* not imported: if you trust it, import tr"
    with pytest.raises(ConfigurationError, match=message):
        load_exported(folder)


def test_a_checkpoint_chooses_no_imports(trap):
    settings = {"clients": {"resnet8": 1, trap: 1}, "model_options": {}}
    federation = {"settings": settings, "input_shape": [1, 8, 8], "classes": ["a"]}
    message = "the checkpoint has the class trap.Net, .* on the command line, add --import trap$"
    with pytest.raises(ConfigurationError, match=message):
        trained_models({"federation": federation, "state_dict": {}})


def test_weights_come_from_the_file_alone(tmp_path, monkeypatch):
    def fail(*args, **options):
        raise AssertionError("a download")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", fail)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fail)
    name = "torchvision/mobilenet_v3_small"
    model = create_for((1, 8, 8), name, 3, pretrained=False, weights="DEFAULT")
    folder = exported(tmp_path, model, options={"pretrained": True})
    (again,) = load_exported(folder).models
    assert again.normalize.extra_repr() == model.normalize.extra_repr() != "mean=[0.5], std=[0.25]"
    assert torch.equal(again.head.weight, model.head.weight)


def test_an_encoder_of_the_hub_is_not_looked_up(tmp_path, monkeypatch):
    def fail(*args, **options):
        raise AssertionError("a download")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", fail)
    source = {"source": "someone/encoder", "config": None}
    folder = exported(tmp_path, encoder(classes=3), (20,), options=source)
    with pytest.raises(ConfigurationError, match="has source 'someone/encoder'; expected the con"):
        load_exported(folder)


@pytest.mark.parametrize(
    ("create", "options"),
    [
        (lambda: small(in_channels=1), {"width": 1e6}),
        (lambda: create_model(OWN, 3, in_channels=1, width=4), {"width": 10**12}),
        (encoder, {"config": CONFIG | {"vocab_size": 10**9}}),
        (encoder, {"config": CONFIG | {"num_hidden_layers": 10**6}}),
    ],
)
def test_options_allocate_no_more_than_the_weights(tmp_path, create, options):
    model = create()
    shape = (1, 8, 8) if model.inputs == "images" else (20,)
    folder = exported(tmp_path, model, shape, options=options)
    with pytest.raises(ConfigurationError, match="safetensors cannot be created: its options ask"):
        load_exported(folder)
