"""A federation under a plain Trainer: logged, evaluated, reloaded and continued without the CLI."""

import csv
import json
import sys
import types
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from torch.utils.data import DataLoader

from fedaux_pl import processes
from fedaux_pl.algorithms import FedAdam, FedAUX, FedAvg, FedClassMeans, FedDF
from fedaux_pl.callbacks import FederationReport
from fedaux_pl.cli.entry import main
from fedaux_pl.engine.checkpoints import load_checkpoint
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation
from fedaux_pl.federation.hyperparameters import describe, rebuild
from fedaux_pl.federation.settings import LocalTraining, Pretraining
from fedaux_pl.scoring import (
    Logistic,
    MeanScoring,
    Privacy,
    ScoringRecipe,
    SecureSums,
    Whitened,
)
from tests.federations import FewDigits, assert_same, create, fit, split, weights
from tests.paper import Parts

QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}


def trainer(root, rounds=2, **options):
    return pl.Trainer(max_epochs=rounds, default_root_dir=root, **(QUIET | options))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A Trainer after two rounds, its federation, data and checkpoint."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("finished")
    federation, data = create(FedAUX(privacy=Privacy(None)), participation=0.7), split()
    loggers = [TensorBoardLogger(root, name="events"), CSVLogger(root, name="rows")]
    done = trainer(root, logger=loggers)
    done.fit(federation, datamodule=data)
    return done, federation, data, done.checkpoint_callback.best_model_path


def test_metrics_of_a_round_are_logged_over_the_round(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done, federation, _, _ = finished
    events = EventAccumulator(done.log_dir)
    events.Reload()
    for name in ("accuracy/resnet8", "client_loss/mean", "bytes/up", "class_accuracy/3"):
        logged = {event.step: event.value for event in events.Scalars(name)}
        expected = {t + 1: entry[name] for t, entry in enumerate(federation.history)}
        assert logged == pytest.approx(expected)
    assert "round" not in events.Tags()["scalars"]
    for name in ("accuracy", "accuracy/resnet8", "client_loss/mean", "distillation_loss/resnet8"):
        assert float(done.callback_metrics[name]) == pytest.approx(federation.history[-1][name])
    assert done.progress_bar_metrics["accuracy"] == federation.history[-1]["accuracy"]


def test_one_row_of_any_logger_holds_a_round(finished):
    done, federation, _, _ = finished
    table = (Path(done.loggers[1].log_dir) / "metrics.csv").read_text().splitlines()
    # pre-training has rows of its own
    rows = [row for row in csv.DictReader(table) if row["accuracy"] or row["client_loss/mean"]]
    assert [float(row["accuracy"]) for row in rows] == pytest.approx(
        [entry["accuracy"] for entry in federation.history]
    )
    assert [row["step"] for row in rows] == ["1", "2"]


def test_the_report_is_there_without_the_command_line(finished):
    done, _, _, _ = finished
    assert sum(isinstance(callback, FederationReport) for callback in done.callbacks) == 1
    assert {"curve.csv", "summary.json"} <= {path.name for path in Path(done.log_dir).iterdir()}


def test_validate_and_test_return_numbers(finished):
    _, federation, data, _ = finished
    for verb in ("validate", "test"):
        again = pl.Trainer(**QUIET, logger=False)
        [metrics] = getattr(again, verb)(federation, datamodule=data, verbose=False)
        expected = federation.history[-1]
        assert metrics == pytest.approx(
            {k: v for k, v in expected.items() if k.startswith(("accuracy", "class_accuracy"))}
        )


def test_predict_takes_the_test_data_of_the_federation(finished):
    _, federation, data, path = finished
    loaded = Federation.load_from_checkpoint(path)
    predicted = torch.cat(trainer(None, logger=False).predict(loaded, datamodule=data))
    with torch.no_grad():
        assert torch.equal(predicted, federation.eval()(data.test_examples.inputs))


def test_unscaled_floats_are_no_images_of_a_federation(finished):
    """Of a data module they are refused before; here somebody else loads them."""
    _, _, data, path = finished
    loaded, inputs = Federation.load_from_checkpoint(path), data.test_examples.inputs[:8]
    assert torch.equal(loaded(inputs), loaded(inputs / 255))
    unscaled = DataLoader(list(zip(inputs.float(), range(8), strict=True)), batch_size=8)
    for call in (trainer(None, logger=False).predict, trainer(None, logger=False).test):
        with pytest.raises(ValueError, match=r"images: got 0 to .*; expected \[0, 1\]"):
            call(loaded, unscaled)


def test_a_federation_without_models_cannot_predict():
    with pytest.raises(ConfigurationError, match="has no models yet: fit it, or load one with"):
        create(FedAvg())(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))


