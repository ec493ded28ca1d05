"""Settings of training: defaults of the paper, and refused values."""

import dataclasses

import pytest

from fedaux_pl.federation import Distillation, LocalTraining, Pretraining


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
    expected = {"optimizer": "adam", "lr": lr, "momentum": 0.0, "weight_decay": 0.0}
    assert settings.optimizer_options == expected
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.epochs = 2


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (LocalTraining, {"epochs": -1}, "local: epochs must be at least 0, but is -1"),
        (Distillation, {"batch_size": 0}, "distillation: batch_size must be at least 1, but is 0"),
        (Pretraining, {"batch_size": 1}, "pretraining: batch_size must be at least 2, but is 1"),
        (Distillation, {"lr": 0.0}, "distillation: lr must be positive, but is 0.0"),
    ],
)
def test_refused_values(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)
