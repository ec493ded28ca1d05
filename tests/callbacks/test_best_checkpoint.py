"""The best round on validation data is not forgotten."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedaux_pl.callbacks.best_checkpoint import BestCheckpoint


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
