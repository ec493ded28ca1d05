"""Settings of training: defaults of the paper, and refused values."""

import dataclasses
import math
from inspect import signature
from pathlib import Path

import pytest
import torch
import yaml

from fedaux_pl.algorithms import FedAvg, FedDF
from fedaux_pl.data import FederatedDataModule, InMemory, ViewSettings
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Distillation, Federation, LocalTraining, Pretraining
from fedaux_pl.federation.hyperparameters import describe, rebuild
from fedaux_pl.models import create_model
from fedaux_pl.modules import OptimizerSettings, SimCLR
from tests.federations import SMALL, create, fit, split


@pytest.mark.parametrize(
    ("settings", "epochs", "batch_size", "lr"),
    [
        (LocalTraining(), 1, 32, 1e-3),
        (Distillation(), 1, 128, 5e-5),
        (Pretraining(), 100, 512, 1e-3),
    ],
)
def test_defaults(settings, epochs, batch_size, lr):
    assert (settings.epochs, settings.batch_size, settings.lr) == (epochs, batch_size, lr)
    assert settings.optimizer_settings == OptimizerSettings("adam", lr)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.epochs = 2


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (LocalTraining, {"epochs": 0}, "local.epochs: got 0; .*an integer of at least 1"),
        (LocalTraining, {"epochs": 1.5}, "got 1.5; expected to be an integer of at least 1"),
        (LocalTraining, {"epochs": True}, "got True; expected to be an integer of at least 1"),
        (Distillation, {"epochs": 0}, "distillation.epochs: got .* to be an integer of at least 1"),
        (Pretraining, {"epochs": -1}, "pretraining.epochs: got .* to be an integer of at least 0"),
        (Distillation, {"batch_size": 0}, "distillation.batch_size: got .*an integer of at least"),
        (Pretraining, {"batch_size": 1}, "pretraining.batch_size: got .*an integer of at least 2"),
        (Distillation, {"lr": 0.0}, "distillation.lr: got 0.0; expected to be a positive number"),
        (Distillation, {"lr": math.inf}, "distillation.lr: got inf; .*a positive number"),
        (LocalTraining, {"lr": 1e38}, r"got 1e\+38; .* at most 1e\+30"),
        (LocalTraining, {"weight_decay": 1e300}, r"got 1e\+300; .* from 0 to 1e\+06"),
        (LocalTraining, {"batch_size": 10**20}, "at most 2147483647"),
        (LocalTraining, {"lr": "1e-3"}, "local.lr: got '1e-3'; expected to be a positive number"),
        (LocalTraining, {"optimizer": "lion"}, "local.optimizer: got .* to be adam, adamw or sgd"),
        (LocalTraining, {"momentum": 0.9}, "local.momentum: got 0.9; expected to be 0 with adam"),
        (LocalTraining, {"clip_norm": 0.0}, "local.clip_norm: got .*a positive number or null"),
        (
            LocalTraining,
            {"schedule": "linear"},
            "local.schedule: got .*; expected to be constant or cosine",
        ),
        (Distillation, {"warmup": 1.0}, r"distillation.warmup: got 1.0; .*in \[0, 1\)"),
        (LocalTraining, {"label_smoothing": -0.1}, "local.label_smoothing: got .*in .0, 1."),
        (LocalTraining, {"batchnorm": "eval"}, "local.batchnorm: got .* to be batch or frozen"),
        (
            LocalTraining,
            {"class_weights": "b"},
            "local.class_weights: got 'b'; expected to be none or balanced",
        ),
        (
            LocalTraining,
            {"augmentation": ["flip"]},
            "local.augmentation: got .*; expected to be flip, crop, crop_flip, a class",
        ),
        (Distillation, {"temperature": 0}, "distillation.temperature: got .*a positive number"),
        (LocalTraining, {"momentum": 1.5, "optimizer": "sgd"}, "local.momentum: got .*in .0, 1."),
        (Distillation, {"weight_decay": -1.0}, "distillation.weight_decay: got -1.0"),
        (Distillation, {"weight_decay": math.inf}, "weight_decay: got inf; .*a number"),
        (Pretraining, {"temperature": 0.0}, "pretraining.temperature: got 0.0; .*a positive"),
        (Pretraining, {"mask_rate": 1.0}, "pretraining.mask_rate: got .*strictly between 0 and"),
        (Pretraining, {"projection_width": 0}, "pretraining.projection_width: got 0; .*at least 1"),
        (Pretraining, {"objective": "mask"}, "pretraining.objective: got .* to be masked or next"),
    ],
)
def test_refused_values(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)