def test_class_accuracies_and_confusion_matrix_are_of_the_predictions(finished):
    _, federation, data, _ = finished
    test = data.test_examples
    answers = federation.eval()(test.inputs).argmax(dim=1)
    counts = torch.zeros(10, 10, dtype=torch.long)
    for true, answer in zip(test.targets, answers, strict=True):
        counts[true, answer] += 1
    again = pl.Trainer(**QUIET, logger=False)
    again.test(federation, datamodule=data, verbose=False)
    assert torch.equal(federation.confusion, counts)
    expected = counts.diagonal() / counts.sum(dim=1)
    assert list(federation.evaluation.class_accuracies().values()) == pytest.approx(
        expected.tolist()
    )


# --- load_from_checkpoint --------------------------------------------------------------------


def test_a_checkpoint_alone_gives_a_federation_that_predicts(finished):
    _, federation, data, path = finished
    loaded = Federation.load_from_checkpoint(path)
    assert loaded.algorithm.settings() == federation.algorithm.settings()
    assert loaded.hparams == federation.hparams
    assert loaded.history == federation.history
    assert loaded.classes == data.classes
    inputs = data.test_examples.inputs
    assert torch.equal(loaded(inputs), federation.eval()(inputs))
    batches = pl.Trainer(**QUIET, logger=False).predict(loaded, DataLoader(inputs, batch_size=16))
    torch.testing.assert_close(torch.cat(batches), loaded(inputs))
    pairs = DataLoader(list(zip(inputs, data.test_examples.targets, strict=True)), batch_size=16)
    [metrics] = pl.Trainer(**QUIET, logger=False).test(loaded, pairs, verbose=False)
    assert metrics["accuracy"] == pytest.approx(federation.history[-1]["accuracy"])


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_loaded_federation_continues_with_the_same_weights(finished, tmp_path, monkeypatch):
    done, _, data, path = finished
    options = {"participation": 0.7}
    whole = create(FedAUX(privacy=Privacy(None)), **options)
    trainer(done.default_root_dir, 3, logger=False, enable_checkpointing=False).fit(
        whole, datamodule=data
    )
    monkeypatch.setattr(processes, "_OMP_NUM_THREADS", 2)  # the number of the checkpoint counts
    loaded, resumed = (
        Federation.load_from_checkpoint(path),
        create(FedAUX(privacy=Privacy(None)), **options),
    )
    three = create(FedAUX(privacy=Privacy(None)), threads=3, **options)
    with pytest.raises(ConfigurationError, match=r"threads = 1, but this run asks for 3"):
        trainer(tmp_path, 3, logger=False).fit(three, datamodule=data, ckpt_path=path)
    with pytest.raises(ConfigurationError, match=r"loaded from .* after 2 rounds.*ckpt_path"):
        trainer(tmp_path, 3, logger=False).fit(loaded, datamodule=data)
    assert len(loaded.history) == 2
    for name, federation in (("loaded", loaded), ("resumed", resumed)):
        continued = trainer(tmp_path / name, 3, logger=False)
        continued.fit(federation, datamodule=data, ckpt_path=path)
        assert_same(weights(federation), weights(whole))
        assert federation.threads == whole.threads == 1


def test_hyperparameters_are_plain_and_can_be_replaced(finished):
    _, _, _, path = finished
    saved = load_checkpoint(path)["hyper_parameters"]
    assert saved["algorithm"]["class_path"] == "fedaux_pl.algorithms.FedAUX"
    assert saved["local"]["class_path"] == "fedaux_pl.federation.LocalTraining"
    assert saved["algorithm"]["init_args"]["privacy"]["init_args"]["epsilon"] is None
    assert saved["local"]["init_args"]["batch_size"] == 16
    assert Federation.load_from_checkpoint(path, algorithm=FedDF()).algorithm.name == "FedDF"


