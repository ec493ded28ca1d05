"""Every run has a folder of its own, whatever its logger and whatever else runs."""

import errno
import os
import signal
import threading
from types import SimpleNamespace

import pytest
import torch
import yaml
from PIL import Image
from pytorch_lightning.cli import LightningArgumentParser
from tensorboard.summary.writer.record_writer import RecordWriter

from fedaux_pl.algorithms import FedAvg
from fedaux_pl.cli import entry
from fedaux_pl.cli.entry import main
from fedaux_pl.data import Digits, FederatedDataModule, ImageFolder
from fedaux_pl.engine import StageRunner
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.files import locked
from fedaux_pl.runs import parser
from fedaux_pl.runs.finished_runs import Run
from fedaux_pl.runs.run_folder import RunFolder, run_name
from tests.cli.test_cli import status
from tests.federations import assert_same

pytestmark = pytest.mark.usefixtures("without_figures")
CONFIG = """
trainer: {accelerator: cpu, max_epochs: 2, enable_progress_bar: false}
model:
  algorithm: FedAvg
  clients: {resnet8: 2}
  local: {batch_size: 32}
  distillation: {batch_size: 32}
  pretraining: {epochs: 1, batch_size: 20}
  model_options: {width: 0.125}
data:
  private: tests.federations.FewDigits
  auxiliary: tests.federations.FewDigits
  alpha: 1.0
"""
NAMES = ("FedAvg-FewDigits-alpha1-seed0", "FedAvg-FewDigits-alpha1-seed0-2")
FILES = {"config.yaml", "summary.json", "curve.csv", "checkpoints/last.ckpt"}


@pytest.fixture
def command(tmp_path):
    """The command line of a verb in one root."""
    (tmp_path / "config.yaml").write_text(CONFIG)

    def create(verb, *more):
        root = f"--trainer.default_root_dir={tmp_path / 'logs'}"
        return [verb, f"--config={tmp_path / 'config.yaml'}", root, *more]

    return create


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "logs" / "runs"


