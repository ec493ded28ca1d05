"""Kills real processes of ``fedaux-pl`` at random moments and resumes them until they are complete.

``python -m tests.kills --count 100 --seed 0 --folder DIR`` prints when the kills hit. It fails if a
run cannot be resumed, if its final weights differ from those of an undisturbed run, or if a file is
left half-written. Processes are forks of one that has imported the packages, which then call
``fedaux_pl.cli.entry.main``; the signal is SIGKILL.
"""

import argparse
import csv
import functools
import json
import multiprocessing
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
import yaml

from fedaux_pl.callbacks.report import FederationReport
from fedaux_pl.cli.entry import main
from fedaux_pl.data import cache
from fedaux_pl.engine.checkpoints import AtomicCheckpointIO, find_last, load_checkpoint
from fedaux_pl.federation import Federation
from fedaux_pl.federation import cache as results
from fedaux_pl.federation.pretraining import H0Source
from fedaux_pl.federation.releases import ReleaseCollector
from fedaux_pl.files import SCRATCH
from fedaux_pl.runs.run_folder import RunFolder

ROUNDS = 4
CONFIG = f"""
trainer: {{accelerator: cpu, max_epochs: {ROUNDS}, enable_progress_bar: false}}
model:
  algorithm: FedAUX
  clients: {{resnet8: 3}}
  participation: 0.7
  local: {{batch_size: 16}}
  distillation: {{batch_size: 16, lr: 1.0e-3}}
  pretraining: {{epochs: 2, batch_size: 20}}
  model_options: {{width: 0.125}}
data:
  private: tests.federations.FewDigits
  auxiliary: tests.federations.FewDigits
  alpha: 1.0
"""
KINDS = ("fit", "pretrain")
# What a process does, by the function that does it; "start" and "between" are all other moments.
STAGES = {
    "claiming the folder": (RunFolder, "on_fit_start"),
    "pre-training": (H0Source, "h0"),
    "releasing heads": (ReleaseCollector, "_ask"),
    "writing the cache": (results, "save_cached"),
    "figures": (FederationReport, "on_federation_prepared"),
    "round": (Federation, "training_step"),
    "writing the report": (FederationReport, "on_round_end"),
    "writing a checkpoint": (AtomicCheckpointIO, "save_checkpoint"),
}


def watch(stage):
    """Writes the stage of this process to shared memory whenever it changes."""

    def wrap(call, name):
        @functools.wraps(call)
        def watched(*args, **kwargs):
            before, stage.value = stage.value, name.encode()
            try:
                return call(*args, **kwargs)
            finally:
                stage.value = before if before != b"start" else b"between"

        return watched

    for name, (owner, function) in STAGES.items():
        setattr(owner, function, wrap(getattr(owner, function), name))


def run(args, folder, stage):
    """Runs one command in this process; output goes to the folder's log."""
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    torch.set_num_threads(1)
    watch(stage)
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    print("$ fedaux-pl", *args, flush=True)
    raise SystemExit(main(args))


