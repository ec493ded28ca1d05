import io
import os
import pickle
import re
import signal
import sys
import time
from copy import deepcopy
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import TQDMProgressBar
from torch.utils.data import DataLoader

from fedaux_pl.callbacks import progress
from fedaux_pl.callbacks.progress import FederationProgress, find_progress


class Terminal(io.StringIO):
    """A stderr that takes itself for a terminal."""

    def isatty(self):
        return True

    def drawn(self):
        """Every state that a line of the screen went through, in the order of time."""
        states = re.split(r"[\r\n]|\x1b\[A", self.getvalue())
        return [state.rstrip() for state in states if state.strip()]

    def screen(self):
        """The lines that are left, with the cursor's line as the last one."""
        lines, row, column = [""], 0, 0
        for char in re.findall(r"\x1b\[A|.", self.getvalue(), flags=re.DOTALL):
            if char == "\x1b[A":
                row = max(row - 1, 0)
            elif char == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            elif char == "\r":
                column = 0
            else:
                line = lines[row].ljust(column)
                lines[row] = line[:column] + char + line[column + 1 :]
                column += 1
        return [line.rstrip() for line in lines[: row + 1]]


@pytest.fixture
def terminal(monkeypatch):
    """A terminal on which every report is drawn, rather than a few in a second."""
    stream = Terminal()
    # The module's view of sys: pytest puts its own stderr back between a fixture and the test.
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    return stream


class Federation(pl.LightningModule):
    """Nothing is learnt; the accuracies are given."""

    accuracies = (0.5, 0.75, 0.625, 0.7, 0.8)

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.automatic_optimization = False

    def on_train_start(self):
        with find_progress(self.trainer).stage("pre-training", total=2, unit="epoch") as stage:
            stage.update(1, loss=torch.tensor(1.25))
            stage.update(1, loss=0.5)

    def training_step(self, batch, batch_idx):
        step = find_progress(self.trainer)
        with step.stage("clients", total=3, unit="client") as clients:
            for _ in range(3):
                with step.stage("batch", total=2) as batches:
                    batches.update(1, loss=0.125)
                    batches.update(1)
                clients.update()
        with step.stage("distillation", unit="batch") as stage:
            stage.update(7)

    def validation_step(self, batch, batch_idx):
        self.log("accuracy", self.accuracies[self.current_epoch])

    test_step = predict_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return DataLoader([0])

    val_dataloader = test_dataloader = train_dataloader


class Stopping(Federation):
    def on_train_epoch_end(self):
        self.trainer.should_stop = self.current_epoch == 1


def trainer_of(*callbacks, max_epochs=3, **options):
    return pl.Trainer(
        **{
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_model_summary": False,
            "max_epochs": max_epochs,
            "callbacks": list(callbacks),
            **options,
        }
    )


def rounds_of(terminal):
    return [state for state in terminal.drawn() if state.startswith("rounds")]


def lines_of(capsys):
    """What the callback wrote to stderr, without times and without Lightning's own messages."""
    out, err = capsys.readouterr()
    assert out == ""
    ours = [line for line in err.splitlines() if not re.search("Trainer|vailable|Tip", line)]
    return [re.sub(r"\d+\.\d s", "_ s", line) for line in ours]


def test_rounds_are_drawn_with_the_accuracy_so_far(terminal):
    trainer_of(FederationProgress()).fit(Federation())
    states = rounds_of(terminal)
    assert re.match(r"rounds:   0%\| +\| 0/3 \[00:00<\?, \?round/s\]$", states[0])
    first = next(state for state in states if "| 1/3 [" in state)
    assert first.startswith("rounds:  33%|")
    assert first.endswith(", accuracy 50.0 % (best 50.0 %)]")
    assert re.search(r"\| 3/3 \[.*round/s, accuracy 62\.5 % \(best 75\.0 %\)\]$", states[-1])
    bar, *below = terminal.screen()
    assert bar.startswith("rounds: 100%|")
    assert not any(below)  # only the rounds stay on the screen


def test_the_stage_is_drawn_beneath_the_rounds(terminal):
    trainer_of(FederationProgress(), max_epochs=1).fit(Federation())
    text = terminal.getvalue()
    assert re.search(r"\n\r?pre-training:  50%\|[^\r]*\| 1/2 \[[^\r]*epoch[^\r]*loss 1\.25\]", text)
    assert re.search(r"\| 2/2 \[[^\r]*loss 0\.5\]", text)
    assert re.search(r"\n\r?clients:  67%\|[^\r]*\| 2/3 \[", text)
    assert re.search(r"\n\r?distillation: 7 \[", text)
    order = [text.index(word) for word in ("rounds", "pre-training", "clients", "distillation")]
    assert order == sorted(order)