def contents(folder):
    """All files below a folder with their content and time."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def load(folder):
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


# --- folders that cannot be written ---------------------------------------------------------------


def test_a_folder_that_cannot_be_written_names_its_option(command, tmp_path, capsys):
    (tmp_path / "logs").write_text("a file")
    assert main(command("fit")) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"Not a directory: '{tmp_path / 'logs' / 'runs'}': nothing can be written" in last
    assert f"to trainer.default_root_dir, which is {tmp_path / 'logs'}; make room, or" in last


def test_a_full_disk_is_one_line_without_the_traceback_of_a_thread(command, monkeypatch, capsys):
    def fail(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    failures = []
    for owner, name in ((threading, "excepthook"), (parser, "_print_failure")):
        monkeypatch.setattr(owner, name, failures.append, raising=False)
    monkeypatch.setattr(RecordWriter, "write", fail)
    assert main(command("fit")) == 1
    assert "No space left on device: nothing can be written to trainer.d" in capsys.readouterr().err
    assert failures == []
    thread = threading.Thread(target=fail, args=(None, None))  # of others they are printed
    thread.start()
    thread.join()
    assert len(failures) == 1


def test_a_run_is_named_after_its_folder_of_images(tmp_path):
    summaries = []
    for name in ("birds", "dogs"):
        for label in "ab":
            (tmp_path / name / label).mkdir(parents=True)
            for i in range(4):
                Image.new("L", (8, 8), 30 * i).save(tmp_path / name / label / f"{i}.png")
        source = ImageFolder(tmp_path / name, size=8, channels=1, test_fraction=0.2)
        data = FederatedDataModule(source, Digits("auxiliary"), num_clients=2)
        data.setup()
        run = SimpleNamespace(data=data, algorithm=FedAvg(), seed=0)
        assert run_name(run) == f"FedAvg-{name}-alpha0.01-seed0"
        summaries.append(Run("run", [], {"data": data.data_name}).data)
    assert summaries == ["birds + Digits", "dogs + Digits"]


def test_given_clients_are_counted_and_a_folder_of_training_images_is_not_the_name(tmp_path):
    folder = tmp_path / "photos" / "train"
    for client in ("north", "south"):
        for label in "ab":
            (folder / client / label).mkdir(parents=True)
            for i in range(4):
                Image.new("L", (8, 8), 30 * i).save(folder / client / label / f"{i}.png")
    options = {"size": 8, "channels": 1, "test_fraction": 0.2, "clients": "first_level"}
    for name, expected in ((None, "photos"), ("My wards", "My wards")):
        source = ImageFolder(folder, **options)
        data = FederatedDataModule(source, Digits("auxiliary"), name=name)
        data.setup()
        run = SimpleNamespace(data=data, algorithm=FedAvg(), seed=0)
        assert run_name(run) == f"FedAvg-{expected.replace(' ', '_')}-2-clients-seed0"
        assert data.data_name == f"{expected} + Digits"


def test_a_name_of_nothing_is_refused():
    with pytest.raises(ValueError, match="name: got ' '; expected to be a name or null"):
        FederatedDataModule(Digits(), name=" ")


# --- any logger ----------------------------------------------------------------------------------


def test_another_logger(command, runs, tmp_path):
    """The next run overwrites nothing, and a resumed one finds its folder."""
    more = ["--trainer.logger=CSVLogger", f"--trainer.logger.save_dir={tmp_path / 'elsewhere'}"]
    assert main(command("fit", *more, "--trainer.max_epochs=1")) == 0
    first = contents(runs / NAMES[0])
    assert first.keys() >= FILES
    assert main(command("fit", *more)) == 0
    assert contents(runs / NAMES[0]) == first
    assert contents(runs / NAMES[1]).keys() >= FILES
    assert len(load(runs / NAMES[1])["federation"]["history"]) == 2

    path = runs / NAMES[0] / "checkpoints" / "last.ckpt"
    assert main(command("fit", *more, f"--ckpt_path={path}")) == 0
    assert len(load(runs / NAMES[0])["federation"]["history"]) == 2
    assert sorted(path.name for path in runs.iterdir()) == [*NAMES]
    assert {path.name for path in (tmp_path / "logs").iterdir()} <= {"runs", "cache"}
    written = (tmp_path / "elsewhere").rglob("metrics.csv")
    assert len(list(written)) == 3  # where the logger puts its own


# --- starts that fail ----------------------------------------------------------------------------


def test_a_refused_resume_changes_nothing(command, runs, capsys):
    assert main(command("fit", "--trainer.max_epochs=1")) == 0
    before = contents(runs)
    with locked(runs / NAMES[0] / ".lock"):  # as a process that still runs holds it
        assert main(command("fit", "--ckpt_path=last")) == 1
    assert f"another process still runs in {runs / NAMES[0]}: wait" in capsys.readouterr().err
    assert contents(runs) == before
    assert main(command("fit", "--ckpt_path=last", "--model.participation=0.9")) == 1
    assert "participation = 0.4, but this run asks for 0.9" in capsys.readouterr().err
    assert contents(runs) == before
    assert main(command("fit", "--ckpt_path=last")) == 0
    settings = yaml.safe_load((runs / NAMES[0] / "config.yaml").read_text())
    assert settings["trainer"]["max_epochs"] == 2


def test_a_failed_start_leaves_no_folder(command, runs, monkeypatch):
    assert main(command("fit", "--data.auxiliary=null", "--model.algorithm=FedDF")) == 1
    assert not runs.exists()

    def fail(*args):
        raise ConfigurationError("no room for the heads")

    monkeypatch.setattr("fedaux_pl.federation.federation.Federation.prepare", fail)
    assert main(command("fit")) == 1
    assert list(runs.iterdir()) == []


def test_the_next_run_removes_what_killed_ones_were_writing(command, runs):
    """Except in the folder of a run that still runs."""
    for number in range(2):
        scratch = runs / NAMES[number] / "checkpoints" / ".last.ckpt.0123456789abcdef.part"
        scratch.parent.mkdir(parents=True)
        scratch.write_bytes(b"half")
    with locked(runs / NAMES[1] / ".lock"):
        assert main(command("fit", "--trainer.max_epochs=1")) == 0
    assert [path.parents[1].name for path in runs.rglob("*.part")] == [NAMES[1]]


# --- --ckpt_path last without a checkpoint -------------------------------------------------------


def test_last_without_a_checkpoint_begins(command, runs, capsys, tmp_path):
    """A job that was requeued before its first round ended has the same command line."""
    for verb in ("validate", "test"):
        assert main(command(verb, "--ckpt_path=last")) == 1
        assert "there is no last.ckpt below" in capsys.readouterr().err
    predict = ["predict", "--ckpt_path=last", f"--root={tmp_path}", "--images=nowhere"]
    assert main(predict) == 1
    assert "there is no last.ckpt below" in capsys.readouterr().err
    for rounds in (1, 2):
        more = f"--trainer.max_epochs={rounds}"
        assert main(command("fit", "--ckpt_path=last", more)) == 0
        says = f"there is no last.ckpt below {runs.parent} to resume: a new run begins"
        assert (says in capsys.readouterr().out) is (rounds == 1)
        assert len(load(runs / NAMES[0])["federation"]["history"]) == rounds
    assert [path.name for path in runs.iterdir()] == [NAMES[0]]


def test_a_checkpoint_callback_of_the_user_is_beside_ours(command, runs):
    every = ["--trainer.callbacks=ModelCheckpoint", "--trainer.callbacks.save_top_k=-1"]
    assert main(command("fit", *every)) == 0
    names = {path.name for path in (runs / NAMES[0] / "checkpoints").iterdir()}
    assert names == {"epoch=0-step=1.ckpt", "epoch=1-step=2.ckpt", "last.ckpt"}


def test_a_run_that_slurm_requeues_keeps_its_folder(command, runs, tmp_path, monkeypatch, capsys):
    """SIGUSR1 within round 2: Lightning saves hpc_ckpt_1.ckpt and requeues the job.

    The SIGTERM that follows does not interrupt that; the run ends after the round.
    """
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" > {tmp_path / "requeued"}\n')
    (tmp_path / "scontrol").chmod(0o755)
    slurm = {"JOB_ID": "7", "NTASKS": "1", "JOB_NAME": "x", "PROCID": "0", "LOCALID": "0"}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURM_NODELIST", "localhost")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    train, calls, fit = StageRunner.run_all, [], command("fit", "--trainer.max_epochs=3")

    def interrupted(*args, **kwargs):
        result = train(*args, **kwargs)
        calls.append(1)
        if len(calls) == 2:  # clients of round 2 are trained
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGTERM)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(StageRunner, "run_all", interrupted)
        assert status(fit) == 143
    says = "interrupted after round 2: resume with fedaux-pl fit --ckpt_path "
    assert says in capsys.readouterr().out
    assert len(calls) == 2
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    assert (runs.parent / "hpc_ckpt_1.ckpt").is_file()
    assert main(fit) == 0
    assert [path.name for path in runs.iterdir()] == [NAMES[0]]
    for name in ("SLURM_NTASKS", "SLURM_JOB_ID"):
        monkeypatch.delenv(name)
    assert main(fit) == 0  # undisturbed
    assert_same(*(load(runs / NAMES[number])["state_dict"] for number in range(2)))


@pytest.fixture
def sigint():
    """Python's handler of Ctrl-C, also where a shell has started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint")
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_run_says_what_is_kept(command, number, expected, monkeypatch, capsys):
    train, handlers = StageRunner.run_all, [signal.getsignal(number)]
    fit = command("fit", "--model.algorithm.pretrained=true")
    calls = []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) in (1, 4):  # in the pre-training; in round 2, after both were repeated
            signal.raise_signal(number)
        return train(*args, **kwargs)

    monkeypatch.setattr(StageRunner, "run_all", interrupted)
    says = "interrupted in or before round 1, without a checkpoint: start again; finished pre-"
    for line in (says, "interrupted after round 1: resume with fedaux-pl fit --ckpt_path "):
        signal.signal(number, handlers[0])  # Lightning ignores Ctrl-C after the first
        assert status(fit) == expected
        assert line in capsys.readouterr().out
    signal.signal(number, handlers[0])
    assert len(calls) == 4


@pytest.mark.usefixtures("sigint")
def test_ctrl_c_in_the_first_seconds_gives_no_traceback(monkeypatch):
    def fit(_):
        signal.raise_signal(signal.SIGINT)  # while options are parsed

    def import_verbs(_):
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL  # the process would end
        return SimpleNamespace(fit=fit)

    monkeypatch.setattr(entry, "_import", import_verbs)
    assert main(["fit"]) == 130


def test_processes_that_found_other_checkpoints_are_refused():
    parser = LightningArgumentParser()
    trainer = SimpleNamespace(
        ckpt_path="runs/version_0/checkpoints/last.ckpt",
        strategy=SimpleNamespace(broadcast=lambda _: "runs/version_1/checkpoints/last.ckpt"),
    )
    with pytest.raises(ConfigurationError, match=r"resumes from .*version_1.* from .*version_0"):
        RunFolder(parser, None).on_fit_start(trainer, None)