@dataclass
class Killer:
    """Starts processes and kills them.

    Attributes:
        moments: Where the moments of the kills come from.
        duration: The seconds of an undisturbed run.
        kills: How many kills hit each stage.
        continued: How many of the killed processes left a checkpoint to resume from.
    """

    moments: random.Random
    duration: float = 0.0
    kills: Counter = field(default_factory=Counter)
    continued: Counter = field(default_factory=Counter)

    def __post_init__(self):
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(
            ["fedaux_pl.cli.verbs", "lightly.loss", "matplotlib.pyplot"]
        )
        first = self.context.Process(target=time.sleep, args=(0,))
        first.start()  # starts the server of the forks, which imports the packages
        first.join()

    def start(self, folder, verb, *more):
        """Starts a process; returns it and the memory that tells its stage."""
        stage = self.context.Array("c", b"start".ljust(40, b"\0"), lock=False)
        root = f"--trainer.default_root_dir={folder / 'logs'}"
        args = [verb, f"--config={folder / 'config.yaml'}", root, *more]
        process = self.context.Process(target=run, args=(args, folder, stage))
        process.start()
        return process, stage

    def complete(self, folder, verb, *more):
        """Runs a command to its end."""
        start = time.perf_counter()
        process, _ = self.start(folder, verb, *more)
        process.join(300)
        log = (folder / "log.txt").read_text()
        assert process.exitcode == 0, f"{verb} failed in {folder}:\n{log[-3000:]}"
        return time.perf_counter() - start

    def kill(self, folder, verb, *more):
        """Kills a process at a random moment; returns whether it was still running.

        A third of the moments is uniform in time. The others lie in a random stage, since some take
        only milliseconds: at its first time, or in a later round.
        """
        process, stage = self.start(folder, verb, *more)
        draw = self.moments.random()
        if draw < 2 / 3:
            stages = list(STAGES)
            if verb == "pretrain":
                stages = stages[:2]
            elif draw < 1 / 3:
                stages = stages[-3:]
                process.join(self.moments.uniform(0.4, 0.9) * self.duration)
            wanted = self.moments.choice(stages).encode()
            while process.is_alive() and stage.value != wanted:
                time.sleep(0.0002)
            process.join(self.moments.choice((0, 0.001, 0.005, 0.02)))
        else:
            process.join(self.moments.uniform(0, self.duration))
        process.kill()
        process.join()
        if process.exitcode != -9:  # it was over before
            log = (folder / "log.txt").read_text()
            assert process.exitcode == 0, f"{verb} failed in {folder}:\n{log[-3000:]}"
            return False
        hit = stage.value.decode()
        self.kills[hit] += 1
        self.continued[hit] += find_last(folder / "logs") is not None
        return True


def prepare(folder):
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    return folder


def result(folder):
    """The weights and the history, without timings, of the newest checkpoint."""
    content = load_checkpoint(find_last(folder / "logs"))
    history = [
        {key: value for key, value in entry.items() if not key.startswith("seconds/")}
        for entry in content["federation"]["history"]
    ]
    return content["state_dict"], history


def check_complete(folder):
    """All files of a finished run are whole, and nothing is left of the killed processes."""
    logs = folder / "logs"
    assert not list(folder.rglob(f"*{SCRATCH}"))
    for path in logs.rglob("*.ckpt"):
        load_checkpoint(path)
    files = list((logs / "cache").glob("*.pt"))
    assert files
    for path in files:
        content = torch.load(path, weights_only=True)
        assert content["sha256"] == cache.tensor_digest(**content["tensors"])
    last = find_last(logs).parents[1]
    assert json.loads((last / "summary.json").read_text())["rounds"] == ROUNDS
    with (last / "curve.csv").open(newline="") as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["1", "2", "3", "4"]
    for path in logs.rglob("config.yaml"):
        assert yaml.safe_load(path.read_text())["model"]["clients"] == {"resnet8": 3}


def check_same(one, other):
    """The same weights bit for bit, and the same history."""
    (weights, history), (expected, expected_history) = one, other
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[key], expected[key]) for key in weights)
    assert history == expected_history


def kill_runs(count, seed, folder, kinds=KINDS):
    """Kills ``count`` processes, one to four times in each run; returns the Killer."""
    killer = Killer(random.Random(seed))
    whole = prepare(folder / "undisturbed")
    killer.duration = killer.complete(whole, "fit")
    expected = result(whole)
    number = 0
    while (left := count - killer.kills.total()) > 0:
        kind = kinds[number % len(kinds)]
        own, more = prepare(folder / f"{number}-{kind}"), []
        number += 1
        for _ in range(min(left, killer.moments.randint(1, 4))):
            if not killer.kill(own, kind, *more):
                break
            more = ["--ckpt_path=last"]
        killer.complete(own, "fit", "--ckpt_path=last")
        check_complete(own)
        check_same(result(own), expected)
    return killer


def print_table(killer):
    print(f"| {'killed while':24} | kills | checkpoint to resume | resumed |")
    print(f"| {'---':24} | ----: | -------------------: | ------: |")
    for stage, count in killer.kills.most_common():
        print(f"| {stage:24} | {count:5} | {killer.continued[stage]:20} | {count:7} |")
    total = killer.kills.total()
    print(f"| {'all':24} | {total:5} | {killer.continued.total():20} | {total:7} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    start = time.perf_counter()
    print_table(kill_runs(options.count, options.seed, options.folder))
    print(f"{time.perf_counter() - start:.0f} s, seed {options.seed}")
