"""The package works with ``pytorch_lightning`` and with ``lightning.pytorch``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedaux_pl import FedAUX
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.lightning import PACKAGE, VARIABLE, choose_package, pl
from fedaux_pl.runs.config_files import complete_configs
from tests.command_line import command
from tests.federations import assert_same, create, fit, weights

ROOT = Path(__file__).parents[1]


def run_python(*arguments, **environment):
    """Run Python in a process that has not chosen a package yet."""
    inherited = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=inherited | {"PYTHONPATH": str(ROOT)} | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks")
def test_modules_and_federations_run_under_lightning_and_checkpoints_move_between_both(tmp_path):
    here, there = tmp_path / "pytorch_lightning", tmp_path / "lightning"
    every_round = pl.callbacks.ModelCheckpoint(here, filename="{epoch}", save_top_k=-1)
    whole = create(FedAUX())
    fit(tmp_path, whole, rounds=2, callbacks=[every_round], enable_checkpointing=True)

    process = run_python("-m", "tests.under_lightning", tmp_path)

    assert process.returncode == 0, process.stderr
    found = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert_same(found["whole"], weights(whole))
    assert_same(found["resumed"], weights(whole))
    resumed = create(FedAUX())
    fit(tmp_path, resumed, rounds=2, ckpt_path=there / "epoch=0.ckpt")
    assert_same(weights(resumed), weights(whole))


def test_the_command_line_runs_under_lightning(tmp_path):
    script = "from fedaux_pl.cli import main; main()"
    arguments = command("fit", tmp_path, "--trainer.max_epochs=1")

    process = run_python("-c", script, *arguments, **{VARIABLE: "lightning.pytorch"})

    assert process.returncode == 0, process.stderr
    [config] = tmp_path.glob("runs/*/config.yaml")
    assert config.read_text().splitlines()[1].startswith("# lightning.pytorch==")


def test_a_configuration_of_the_other_package_is_refused(tmp_path):
    path = tmp_path / "other.yaml"
    path.write_text("trainer:\n  logger:\n    class_path: lightning.pytorch.loggers.CSVLogger\n")
    expected = r"names classes of lightning\.pytorch, and this process uses pytorch_lightning: set"
    with pytest.raises(ConfigurationError, match=expected):
        complete_configs([f"--config={path}"])


@pytest.mark.parametrize(
    ("first", "second"),
    [("pytorch_lightning", "lightning.pytorch"), ("lightning.pytorch", "pytorch_lightning")],
)
def test_a_trainer_of_the_other_package_says_why_it_refuses_a_module(first, second):
    script = f"""
import {first}
import fedaux_pl.lightning
import {second}
from fedaux_pl import SimCLR
try:
    {second}.Trainer(logger=False).fit(SimCLR("resnet8"), [])
except TypeError as error:
    print(error)
"""
    process = run_python("-c", script)

    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == (
        f"model: got a SimCLR that was made for {first}, and a Trainer of {second}: "
        f"import {second} before fedaux_pl, or set {VARIABLE}={second}"
    )


def test_the_variable_decides_then_what_is_imported(monkeypatch):
    assert os.environ[VARIABLE] == PACKAGE  # so that child processes use the same package
    monkeypatch.setenv(VARIABLE, "lightning.pytorch")
    assert choose_package() == "lightning.pytorch"
    monkeypatch.delenv(VARIABLE)
    monkeypatch.delitem(sys.modules, "lightning.pytorch", raising=False)
    monkeypatch.setitem(sys.modules, "lightning", pytest)  # alone it decides nothing
    assert choose_package() == "pytorch_lightning"
    monkeypatch.setitem(sys.modules, "lightning.pytorch", pytest)
    assert choose_package() == "lightning.pytorch"


def test_an_unknown_package_is_refused(monkeypatch):
    monkeypatch.setenv(VARIABLE, "lightning")
    with pytest.raises(ImportError, match="got 'lightning'; expected pytorch_lightning or light"):
        choose_package()
