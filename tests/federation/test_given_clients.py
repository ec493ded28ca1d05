"""Federations whose data name their clients, and whose clients hold out validation data."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from pytorch_lightning.callbacks import ModelCheckpoint

from fedaux_pl.algorithms import FedBN
from fedaux_pl.cli import verbs
from fedaux_pl.cli.entry import main
from fedaux_pl.data import Digits
from fedaux_pl.engine.checkpoints import load_checkpoint
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation, LocalTraining
from tests.command_line import QUICKSTART, command
from tests.federations import FewDigits, assert_same, create, fit, split, weights

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")


class Wards(FewDigits):
    """Three clients of 32, 16 and 16 samples."""

    def train(self):
        examples = super().train()
        owners = torch.arange(len(examples)) % 4 % 3
        return replace(examples, clients=owners, client_names=("north", "south", "west"))


class NamedWards(Wards):
    """Wards whose test samples are of two of the three clients."""

    def test(self):
        examples = super().test()
        owners = torch.arange(len(examples)) % 2
        return replace(examples, clients=owners, client_names=("north", "west"))


def run(root, rounds, validation=0.25, ckpt_path=None):
    federation = create()
    data = split(20, private=Wards(), validation_fraction=validation)
    callbacks = [ModelCheckpoint(root, filename="last", enable_version_counter=False)]
    options = {"callbacks": callbacks, "enable_checkpointing": True}
    fit(root.parent, federation, rounds, data, ckpt_path, **options)
    return federation, data


def test_a_run_with_given_clients_resumes_bit_for_bit(tmp_path):
    whole, data = run(tmp_path / "whole", 2)
    assert data.client_sizes == [24, 12, 12]
    run(tmp_path / "parts", 1)
    last = tmp_path / "parts" / "last.ckpt"
    resumed, _ = run(tmp_path / "parts", 2, ckpt_path=last)
    assert_same(weights(resumed), weights(whole))
    with pytest.raises(ConfigurationError, match=r"data\.validation = 0\.25, .* asks for 0\.5"):
        run(tmp_path / "parts", 2, validation=0.5, ckpt_path=last)


def test_clients_have_no_own_models_before_the_first_round(tmp_path):
    federation, data = create(FedBN()), split(3, private=Wards(), validation_fraction=0.25)
    fit(tmp_path, federation, 1, data, num_sanity_val_steps=1)
    assert federation.metrics.keys() > {f"val/client_accuracy/{n}" for n in data.client_names}


@pytest.mark.parametrize(("method", "memory"), [("FedAvg", "device"), ("FedBN", "host")])
@pytest.mark.usefixtures("without_figures")
def test_clients_fine_tune_in_every_evaluation(method, memory, tmp_path):
    """Lightning tests in inference mode, where nothing can be trained."""
    options = [f"--data.private={__name__}.NamedWards", f"--data.memory={memory}"]
    options += ["--data.validation_fraction=0.25", "--trainer.max_epochs=1"]
    options += [f"--model.algorithm={method}", "--model.local.fine_tuning=1"]
    options += ["--model.clients={resnet8: 3}", "--model.model_options={width: 0.125}"]

    def by_client(trainer):
        return {k: float(v) for k, v in trainer.callback_metrics.items() if "client_" in k}

    _, *args = command("fit", tmp_path, *options)
    fitted = verbs.fit(args)
    best, data = fitted.best.best_model_path, fitted.datamodule
    args += [f"--ckpt_path={best}"]
    expected = by_client(fitted.trainer)
    assert "client_accuracy/north" in expected
    assert by_client(verbs.test([*args, "--trainer.inference_mode=false"]).trainer) == expected
    tested = verbs.test(args)
    assert by_client(tested.trainer) == expected
    [again] = tested.trainer.test(tested.model, datamodule=data, verbose=False)
    assert again.items() >= expected.items()
    loaded = Federation.load_from_checkpoint(best)
    [again] = tested.trainer.test(loaded, datamodule=data, verbose=False)
    assert again.items() >= expected.items()
    validated = by_client(verbs.validate(args).trainer)
    assert "val/client_accuracy/north" in validated
    assert fitted.model.history[-1].items() >= validated.items()


@pytest.mark.cuda
def test_clients_fine_tune_in_a_test_with_captured_steps(tmp_path):
    """The test trains with the captured steps of the fit; a new run captures steps of its own."""
    local = LocalTraining(batch_size=16, epochs=4, fine_tuning=4, class_weights="balanced")
    federation, data = create(FedBN(), local=local), split(3, private=NamedWards())
    trainer = fit(tmp_path, federation, 2, data, accelerator="gpu")
    measured = {k: v for k, v in federation.history[-1].items() if k.startswith("client_acc")}
    assert len(measured) == 2
    [tested] = trainer.test(federation, datamodule=data, verbose=False)
    assert {name: tested[name] for name in measured} == measured
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    loaded = Federation.load_from_checkpoint(tmp_path / "last.ckpt")
    [tested] = trainer.test(loaded, datamodule=data, verbose=False)
    assert {name: tested[name] for name in measured} == pytest.approx(measured, abs=0.06)


def test_a_folder_for_each_client_on_the_command_line(tmp_path, capsys):
    train = Digits().train()
    for i in range(40):
        folder = tmp_path / "photos" / ("small" if i % 4 == 0 else "large") / str(i % 2)
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.asarray(train.inputs[train.labels == i % 2][i][0])
        Image.fromarray(pixels).save(folder / f"{i}.png")
    args = [
        "fit",
        f"--config={QUICKSTART}",
        "--model.algorithm=FedAvg",
        "--model.model_options={width: 0.125}",
        "--model.participation=1",
        "--data.private=ImageFolder",
        f"--data.private.root={tmp_path / 'photos'}",
        "--data.private.size=8",
        "--data.private.channels=1",
        "--data.private.clients=first_level",
        "--data.private.test_fraction=0.2",
        "--data.validation_fraction=0.1",
        "--trainer.max_epochs=1",
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        f"--trainer.default_root_dir={tmp_path / 'logs'}",
    ]
    assert main(args) == 1
    assert (
        "the data name 2 clients (large, small), but the federation has 20 {'resnet8': 20}: set "
        "clients to {'resnet8': 2}" in capsys.readouterr().err
    )
    assert main([*args, "--model.clients={resnet8: 2}"]) == 0
    (checkpoint,) = (tmp_path / "logs").rglob("last.ckpt")
    settings = load_checkpoint(checkpoint)["federation"]["settings"]["data"]
    assert (settings["num_clients"], settings["alpha"]) == (2, None)
    assert settings["validation"] == 0.1
    assert sum(path.is_file() for path in (tmp_path / "photos").rglob("*")) == 40
