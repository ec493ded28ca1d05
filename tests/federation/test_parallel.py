"""The result of a federation does not depend on how many processes share it."""

import math
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy

from fedaux_pl import processes
from fedaux_pl.cli import verbs as commands
from fedaux_pl.cli.entry import main
from fedaux_pl.engine import ClientParallel
from fedaux_pl.engine.strategy import processes_of
from tests.cli.test_cli import tiny, weights
from tests.federations import assert_same
from tests.parallel import SCENARIOS, launch

TENSORS = ("weights", "h0", "heads", "optimizers", "kept")


def assert_identical(one, other):
    """Equal bit for bit."""
    for part in TENSORS:
        assert_same(one[part], other[part])
    assert one["measured"] == other["measured"]


def files(folder):
    return {path.name for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ((1, 2), ("Scaffold", "Centralized", "own", "vote", "FedAUX")),
        pytest.param((1, 2, 3), tuple(SCENARIOS), marks=pytest.mark.nightly),
    ],
)
def test_any_number_of_processes_gives_the_result_of_one(tmp_path, sizes, names):
    """And so do runs that are resumed in another number of them."""
    plain = {name: (name, None) for name in names}

    def resumed(size, file="rank 0/epoch=0.ckpt"):
        return {"resumed": ("FedAUX", tmp_path / str(size) / "FedAUX" / file)}

    [alone] = launch(1, tmp_path / "1", plain)
    for before, size in pairwise(sizes):
        jobs = plain | resumed(before)
        results = launch(size, tmp_path / str(size), jobs)
        for name in plain:
            assert_identical(results[0][name], alone[name])
        assert_identical(results[0]["resumed"], alone["FedAUX"])
        for rank in range(1, size):
            for name in jobs:
                assert_identical(results[rank][name], results[0][name])
                assert results[rank][name]["history"] == results[0][name]["history"]  # timings too
                assert not files(tmp_path / str(size) / name / f"rank {rank}")
        for name in plain:
            assert files(tmp_path / str(size) / name) == files(tmp_path / "1" / name)
    [back] = launch(1, tmp_path / "back", resumed(2))
    assert_identical(back["resumed"], alone["FedAUX"])

    # what was compared is not trivial
    fedaux = alone["FedAUX"]
    assert len(fedaux["heads"]) == 6
    assert len(alone["Centralized"]["optimizers"]) > 50
    assert len(alone["Scaffold"]["kept"]) > 100  # c of two architectures, c_i of the clients
    assert "client_accuracy/north" in alone["own"]["measured"][-1]
    assert fedaux["measured"][-1]["memory/clients"] == 6  # 3 of them absent
    assert {"curve.csv", "summary.json", "epoch=0.ckpt"} <= files(tmp_path / "1" / "FedAUX")
    assert all(math.isfinite(v) for entry in fedaux["measured"] for v in entry.values())


def test_the_command_line_starts_its_processes(tmp_path, monkeypatch):
    """With two devices by Lightning's launcher, and with the threads of one; ddp shares clients."""
    script = tmp_path / "fedaux-pl"
    script.write_text("import sys\nfrom fedaux_pl.cli.entry import main\nsys.exit(main())\n")
    more = ["--model.algorithm=FedAvg", "--trainer.max_epochs=1"]
    two = ["--trainer.devices=2", "--trainer.strategy=ddp"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("OMP_NUM_THREADS", None)
    ended = subprocess.run(
        [sys.executable, script, *tiny("fit", tmp_path / "two", *more, *two)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("FedAvg after 1 round") == 1
    assert ended.stdout.count("what leaves a client") == 1
    assert ended.stdout.count("client_parallel runs in its place") == 1
    monkeypatch.setattr(processes, "_OMP_NUM_THREADS", None)
    torch.set_num_threads(2)
    assert main(tiny("fit", tmp_path / "one", *more)) == 0
    assert torch.get_num_threads() == 2
    for config in tmp_path.rglob("config.yaml"):
        assert yaml.safe_load(config.read_text())["model"]["threads"] == 1
    assert_same(weights(tmp_path / "two"), weights(tmp_path / "one"))
    events = "events.out.tfevents"
    names = [
        sorted(name for name in files(tmp_path / folder) if not name.startswith(events))
        for folder in ("one", "two")
    ]
    assert names[0] == names[1]
    assert len(list((tmp_path / "two").rglob(f"{events}*"))) == 1


@pytest.mark.parametrize(
    ("options", "strategy"),
    [
        ("--trainer.devices=1", SingleDeviceStrategy),
        ("--trainer.devices=2", ClientParallel),
        ("--trainer.devices=auto", ClientParallel),
        ("--trainer.strategy=ddp", ClientParallel),
    ],
)
def test_several_devices_use_the_strategy_client_parallel(tmp_path, options, strategy):
    cli = commands.FederationCLI("fit", tiny("fit", tmp_path, options)[1:])
    assert type(cli.trainer.strategy) is strategy


@pytest.mark.parametrize(("processes", "stage"), [(2, "predict"), (1, "fit")])
def test_another_strategy_is_refused(processes, stage):
    state = SimpleNamespace(fn=stage)
    trainer = SimpleNamespace(world_size=processes, strategy=DDPStrategy(), state=state)
    with pytest.raises(ValueError, match=r"got DDPStrategy; .* strategy='client_parallel'"):
        processes_of(trainer)
    alone = SimpleNamespace(fn="predict")  # one process may predict with any strategy
    options = {"global_rank": 0, "strategy": SimpleNamespace(root_device="cpu"), "state": alone}
    assert processes_of(SimpleNamespace(world_size=1, **options)).world_size == 1