def test_a_checkpoint_without_options_that_came_later_is_read(finished, tmp_path):
    """As those of earlier versions: such an option has its default."""
    _, _, data, path = finished
    checkpoint = torch.load(path, weights_only=True)
    saved = checkpoint["hyper_parameters"]
    needed = ("algorithm", "clients", "model_options", "local")
    checkpoint["hyper_parameters"] = {name: saved[name] for name in needed}
    saved["local"]["init_args"] = {"batch_size": 16}
    torch.save(checkpoint, tmp_path / "earlier.ckpt")
    loaded = Federation.load_from_checkpoint(tmp_path / "earlier.ckpt")
    assert loaded.local == LocalTraining(batch_size=16)
    assert loaded.pretraining == Pretraining()
    images = data.test_examples.inputs[:8]
    assert torch.equal(loaded(images), Federation.load_from_checkpoint(path)(images))


def test_objects_are_described_and_created_again():
    method = FedAUX(scoring=Parts(Logistic(regularization=0.2), Whitened(dimensions=8)))
    again = rebuild(describe(method))
    assert again == method
    sums = Privacy(1.0, secure=SecureSums(colluders=2, pins={"north": "a key"}))
    assert rebuild(describe(FedClassMeans(privacy=sums))).privacy == sums
    assert list(signature(FedAvg).parameters) == ["pretrained"]


def test_a_recipe_that_is_no_dataclass_is_not_saved_with_other_options():
    class Recipe(ScoringRecipe):
        def __init__(self, dimensions=8):
            self.dimensions = dimensions

        def create(self, privacy):
            return MeanScoring(self.dimensions).create(privacy)

    with pytest.raises(ConfigurationError, match=r"does not hold .*Recipe.*algorithm="):
        rebuild(describe(FedAUX(scoring=Recipe(4))))


def test_a_checkpoint_cannot_choose_what_is_imported_or_called(monkeypatch):
    for path in ("os.system", "subprocess.Popen", "torch.nn.Linear", "no_such_module.Method"):
        with pytest.raises(ConfigurationError, match="not imported or not a part of a federation"):
            rebuild({"class_path": path, "init_args": {}})
    with pytest.raises(ConfigurationError, match=r"FedAvg cannot be created .*'nu'.*algorithm="):
        rebuild({"class_path": "fedaux_pl.algorithms.fedavg.FedAvg", "init_args": {"nu": 1}})

    class Mine(FedAvg):
        """A method of the user."""

    Mine.__module__, Mine.__qualname__ = "my_methods", "Mine"
    description = describe(Mine(pretrained=True))
    with pytest.raises(ConfigurationError, match="import my_methods before"):
        rebuild(description)
    monkeypatch.setitem(sys.modules, "my_methods", types.ModuleType("my_methods"))
    sys.modules["my_methods"].Mine = Mine
    assert rebuild(description).pretrained


def test_numbers_of_numpy_do_not_spoil_a_checkpoint(tmp_path):
    """A sweep over np.logspace passes some: its runs must be resumable."""
    rate = np.logspace(-3, -2, 3)[1]
    options = {"participation": np.float64(0.7), "local": LocalTraining(batch_size=16, lr=rate)}
    done = fit(tmp_path, create(FedAdam(server_lr=rate), **options), 1)
    done.save_checkpoint(tmp_path / "sweep.ckpt")
    loaded = Federation.load_from_checkpoint(tmp_path / "sweep.ckpt")
    assert (loaded.algorithm.server_lr, loaded.local.lr) == (rate, rate)
    fit(tmp_path, loaded, 2, ckpt_path=tmp_path / "sweep.ckpt")
    assert len(loaded.history) == 2


def test_a_checkpoint_chooses_no_module_to_import(tmp_path, monkeypatch):
    """Neither by its method nor by its networks, from whatever folder Python imports."""
    name = "tests.models.own_networks.TinyNet"
    federation = create(clients={name: 2}, model_options={})
    done = fit(tmp_path, federation, 1)
    done.save_checkpoint(tmp_path / "own.ckpt")
    inputs = FewDigits().test().inputs
    loaded = Federation.load_from_checkpoint(tmp_path / "own.ckpt")
    assert torch.equal(loaded(inputs), federation.eval()(inputs))
    monkeypatch.delitem(sys.modules, "tests.models.own_networks")
    with pytest.raises(ConfigurationError, match="whose module is not imported"):
        Federation.load_from_checkpoint(tmp_path / "own.ckpt")
    assert "tests.models.own_networks" not in sys.modules


