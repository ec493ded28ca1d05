"""Settings of the Trainer that mean nothing, or something else, in a federation are refused."""

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
)

from fedaux_pl.algorithms import FedClassMeans
from fedaux_pl.data import Digits
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import LocalTraining
from fedaux_pl.federation.checks import check_trainer
from tests.federations import MIXED, create, fit, split


def check(has_validation=False, **options):
    defaults = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    check_trainer(pl.Trainer(**(defaults | options)), ["resnet8", "shufflenet"], has_validation)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"overfit_batches": 1},
            "trainer.overfit_batches is 1, but has no meaning in a federation",
        ),
        ({"val_check_interval": 0.5}, "trainer.val_check_interval is 0.5, but has no meaning"),
        (
            {"reload_dataloaders_every_n_epochs": 1},
            "trainer.reload_dataloaders_every_n_epochs is 1",
        ),
        ({"accumulate_grad_batches": 2}, "trainer.accumulate_grad_batches is 2"),
        ({"limit_train_batches": 0}, "trainer.limit_train_batches is 0.*: leave it out"),
        ({"limit_train_batches": 0.5}, "trainer.limit_train_batches is 0.5, but has no meaning"),
        (
            {"check_val_every_n_epoch": 0},
            "trainer.check_val_every_n_epoch: got 0; expected at least 1",
        ),
        ({"precision": "bf16-true"}, "trainer.precision: got bf16-true; expected one of"),
        (
            {"strategy": "client_parallel", "devices": 2, "sync_batchnorm": True},
            "trainer.sync_batchnorm is true",
        ),
        (
            {"callbacks": GradientAccumulationScheduler({1: 2})},
            "GradientAccumulationScheduler changes a training with one optimizer",
        ),
        (
            {"callbacks": EarlyStopping("val_loss")},
            "monitor of EarlyStopping: got val_loss; expected one of accuracy, accuracy/resnet8, "
            "accuracy/shufflenet, client_loss/mean, distillation_loss/resnet8, "
            "distillation_loss/shufflenet$",
        ),
        (
            {"callbacks": EarlyStopping("val/accuracy")},
            "got val/accuracy; .*: set data.validation_fraction, e.g. to 0.1",
        ),
        (
            {"callbacks": EarlyStopping("accuracy"), "has_validation": True},
            r"got accuracy; expected one of val/accuracy, .* \(did you mean val/acc",
        ),
        (
            {"callbacks": ModelCheckpoint(monitor="acuracy")},
            r"ModelCheckpoint: got acuracy; expected one of .* \(did you mean acc",
        ),
        (
            {"callbacks": EarlyStopping("val/accuracy"), "has_validation": True},
            "EarlyStopping prefers a low val/accuracy, .*: set mode='max'",
        ),
        (
            {"callbacks": ModelCheckpoint(monitor="accuracy"), "has_validation": False},
            "ModelCheckpoint prefers a low accuracy, .*: set mode='max'",
        ),
        (
            {"callbacks": EarlyStopping("accuracy"), "limit_val_batches": 0},
            "with trainer.limit_val_batches 0 nothing is measured",
        ),
    ],
)
def test_refused_settings(options, message):
    with pytest.raises(ValueError, match=message):
        check(**options)


def test_apple_gpus_are_refused(monkeypatch):
    monkeypatch.setattr("lightning_fabric.accelerators.MPSAccelerator.is_available", lambda: True)
    with pytest.raises(ValueError, match=r"accelerator is mps, .* no float64, .*: choose cpu"):
        check(accelerator="mps", devices=1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fast_dev_run": True},
        {"fast_dev_run": 3},
        {"limit_val_batches": 0},
        {"callbacks": [EarlyStopping("client_loss/mean")]},
        {
            "callbacks": ModelCheckpoint(monitor="val/accuracy/resnet8", mode="max"),
            "has_validation": True,
        },
        {"callbacks": ModelCheckpoint(monitor="step", mode="max")},
    ],
)
def test_supported_settings(options):
    check(**options)


class Logs(pl.Callback):
    """Logs a metric of the user."""

    def on_validation_epoch_end(self, trainer, pl_module):
        pl_module.log("own", 1.0)


def test_a_callback_can_monitor_what_a_callback_of_the_user_logs(tmp_path):
    trainer = fit(tmp_path, create(), 1, callbacks=[Logs(), EarlyStopping("own")])
    assert trainer.callback_metrics["own"] == 1.0


def test_a_federation_checks_its_trainer(tmp_path):
    """Options before Lightning does."""
    with pytest.raises(ValueError, match=r"trainer.gradient_clip_val is 2, but .*leave it out"):
        fit(tmp_path, create(), 1, gradient_clip_val=2)
    with pytest.raises(
        ValueError, match=r"got val_loss; expected one of accuracy, accuracy/resnet8"
    ):
        fit(tmp_path, create(), 1, callbacks=[EarlyStopping("val_loss")])


def test_stopping_on_the_test_data_is_said():
    with pytest.warns(match="EarlyStopping monitors accuracy, which is measured on the test data"):
        check(callbacks=EarlyStopping("accuracy", mode="max"))


def test_weights_of_classes_need_clients_that_train():
    local = LocalTraining(class_weights="balanced")
    with pytest.raises(
        ConfigurationError, match="clients of FedClassMeans do not train: set it to"
    ):
        create(FedClassMeans(), local=local)


@pytest.mark.parametrize("name", MIXED)
def test_images_that_are_too_small_for_a_network(name, tmp_path):
    small = split(private=Digits(size=4), auxiliary=None)
    expected = f"^{name}: got images of 4 x 4 pixels; expected at least 5 x 5, .*: set `size`"
    with pytest.raises(ConfigurationError, match=expected):
        fit(tmp_path, create(clients={name: 3}), data=small)
    fit(tmp_path, create(clients={name: 3}), 0, split(private=Digits(size=5), auxiliary=None))
