"""The best round on validation data is not forgotten."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedaux_pl.callbacks.best_checkpoint import BestCheckpoint
from fedaux_pl.cli import verbs
from fedaux_pl.errors import ConfigurationError
from tests.command_line import command
from tests.federation.test_checks import Logs
from tests.federation.test_given_clients import NamedWards
from tests.federations import create, fit, split

NAMES = ("best", "last")


def saved(folder, score):
    """The state of a callback that has kept a round with this accuracy."""
    folder.mkdir()
    best = BestCheckpoint(dirpath=folder)
    path = str(folder / "best.ckpt")
    Path(path).touch()
    best.best_model_path = best.kth_best_model_path = path
    best.best_model_score = best.kth_value = torch.tensor(score)
    best.best_k_models = {path: torch.tensor(score)}
    return best.state_dict()


def replaces(best, score):
    """Whether a round with this accuracy is saved."""
    alone = SimpleNamespace(reduce_boolean_decision=lambda decision: decision)
    return best.check_monitor_top_k(SimpleNamespace(strategy=alone), torch.tensor(score))


def restored(folder, state):
    best = BestCheckpoint(dirpath=folder)
    best.load_state_dict(state)
    return best


def test_the_best_round_of_a_moved_run_is_known(tmp_path):
    state = saved(tmp_path / "old", 0.9)
    shutil.move(tmp_path / "old", tmp_path / "new")
    best = restored(tmp_path / "new", state)
    assert best.best_model_path == str(tmp_path / "new" / "best.ckpt")
    assert not replaces(best, 0.8)
    assert replaces(best, 0.95)


def test_the_best_round_of_another_folder_stays_there(tmp_path):
    """A Trainer that resumes writes to another folder if its logger has a new version."""
    state = saved(tmp_path / "version_0", 0.9)
    best = restored(tmp_path / "version_1", state)
    assert best.best_model_path == str(tmp_path / "version_0" / "best.ckpt")
    assert not replaces(best, 0.8)


def test_a_lost_best_round_is_replaced(tmp_path):
    state = saved(tmp_path / "old", 0.9)
    shutil.rmtree(tmp_path / "old")
    with pytest.warns(match="dirpath has changed"):
        best = restored(tmp_path / "new", state)
    assert replaces(best, 0.8)


@pytest.mark.parametrize(
    ("monitor", "mode"), [("val/mean_client/accuracy", "max"), ("val/ece", "min")]
)
@pytest.mark.usefixtures("without_figures")
def test_the_command_line_chooses_by_another_metric(monitor, mode, tmp_path):
    options = ["--model.metrics=[ece]", "--model.clients={resnet8: 3}", "--model.algorithm=FedAvg"]
    options += ["--model.model_options={width: 0.125}", "--seed_everything=4"]
    options += ["--data.private=tests.federation.test_given_clients.NamedWards"]
    options += ["--data.validation_fraction=0.25", "--trainer.max_epochs=4"]
    options += ["--trainer.callbacks=BestCheckpoint", f"--trainer.callbacks.monitor={monitor}"]
    options += [f"--trainer.callbacks.mode={mode}"]
    _, *args = command("fit", tmp_path, *options)
    verbs.fit(args)
    [path] = tmp_path.rglob("best.ckpt")
    best, last = (torch.load(path.with_name(f"{n}.ckpt"), weights_only=True) for n in NAMES)
    history = last["federation"]["history"]
    measured = [entry[monitor] for entry in history]
    chosen = measured.index((max if mode == "max" else min)(measured))
    assert len(best["federation"]["history"]) == chosen + 1
    accuracies = [entry["val/accuracy"] for entry in history]
    assert accuracies[chosen] < max(accuracies)  # which would have been chosen by default


@pytest.mark.parametrize("monitor", ["val/acc", "val/mean_client/accuracy"])
def test_a_metric_that_is_not_logged_is_refused(monitor, tmp_path):
    """Clients of a Dirichlet split have no metrics of their own."""
    best, data = BestCheckpoint(monitor, dirpath=tmp_path), split(validation_fraction=0.25)
    expected = f"got {monitor}; expected one of val/accuracy, val/accuracy/resnet8, client_loss"
    with pytest.raises(ValueError, match=expected):
        fit(tmp_path, create(), 1, data, callbacks=[best], enable_checkpointing=True)
    with pytest.raises(
        ConfigurationError, match=f"got monitor {monitor}, .* client_loss/mean, own, val/acc"
    ):
        fit(tmp_path, create(), 1, data, callbacks=[best, Logs()], enable_checkpointing=True)


def test_a_metric_of_no_validation_data_is_refused(tmp_path):
    best, data = BestCheckpoint("val/mean_client/accuracy"), split(private=NamedWards())
    with pytest.raises(ValueError, match=r"set data\.validation_fraction, e\.g\. to 0\.1"):
        fit(tmp_path, create(), 1, data, callbacks=[best], enable_checkpointing=True)