def test_an_object_that_a_checkpoint_cannot_give_is_passed(tmp_path):
    @dataclass(frozen=True)
    class Scaled(FedAvg):
        """A method of the user, with an option that is no plain value."""

        factor: object = None

    done = fit(tmp_path, create(Scaled(factor=torch.ones(2))), 1)
    done.save_checkpoint(tmp_path / "own.ckpt")
    with pytest.raises(ConfigurationError, match=r"does not hold tensor\(.*algorithm="):
        Federation.load_from_checkpoint(tmp_path / "own.ckpt")
    mine = Scaled()
    assert Federation.load_from_checkpoint(tmp_path / "own.ckpt", algorithm=mine).algorithm is mine


# --- fast_dev_run, early stopping ------------------------------------------------------------


def test_fast_dev_run_is_fast_and_leaves_nothing(tmp_path):
    federation = create(
        FedAUX(privacy=Privacy(None)), pretraining=Pretraining(epochs=10_000, batch_size=20)
    )
    quick = pl.Trainer(fast_dev_run=True, default_root_dir=tmp_path, **QUIET)
    quick.fit(federation, datamodule=split())
    assert len(federation.history) == 1
    assert not list(tmp_path.rglob("*"))  # no cache either: clients release heads of 64 samples
    secret = create(FedAUX(privacy=Privacy(secret=True)))
    with pytest.raises(
        ConfigurationError, match=r"cost privacy: set algorithm\.privacy\.secret to f"
    ):
        pl.Trainer(fast_dev_run=True, default_root_dir=tmp_path, **QUIET).fit(
            secret, datamodule=split()
        )


def test_stopping_on_validation_data(tmp_path):
    stop = EarlyStopping("val/accuracy", mode="max", patience=1, min_delta=2.0)  # never improves
    federation = create()
    source = FewDigits(train=200)
    data = split(private=source, validation_fraction=0.25)
    done = trainer(tmp_path, 9, logger=False, callbacks=[stop], enable_checkpointing=False)
    done.fit(federation, datamodule=data)
    assert len(federation.history) == 2
    assert federation.history[-1]["val/accuracy"] == done.callback_metrics["val/accuracy"]
    assert "accuracy" not in federation.history[-1]
    assert {"val/averaged_accuracy/resnet8", "val/class_accuracy/0"} <= federation.history[
        -1
    ].keys()
    [metrics] = done.test(federation, datamodule=data, verbose=False)
    assert "accuracy" in metrics


def test_the_best_round_on_validation_data_and_the_last_are_tested(tmp_path, capsys):
    root = f"--trainer.default_root_dir={tmp_path}"
    options = [
        "--model.clients={resnet8: 2}",
        "--model.model_options={width: 0.125}",
        "--data.alpha=1",
    ]
    options += ["--data.private=tests.federations.FewDigits", "--data.validation_fraction=0.25"]
    options += ["--trainer.accelerator=cpu", "--trainer.max_epochs=3"]
    assert main(["fit", "--config=methods/fedavg", root, *options]) == 0
    [folder] = (tmp_path / "runs").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds"] == 3
    best = torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)["federation"]
    last = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    measured = [entry["val/accuracy"] for entry in last["federation"]["history"]]
    [known] = [state for name, state in last["callbacks"].items() if "BestCheckpoint" in name]
    assert known["best_model_score"] == max(measured)  # or a resumed run would replace it
    assert summary["best_val_accuracy"] == max(measured)
    assert summary["test"]["round"] == len(best["history"]) == measured.index(max(measured)) + 1
    again = Federation.load_from_checkpoint(folder / "checkpoints" / "best.ckpt")
    test = FewDigits().test()
    accuracy = (again(test.inputs).argmax(dim=1) == test.targets).float().mean().item()
    assert summary["test"]["accuracy"] == pytest.approx(accuracy)
    headline = [summary[name] for name in ("accuracy", "accuracy_of", "accuracy_round")]
    assert headline == [summary["test"]["accuracy"], "test", summary["test"]["round"]]
    assert list(summary)[3] == "accuracy"
    latest = Federation.load_from_checkpoint(folder / "checkpoints" / "last.ckpt")
    after = (latest(test.inputs).argmax(dim=1) == test.targets).float().mean().item()
    assert summary["last_test"]["accuracy"] == pytest.approx(after)
    assert summary["last_test"]["round"] == 3
    printed = capsys.readouterr().out
    assert f"validation accuracy {measured[-1]:.1%} (best over rounds on the validation" in printed
    assert f"of round {len(best['history'])}: {accuracy:.1%}" in printed
    assert main(["validate", f"--ckpt_path={folder}/checkpoints/best.ckpt"]) == 0
    assert f"validation accuracy {max(measured):.2%}" in capsys.readouterr().out
