"""h_0 learns the features of a larger network that was pre-trained before."""

import pytest
import torch

from fedaux_pl import save_backbone
from fedaux_pl.algorithms import FedAvg
from fedaux_pl.data import ViewSettings
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Pretraining
from fedaux_pl.federation.pretraining import H0Source
from fedaux_pl.models import ResNet8, create_model
from fedaux_pl.modules import FeatureDistillation
from tests.federations import assert_same, network, run
from tests.modules.test_language_modeling import encoder


@pytest.fixture
def teacher(tmp_path):
    return save_teacher(tmp_path / "teacher.safetensors", 0)


def save_teacher(path, seed):
    torch.manual_seed(seed)
    save_backbone(path, create_model("resnet8", 10, in_channels=1, width=0.25))
    return str(path)


def learn(root, teacher, **options):
    settings = Pretraining(epochs=1, batch_size=20, teacher=teacher, **options)
    return run(root, FedAvg(pretrained=True), 1, pretraining=settings).h0["resnet8"]


def kept(root):
    return len(list((root / "cache").glob("h0-*")))


def test_settings_with_a_teacher_create_a_distillation(teacher):
    settings = Pretraining(teacher=teacher, projection_width=24, views=ViewSettings(flip=0.0))
    module = settings.create_module(network())
    assert isinstance(module, FeatureDistillation)
    assert module.predictor.layers[0].out_features == 24
    assert module.views.settings.flip == 0.0
    torch.manual_seed(0)
    saved = create_model("resnet8", 10, in_channels=1, width=0.25)
    assert torch.equal(module.teacher.layer4[0].conv2.weight, saved.layer4[0].conv2.weight)


def test_h0_is_kept_by_the_weights_of_its_teacher(tmp_path, teacher, monkeypatch):
    first = learn(tmp_path, teacher)
    assert kept(tmp_path) == 1
    elsewhere = save_teacher(tmp_path / "moved" / "teacher.safetensors", 0)
    monkeypatch.setattr(H0Source, "_learn", None)  # nothing is learned
    assert_same(dict(learn(tmp_path, elsewhere)), dict(first))
    monkeypatch.undo()
    save_teacher(teacher, 1)  # another network in the same place
    other = learn(tmp_path, teacher)
    assert kept(tmp_path) == 2
    assert not torch.equal(other["conv1.weight"], first["conv1.weight"])


def test_the_teacher_runs_once(tmp_path, teacher, monkeypatch):
    seen = []
    features = FeatureDistillation.teacher_features

    def count(module, images):
        seen.append(len(images))
        assert module._resize(images).shape[2:] == (24, 24)
        return features(module, images)

    monkeypatch.setattr(FeatureDistillation, "teacher_features", count)
    settings = Pretraining(epochs=3, batch_size=20, teacher=teacher, teacher_size=24)
    federation = run(tmp_path, FedAvg(pretrained=True), 1, pretraining=settings)
    # in the training, after the estimate of its duration
    assert seen[-1] == len(federation.data.auxiliary_inputs)
    assert seen.count(seen[-1]) == 1


def test_a_wrong_teacher_is_one_line(tmp_path, teacher):
    with pytest.raises(ConfigurationError, match=r"there is no file .*none\.safetensors"):
        learn(tmp_path, str(tmp_path / "none.safetensors"))
    anonymous = save_backbone(tmp_path / "anonymous.safetensors", ResNet8(10, width=0.125))
    with pytest.raises(ConfigurationError, match=r"does not say of which network its weights"):
        learn(tmp_path, str(anonymous))
    with pytest.raises(ConfigurationError, match=r"pretraining\.teacher: got .*Encoder reads text"):
        Pretraining(teacher=teacher).create_module(encoder())
    for options in ({"h0": teacher}, {"epochs": 0}):
        with pytest.raises(ValueError, match=r"pretraining\.teacher: got .*be null with h0"):
            Pretraining(teacher=teacher, **options)
    with pytest.raises(ValueError, match=r"pretraining\.teacher_size: got 64; .*null without"):
        Pretraining(teacher_size=64)
