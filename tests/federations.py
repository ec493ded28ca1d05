"""Small federations, each of which runs in a second or so."""

import dataclasses

import torch

from fedaux_pl.algorithms import FedAvg
from fedaux_pl.callbacks import FederationReport
from fedaux_pl.data import Digits, Examples, FederatedDataModule, Source
from fedaux_pl.federation import Federation
from fedaux_pl.federation.settings import Distillation, LocalTraining, Pretraining
from fedaux_pl.lightning import pl
from fedaux_pl.models import create_model

SMALL = {"width": 0.125}
MIXED = {"resnet8": 2, "mobilenetv2": 2, "shufflenet": 2}


class FewDigits(Source):
    """The first samples of the embedded digits, of ``size`` x ``size`` pixels."""

    def __init__(self, train=64, test=40, auxiliary=40, size=8):
        self.sizes = {"train": train, "test": test, "auxiliary": auxiliary}
        self.digits = Digits(size=size)

    def train(self):
        return self._first(self.digits.train(), self.sizes["train"])

    def test(self):
        return self._first(self.digits.test(), self.sizes["test"])

    def auxiliary(self):
        return self.digits.auxiliary()[: self.sizes["auxiliary"]]

    def _first(self, examples, count):
        return Examples(examples.inputs[:count], examples.targets[:count], examples.classes)


def create(algorithm=None, clients=None, kind=Federation, **options):
    """A federation of small networks with stages of a few steps; ``kind`` is its class."""
    defaults = {
        "participation": 1.0,
        "local": LocalTraining(batch_size=16),
        "distillation": Distillation(batch_size=16, lr=1e-3),
        "pretraining": Pretraining(epochs=1, batch_size=20),
        "model_options": SMALL,
    }
    return kind(algorithm or FedAvg(), clients or {"resnet8": 3}, **(defaults | options))


def network(seed=0):
    """A small network with random BatchNorm statistics."""
    torch.manual_seed(seed)
    model = create_model("resnet8", 10, in_channels=1, width=0.125)
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.uniform_(-0.5, 0.5)
            layer.running_var.uniform_(0.5, 2)
    return model


def split(num_clients=3, **options):
    """The data module of ``num_clients`` clients."""
    defaults = {"private": FewDigits(), "auxiliary": FewDigits(), "alpha": 1.0}
    return FederatedDataModule(num_clients=num_clients, **(defaults | options))


def assign(data, shares):
    """Gives each client of a loaded data module the samples at these positions."""
    clients = tuple(torch.as_tensor(share) for share in shares)
    data._held = dataclasses.replace(data._held, clients=clients)


def fit(root, federation, rounds=2, data=None, ckpt_path=None, **options):
    """Runs a federation with ``root`` as its folder, whose cache later runs share."""
    defaults = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": root,
    }
    callbacks = options.pop("callbacks", [])
    if not any(isinstance(callback, FederationReport) for callback in callbacks):
        callbacks = [*callbacks, FederationReport(images=False)]  # figures are slow
    options["callbacks"] = callbacks
    trainer = pl.Trainer(max_epochs=rounds, **(defaults | options))
    data = data or split(len(federation.architectures))
    trainer.fit(federation, datamodule=data, ckpt_path=ckpt_path, weights_only=True)
    return trainer


def run(root, algorithm=None, rounds=2, data=None, clients=None, **options):
    """Creates and runs a federation."""
    federation = create(algorithm, clients, **options)
    fit(root, federation, rounds, data)
    return federation


def weights(federation):
    """A copy of the server's models, by architecture and name."""
    return {key: value.clone() for key, value in federation.students.state_dict().items()}


def assert_same(one, other):
    """Asserts that two state dicts are equal bit for bit."""
    assert one.keys() == other.keys()
    for key in one:
        assert torch.equal(one[key], other[key]), key


def assert_close(one, other, **tolerance):
    """Asserts that two state dicts are equal up to rounding errors."""
    assert one.keys() == other.keys()
    for key in one:
        torch.testing.assert_close(
            one[key], other[key], **tolerance, msg=lambda m, k=key: f"{k}: {m}"
        )


def measured(federation):
    """The history without timings."""
    return [
        {key: value for key, value in entry.items() if not key.startswith("seconds/")}
        for entry in federation.history
    ]
