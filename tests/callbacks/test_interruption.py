"""What is said after Ctrl-C."""

import signal

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from fedaux_pl.algorithms import FedAvg
from fedaux_pl.callbacks import FederationReport
from tests.federations import create, fit


class Interrupt(pl.Callback):
    """Ctrl-C in the middle of a round."""

    def __init__(self, round_):
        self.round = round_

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch + 1 == self.round:
            raise KeyboardInterrupt


def interrupted(root, round_, run="run", folder=None, checkpoints=True, **options):
    """The line of an interrupted run about its resumption, and its last checkpoint."""
    every_round = {"every_n_epochs": 1, "save_on_train_epoch_end": True}
    saved = ModelCheckpoint(root / run, "last", **every_round) if checkpoints else None
    report = FederationReport(images=False)
    report.folder = folder
    callbacks = [report, Interrupt(round_), *filter(None, [saved])]
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            fit(
                root,
                create(FedAvg()),
                4,
                callbacks=callbacks,
                enable_checkpointing=checkpoints,
                **options,
            )
    finally:
        signal.signal(signal.SIGINT, handler)
    return root / run / "last.ckpt"


def lines_about_resumption(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if "resume" in line]


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_after_ctrl_c_python_is_told_how_to_resume(tmp_path, capsys):
    checkpoint = interrupted(tmp_path, 3)
    call = f'trainer.fit(federation, datamodule=data, ckpt_path="{checkpoint}")'
    [line] = lines_about_resumption(capsys)
    assert line == f"interrupted after round 2: resume with {call}"
    # again, before the next checkpoint
    interrupted(tmp_path, 3, checkpoints=False, ckpt_path=checkpoint)
    assert lines_about_resumption(capsys) == [line]


@pytest.mark.parametrize(
    ("folder", "checkpoints", "options"),
    [
        # not "last", which needs the same default_root_dir, and may be another run by then
        ("runs/A", "runs/A/checkpoints", "--ckpt_path {folder}"),
        ("my runs/A", "my runs/A/checkpoints", "--ckpt_path '{folder}'"),
        ("runs/A", "runs/A/others", "--ckpt_path {checkpoint}"),
        ("runs/A", "elsewhere", "--config {folder}/config.yaml --ckpt_path {checkpoint}"),
    ],
)
def test_after_ctrl_c_the_whole_command_to_resume_is_printed(
    folder, checkpoints, options, tmp_path, capsys
):
    run = tmp_path / folder
    run.mkdir(parents=True)
    checkpoint = interrupted(tmp_path, 2, run=checkpoints, folder=run)
    command = f"fedaux-pl fit {options}".format(folder=run, checkpoint=checkpoint)
    assert lines_about_resumption(capsys) == [f"interrupted after round 1: resume with {command}"]


def test_without_a_checkpoint_nothing_is_promised(tmp_path, capsys):
    interrupted(tmp_path, 1)
    interrupted(tmp_path, 2, checkpoints=False)
    assert lines_about_resumption(capsys) == []