@pytest.mark.parametrize(
    ("num_clients", "options", "message"),
    [
        (40, {}, r"but client 1 has a single sample \(64 samples, 40 clients\): use at most 32"),
        (3, {"local": LocalTraining(batch_size=1)}, "but clients train with local.batch_size = 1"),
        (
            3,
            {"algorithm": FedDF(), "distillation": Distillation(batch_size=1)},
            "but students train with distillation.batch_size = 1: set it to at least 2",
        ),
    ],
)
def test_models_that_cannot_train_on_one_sample(tmp_path, num_clients, options, message):
    federation = create(clients={"resnet8": num_clients}, **options)
    shape = r"resnet8 cannot train on one sample of shape \(1, 8, 8\), because BatchNorm"
    with pytest.raises(ConfigurationError, match=f"{shape}.*{message}"):
        fit(tmp_path, federation, 1, split(num_clients))
    assert not list(tmp_path.rglob("*"))


def test_a_given_client_with_one_sample(tmp_path):
    images, labels = torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1, 0])
    private = InMemory((images, labels), (images, labels), clients=["north"] * 4 + ["south"])
    federation = create(clients={"resnet8": 2})
    with pytest.raises(ConfigurationError, match=r"but south has a single sample .*: leave it out"):
        fit(tmp_path, federation, 1, FederatedDataModule(private))


@pytest.mark.parametrize(
    "options", [{"model_options": SMALL | {"norm": "group"}}, {"trained": "head"}]
)
def test_models_that_can_train_on_one_sample(tmp_path, options):
    clients = {"resnet8": 40}
    fit(tmp_path, create(clients=clients, participation=0.05, **options), 1, split(40))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"algorithm": FedAvg},
            r"algorithm: got the class F.*; expected an object such as FedAUX\(\): add par",
        ),
        ({"algorithm": "FedAvg"}, "algorithm: got 'FedAvg'; expected an object such as"),
        (
            {"local": LocalTraining},
            "local: got the class LocalTraining; expected an object such as",
        ),
        ({"local": Distillation()}, r"local: got Distillation\(.*; expected .* LocalTraining"),
        ({"distillation": {"epochs": 1}}, "distillation: got {'epochs': 1}; expected an object"),
        ({"pretraining": None}, "pretraining: got None; expected an object"),
    ],
)
def test_a_class_in_place_of_an_object(options, message):
    with pytest.raises(TypeError, match=message):
        Federation(**({"algorithm": FedAvg(), "clients": {"resnet8": 2}} | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 3}, "clients: got 3; .*architectures .* such as {'resnet8': 20}"),
        ({"clients": {"resnet8": 2.5}}, "clients: got {'resnet8': 2.5}; expected to name"),
        ({"clients": {"resnet8": True}}, "clients: got {'resnet8': True}; expected to name"),
        ({"participation": "0.4"}, r"participation: got '0.4'; expected to lie in \(0, 1\]"),
        ({"model_options": [1]}, "model_options: got .1.; expected to be a mapping"),
        ({"clients": {}}, r"got \{\}; expected to .*at least 1 client each,"),
        ({"clients": {"resnet8": 2, "shufflenet": -1}}, "'shufflenet': -1"),
        ({"clients": {"resnet9": 2}}, r"unknown model 'resnet9' \(did you mean resnet8\?\)"),
        ({"participation": 0}, r"participation: got 0; expected to lie in \(0, 1\]"),
        ({"participation": 1.5}, r"participation: got 1.5; expected to lie in \(0, 1\]"),
        ({"trained": "all"}, "trained: got 'all'; expected to be full or head"),
        (
            {"batchnorm_statistics": "eval"},
            "batchnorm_statistics: got 'eval'; expected to be running or own",
        ),
        ({"seed": -1}, "seed: got -1; expected to be an integer of at least 0"),
        ({"seed": 1.5}, "seed: got 1.5; expected to be an integer of at least 0"),
        ({"threads": 0}, "threads: got 0; expected to be an integer of at least 1, or None"),
    ],
)
def test_refused_settings_of_a_federation(options, message):
    with pytest.raises(ValueError, match=message):
        Federation(**({"algorithm": FedAvg(), "clients": {"resnet8": 2}} | options))


