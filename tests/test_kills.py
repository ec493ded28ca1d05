"""Some kills, and two runs at once; ``python -m tests.kills`` does a hundred kills."""

import json
import random

import pytest
import torch

from fedaux_pl.engine.checkpoints import load_checkpoint
from tests.kills import ROUNDS, Killer, kill_runs, prepare, print_table


@pytest.mark.parametrize("count", [1, pytest.param(5, marks=pytest.mark.nightly)])
def test_killed_runs_resume_to_the_same_weights(tmp_path, count):
    killer = kill_runs(count, seed=0, folder=tmp_path, kinds=("fit",))
    print_table(killer)
    assert killer.kills.total() == count


def test_two_runs_that_start_together_share_what_they_prepare(tmp_path):
    """The second waits for the first and uses what it has stored; both have a folder."""
    folder, killer = prepare(tmp_path / "both"), Killer(random.Random(0))
    runs = [killer.start(folder, "fit")[0] for _ in range(2)]
    for run in runs:
        run.join(300)
    printed = (folder / "log.txt").read_text()
    assert [run.exitcode for run in runs] == [0, 0], printed[-3000:]
    paths = sorted((folder / "logs").rglob("last.ckpt"))
    folders = [path.parents[1] for path in paths]
    names = ["FedAUX-FewDigits-alpha1-seed0", "FedAUX-FewDigits-alpha1-seed0-2"]
    assert folders == [folder / "logs" / "runs" / name for name in names]
    for own in folders:
        assert {"config.yaml", "summary.json", "curve.csv"} <= {path.name for path in own.iterdir()}
        assert json.loads((own / "summary.json").read_text())["rounds"] == ROUNDS
        assert printed.count(f"checkpoint: {own}\n") == 1
    one, other = (load_checkpoint(path) for path in paths)
    assert all(torch.equal(v, other["state_dict"][k]) for k, v in one["state_dict"].items())