def test_a_nested_stage_is_a_note_on_the_outer_bar(terminal):
    callback = FederationProgress()
    with callback.stage("clients", total=3) as clients:
        clients.update(1, loss=0.25)
        with callback.stage("batch", total=50) as batches:
            batches.update(12, loss=1.5)
            drawn = terminal.drawn()[-1]
            with callback.stage("deeper", total=9) as deeper:
                deeper.update(9)
            batches.update(1)
        last = terminal.drawn()[-1]
        clients.update(1)
        after = terminal.drawn()[-1]
        with callback.stage("batch") as batches:
            batches.update(4)
            again = terminal.drawn()[-1]
    assert "| 1/3 [" in drawn
    assert drawn.endswith("loss 0.25, batch 12/50, loss 1.5]")
    assert last.endswith("loss 0.25, batch 13/50]")
    assert "| 2/3 [" in after
    assert "batch" not in after
    assert again.endswith("batch 4]")
    assert "deeper" not in terminal.getvalue()
    assert terminal.screen() == [""]


def test_a_nested_stage_without_a_total_is_shown_at_once(terminal):
    """What a GPU prepares is one long call, which reports nothing."""
    callback = FederationProgress()
    with callback.stage("clients", total=3):
        for name in ("preparing ResNet8: trial step", "preparing ResNet8: first step (8 x 32)"):
            with callback.stage(name):
                assert terminal.drawn()[-1].endswith(f"{name}]")


def test_nested_stages_of_long_stages_are_lines(monkeypatch, capsys):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    callback = FederationProgress()
    with callback.stage("clients", total=3):
        for name in ("first", "second", "third", "fourth", "fifth"):
            with callback.stage(name):
                clock[0] += 6
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["clients: third, 12 s", "clients: fifth, 24 s", "clients: 30.0 s"]


def test_preparation_is_not_time_per_round(terminal, monkeypatch):
    callback, times = FederationProgress(), []
    monkeypatch.setattr(Federation, "on_train_start", lambda self: times.append(time.time()))
    monkeypatch.setattr(
        Federation, "training_step", lambda self, *_: times.append(callback._rounds.start_t)
    )
    trainer_of(callback, max_epochs=2).fit(Federation())
    prepared, began, *_ = times
    assert began >= prepared


def test_the_clock_of_the_rounds_moves_with_a_stage(terminal, monkeypatch):
    drawn = []

    def work(self, *_):
        with find_progress(self.trainer).stage("stage", total=2) as stage:
            before = len(rounds_of(terminal))
            stage.update()
            drawn.append(len(rounds_of(terminal)) - before)

    monkeypatch.setattr(Federation, "on_train_start", work)
    monkeypatch.setattr(Federation, "training_step", work)
    trainer_of(FederationProgress(), max_epochs=2).fit(Federation())
    assert drawn == [0, 1, 1]  # but not in the preparation


def test_what_is_logged_after_the_last_round_has_its_own_line(terminal, monkeypatch):
    lines = []
    monkeypatch.setattr(
        Federation, "on_train_epoch_end", lambda self: lines.append(terminal.screen()[-1])
    )
    trainer_of(FederationProgress(), max_epochs=2).fit(Federation())
    assert lines[0].startswith("rounds:  50%")
    assert lines[1] == ""


@pytest.fixture(
    scope="module", params=["on_train_batch_end", "on_validation_end", "on_train_epoch_end"]
)
def checkpoint(request, tmp_path_factory):
    """Of two rounds, at a point where Lightning counts both, or one, or both again."""
    path = tmp_path_factory.mktemp("resumed") / "last.ckpt"
    saver = pl.Callback()
    setattr(saver, request.param, lambda trainer, *_: trainer.save_checkpoint(path))
    options = {"enable_progress_bar": False, "num_sanity_val_steps": 0}
    trainer_of(saver, max_epochs=2, **options).fit(Federation())
    return path


def test_a_resumed_run_starts_where_it_stopped(terminal, checkpoint):
    callback = FederationProgress()
    trainer_of(callback, max_epochs=5).fit(Federation(), ckpt_path=checkpoint, weights_only=True)
    counts = [re.search(r"\| (\d/5) \[(.*)\]", state).groups() for state in rounds_of(terminal)]
    assert list(dict.fromkeys(count for count, _ in counts))[-4:] == ["2/5", "3/5", "4/5", "5/5"]
    assert all("<?, ?round/s" in text for count, text in counts if count in ("1/5", "2/5"))


