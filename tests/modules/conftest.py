import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from fedaux_pl.data import Digits

SMALL = {"in_channels": 1, "width": 0.125}


@pytest.fixture(scope="session")
def digits():
    return Digits()


@pytest.fixture
def batch(digits):
    """The first of the training digits, as images and labels."""
    train = digits.train()
    return lambda count=None: (train.inputs[:count], train.labels[:count])


@pytest.fixture
def trainer(tmp_path):
    def create(**options):
        torch.manual_seed(0)
        defaults = {
            "accelerator": "cpu",
            "max_epochs": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "default_root_dir": tmp_path,
        }
        return pl.Trainer(**(defaults | options))

    return create


def loader(*tensors, batch_size=64, shuffle=False):
    """An ordinary DataLoader, as in anybody's project."""
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size, shuffle=shuffle)


def assert_bf16_trains_like_32_bits(trainer, create, *data):
    """One epoch with either precision: the mean losses agree to what bfloat16's digits allow."""
    losses = {}
    for precision in ("32-true", "bf16-mixed"):
        fit = trainer(precision=precision)
        fit.fit(create(), loader(*data))
        losses[precision] = fit.callback_metrics["train/loss"].item()
    assert losses["bf16-mixed"] != losses["32-true"]
    assert abs(losses["bf16-mixed"] - losses["32-true"]) < 0.03 * losses["32-true"]


def assert_round_trips(fit, module, data, path):
    """A fitted module is the same after saving and loading, settings included; returns it."""
    fit.fit(module, data)
    fit.save_checkpoint(path)
    again = type(module).load_from_checkpoint(path, weights_only=True)
    assert_same_weights(module, again)
    assert dict(again.hparams) == dict(module.hparams)
    assert again.optimizer_settings == module.optimizer_settings
    return again


def assert_same_weights(one, other):
    one, other = one.state_dict(), other.state_dict()
    assert one.keys() == other.keys()
    for key in one:
        assert torch.equal(one[key], other[key]), key