def test_the_key_of_h_0_stays_what_it_was():
    """An h_0 that is kept for secret noise must be found: another one would be a second release."""
    views = ViewSettings(flip=0.0, strength=0.3)
    settings = Pretraining(epochs=2, temperature=0.5, views=views)
    plain = {
        "epochs": 2, "batch_size": 512, "optimizer": "adam", "lr": 1e-3, "momentum": 0.0,
        "weight_decay": 0.0, "temperature": 0.5, "min_scale": 0.08, "flip": 0.0, "jitter": 0.8,
        "strength": 0.3, "grayscale": 0.2, "objective": "masked", "mask_rate": 0.15,
    }  # fmt: skip
    described = describe(settings)
    assert described == {"class_path": "fedaux_pl.federation.Pretraining", "init_args": plain}
    assert settings.plain() == plain  # part of the key of h_0
    assert rebuild(described) == settings
    former = {"class_path": "fedaux_pl.federation.settings.Pretraining", "init_args": plain}
    assert rebuild(former) == settings  # of checkpoints until 0.13


def test_a_wide_projection_head_is_part_of_the_key():
    settings = Pretraining(projection_width=96)
    assert settings.plain() == Pretraining().plain() | {"projection_width": 96}
    model = create_model("resnet8", 3, width=0.125)
    first, *_, last = settings.create_module(model).projection_head.layers
    assert (first.in_features, first.out_features) == (64, 96)
    assert last.num_features == 128


def test_new_options_are_recorded_if_they_are_set():
    options = {"augmentation": {"flip": {}}, "schedule": "cosine", "batchnorm": "frozen"}
    plain = LocalTraining(**options).plain()
    assert {name: plain.pop(name) for name in options} == options
    assert plain == LocalTraining().plain()
    described = describe(LocalTraining(**options))
    assert rebuild(described) == LocalTraining(**options)


@pytest.mark.parametrize(
    ("options", "rounds", "message"),
    [
        ({"augmentation": "randaugment"}, 1, "augmentation: got randaugment.*; expected flip"),
        ({"augmentation": "torchvision.transforms.v2.ToPILImage"}, 1, "local.augmentation "),
        ({"schedule": "cosine"}, -1, "local.schedule cosine needs the number of rounds, but"),
    ],
)
def test_trainings_that_a_run_cannot_use(tmp_path, options, rounds, message):
    federation = create(local=LocalTraining(batch_size=16, **options))
    with pytest.raises(ConfigurationError, match=message):
        fit(tmp_path, federation, rounds)
    assert not federation.history


def test_a_frozen_batchnorm_trains_on_one_sample(tmp_path):
    federation = create(
        clients={"resnet8": 40},
        participation=0.05,
        local=LocalTraining(batch_size=1, batchnorm="frozen"),
    )
    fit(tmp_path, federation, 1, split(40))
    means = [v for k, v in federation.students.state_dict().items() if "running_mean" in k]
    assert not torch.cat(means).any()  # as initialized


def test_wrong_model_options():
    with pytest.raises(TypeError, match="resnet8"):
        create(model_options={"depth": 3})


def test_the_temperature_of_simclr_has_one_default():
    """The quickstarts have another one, with which their figures were measured."""
    configs = Path(__file__).parents[2] / "configs"
    given = {
        name: yaml.safe_load((configs / f"{name}.yaml").read_text())["model"]["pretraining"]
        for name in ("fedaux_resnet8", "quickstart", "quickstart_private")
    }
    assert [own["temperature"] for own in given.values()] == [0.2, 0.5, 0.5]
    assert Pretraining().temperature == signature(SimCLR).parameters["temperature"].default == 0.2