def test_the_lines_of_a_resumed_run(capsys, checkpoint):
    capsys.readouterr()
    callback = FederationProgress()
    trainer_of(callback, max_epochs=4).fit(Federation(), ckpt_path=checkpoint, weights_only=True)
    lines = [line for line in lines_of(capsys) if "Restor" not in line]
    assert lines == ["round 3/4: accuracy 62.5 %, _ s", "round 4/4: accuracy 70.0 %, _ s"]


def test_unlimited_rounds(terminal):
    trainer_of(FederationProgress(), max_epochs=-1).fit(Stopping())
    states = rounds_of(terminal)
    assert states[0].startswith("rounds: 0 [")
    assert states[-1].startswith("rounds: 2 [")
    assert "accuracy 75.0 % (best 75.0 %)" in states[-1]
    assert terminal.screen()[1:] == [""]


def test_a_narrow_terminal_still_shows_the_accuracy(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal)  # tqdm asks for the width only here
    monkeypatch.setattr(terminal, "fileno", lambda: 2)
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((72, 24)))
    trainer_of(FederationProgress(), max_epochs=5).fit(Federation())
    last = rounds_of(terminal)[-1]
    assert last.endswith("accuracy 80.0 % (best 80.0 %)]")
    assert len(last) < 72


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_closes_the_bars(terminal, monkeypatch, error):
    def training_step(self, batch, batch_idx):
        with find_progress(self.trainer).stage("clients", total=3) as stage:
            stage.update()
            raise error("no more")

    monkeypatch.setattr(Federation, "training_step", training_step)
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises((error, SystemExit)):
            trainer_of(FederationProgress()).fit(Federation())
    finally:
        signal.signal(signal.SIGINT, handler)
    assert not progress.tqdm._instances
    assert "clients" in terminal.getvalue()
    assert not any("clients" in line for line in terminal.screen())
    assert terminal.screen()[-1] == ""
    assert sum("rounds" in line for line in terminal.screen()) == (error is RuntimeError)


def test_stages_in_quick_succession_are_not_drawn(terminal, monkeypatch):
    """And values, which may be on a GPU, are read only when they are drawn."""

    class Unreadable:
        def __float__(self):
            raise AssertionError

    monkeypatch.setattr(progress, "INTERVAL", 60.0)
    callback = FederationProgress()
    for name in ("first", "second"):
        with callback.stage(name, total=3) as stage:
            stage.update(1, loss=Unreadable())
    assert "first" in terminal.getvalue()
    assert "second" not in terminal.getvalue()


def test_a_stage_drawn_late_counts_from_its_beginning(terminal):
    callback = FederationProgress()
    callback._shown = time.monotonic() + 60
    with callback.stage("clients", total=3) as stage:
        assert terminal.getvalue() == ""
        stage.started -= 60
        callback._shown = 0.0
        stage.update()
        assert time.time() - stage.bar.start_t >= 60


def test_print_writes_above_the_bars(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stdout", terminal)  # one screen for both, as in a shell
    monkeypatch.setattr(sys, "stderr", terminal)
    callback = FederationProgress()
    with callback.stage("clients", total=3) as stage:
        stage.update(1)
        callback.print("one", 2, sep="-")
        stage.update(1)
        above, bar = terminal.screen()
    assert above == "one-2"
    assert "| 2/3 [" in bar


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (
            Federation,
            {},
            ["1/3: accuracy 50.0 %, _ s", "2/3: accuracy 75.0 %, _ s", "3/3: accuracy 62.5 %, _ s"],
        ),
        (
            Federation,
            {"check_val_every_n_epoch": 2},
            ["1/3: _ s", "2/3: accuracy 75.0 %, _ s", "3/3: _ s"],
        ),
        (Stopping, {"max_epochs": -1}, ["1: accuracy 50.0 %, _ s", "2: accuracy 75.0 %, _ s"]),
    ],
)
def test_lines_where_there_is_no_terminal(capsys, monkeypatch, kind, options, expected):
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    trainer_of(FederationProgress(), **options).fit(kind())
    assert lines_of(capsys) == [f"round {line}" for line in expected]


def test_a_long_stage_has_a_line_but_not_what_it_contains(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    callback = FederationProgress()
    with callback.stage("clients"), callback.stage("distillation"):
        clock[0] += progress.LONG_STAGE
    with callback.stage("pre-training"):
        pass
    assert lines_of(capsys) == ["clients: _ s"]


@pytest.mark.parametrize(
    "options", [{"callbacks": [FederationProgress(quiet=True)]}, {"enable_progress_bar": False}]
)
def test_no_lines(capsys, monkeypatch, options):
    monkeypatch.setattr(progress, "LONG_STAGE", 0.0)
    trainer_of(**options).fit(Federation())
    assert lines_of(capsys) == []


def test_disabled(terminal):
    callback = FederationProgress()
    callback.disable()
    with callback.stage("clients", total=3) as stage:
        stage.update()
    assert terminal.getvalue() == ""
    callback.enable()
    with callback.stage("clients", total=3) as stage:
        callback.disable()
        before = terminal.getvalue()
        stage.update()
    assert terminal.getvalue() == before
    assert terminal.screen() == [""]


def test_only_the_first_rank_shows_anything(terminal, monkeypatch):
    monkeypatch.setattr(pl.Trainer, "is_global_zero", False)
    trainer_of(FederationProgress()).fit(Federation())
    assert terminal.drawn() == []


def test_evaluation_alone_shows_nothing(terminal):
    for verb in ("validate", "test"):
        getattr(trainer_of(FederationProgress()), verb)(Federation(), verbose=False)
    assert terminal.drawn() == []


def test_one_callback_for_several_fits(terminal):
    callback = FederationProgress()
    trainer_of(callback, max_epochs=2).fit(Federation())
    terminal.seek(0)
    terminal.truncate()
    model = Federation()
    model.accuracies = (0.25,)
    with callback.stage("outer") as outer:  # the fit closes it
        trainer_of(callback, max_epochs=1).fit(model)
        outer.update()
    states = rounds_of(terminal)
    assert "| 0/1 [" in states[0]
    assert "best" not in states[0]
    assert states[-1].endswith("accuracy 25.0 % (best 25.0 %)]")


def test_an_open_callback_can_be_copied_and_pickled(terminal):
    callback = FederationProgress(quiet=True)
    with callback.stage("clients", total=3) as stage:
        stage.update()
        for twin in (pickle.loads(pickle.dumps(callback)), deepcopy(callback)):  # noqa: S301
            assert twin.quiet
            assert not twin._stages


def test_a_fork_leaves_the_screen_alone(terminal, monkeypatch):
    callback = FederationProgress()
    with callback.stage("clients", total=3) as stage:
        stage.update()
        before = terminal.getvalue()
        with monkeypatch.context() as fork:
            fork.setattr(os, "getpid", lambda: -1)
            callback._close()
        assert terminal.getvalue() == before


@pytest.mark.parametrize("bar", [TQDMProgressBar, FederationProgress])
def test_long_stages_are_lines_beside_another_bar_and_without_a_terminal(capsys, monkeypatch, bar):
    """The lines of a stage come ever more rarely; a stage within it has none."""
    clock = [0.0]
    lines = find_progress(trainer_of(bar()))
    with monkeypatch.context() as patch:
        patch.setattr(progress.time, "monotonic", lambda: clock[0])
        with lines.stage("pre-training resnet8", total=50, unit="epoch") as stage:
            for epoch in range(50):
                clock[0] += 1
                with lines.stage("views", 1) as inner:
                    clock[0] += 1
                    inner.update()
                stage.update(1, loss=5 - epoch / 50)
        with lines.stage("teachers", 1) as stage:  # a short one
            stage.update()
    assert capsys.readouterr().err.splitlines() == [
        "pre-training resnet8: epoch 5/50, loss 4.92, 10 s",
        "pre-training resnet8: epoch 10/50, loss 4.82, 20 s",
        "pre-training resnet8: epoch 20/50, loss 4.62, 40 s",
        "pre-training resnet8: epoch 40/50, loss 4.22, 80 s",
        "pre-training resnet8: 100.0 s",
    ]
    trainer_of(bar()).fit(Federation())  # stages do the bar no harm


def test_accuracy_on_validation_data_is_named_as_such(capsys, monkeypatch):
    def validation_step(self, batch, batch_idx):
        self.log("val/accuracy", 0.25)
        self.log("accuracy", 0.75)

    monkeypatch.setattr(Federation, "validation_step", validation_step)
    trainer_of(FederationProgress()).fit(Federation())
    assert "val/accuracy 25.0 %" in capsys.readouterr().err
