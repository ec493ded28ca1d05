"""The measuring of rounds: that it measures fit's own, and leaves the user's folders alone."""

import copy
import json
import time
from collections import defaultdict

import pytest
import torch

from fedaux_pl.algorithms import FedAvg, FedDF
from fedaux_pl.benchmark import (
    MeasuredData,
    MeasuredFederation,
    RoundClock,
    format_table,
    summarize,
)
from fedaux_pl.cli.entry import main
from fedaux_pl.engine import StageRunner
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import run
from fedaux_pl.federation.settings import Distillation, LocalTraining, Pretraining
from tests import federations
from tests.cli.test_cli import tiny
from tests.command_line import command
from tests.paper import paper_fedaux


def measured(root, algorithm, rounds=2):
    """A measured federation after its rounds, and its clock."""
    settings = {
        "local": LocalTraining(epochs=2, batch_size=16),
        "distillation": Distillation(epochs=2, batch_size=16, lr=1e-3),
        "pretraining": Pretraining(epochs=1, batch_size=20),
        "model_options": federations.SMALL,
    }
    federation = MeasuredFederation(algorithm, {"resnet8": 4}, 0.5, **settings)
    clock, few = RoundClock(), federations.FewDigits()
    data = MeasuredData(few, few, num_clients=4, alpha=1.0)
    federations.fit(root, federation, rounds, data, callbacks=[clock])
    return federation, clock


@pytest.fixture(scope="module")
def three_rounds(tmp_path_factory):
    """FedAUX with its clock, for tests that only look at it."""
    torch.set_num_threads(1)
    return measured(tmp_path_factory.mktemp("three"), paper_fedaux(), rounds=3)


# --- the command -------------------------------------------------------------------------------


def test_benchmark_writes_its_file_and_nothing_else(tmp_path, capsys):
    (tmp_path / "cache").mkdir()
    more = ["--rounds=2", "--warmup=1", "--pretraining_steps=2"]
    assert main(command("benchmark", tmp_path, *more)) == 0
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert written == {"cache", "benchmark", "benchmark/benchmark.json"}

    summary = json.loads((tmp_path / "benchmark" / "benchmark.json").read_text())
    assert list(summary["stages"]) == [
        "pre-training resnet8",
        "pre-training tests.models.own_networks.TinyNet",
        "clients",
        "averaging",
        "teachers",
        "distillation",
        "evaluation",
        "validation",
        "logs, checkpoint",
        "whole round",
    ]
    assert (summary["warmup_rounds"], summary["measured_rounds"]) == (1, 2)
    assert summary["machine"]["precision"] == "32-true"
    assert summary["config"]["settings"]["clients"]["resnet8"] == 2
    assert "--rounds=2" in summary["config"]["command_line"]
    assert summary["memory"]["host_peak_bytes"] > 50 * 2**20
    assert summary["memory"]["device_peak_bytes"] is None

    printed = capsys.readouterr().out
    for words in ("pre-training resnet8", "whole round", "host memory", " views per second"):
        assert words in printed
    assert f"Written to {tmp_path / 'benchmark' / 'benchmark.json'}" in printed


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--rounds=0"], "rounds: got 0; expected at least 1"),
        (["--warmup=-1"], "warmup: got -1; expected at least 0"),
        (["--pretraining_steps=0"], "pretraining_steps: got 0; expected at least 1"),
        (["--ckpt_path=last"], "leave out ckpt_path"),
    ],
)
def test_wrong_options_are_named(options, says, tmp_path, capsys):
    assert main(tiny("benchmark", tmp_path, *options)) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_error_leaves_no_folder_behind(tmp_path, capsys, monkeypatch):
    def fails(federation):
        raise ConfigurationError("no such data")

    monkeypatch.setattr(MeasuredFederation, "prepare", fails)
    assert main(command("benchmark", tmp_path, "--rounds=1", "--warmup=0")) == 1
    assert "no such data" in capsys.readouterr().err
    assert not list((tmp_path / "benchmark").iterdir())


def test_a_measured_federation_ends_with_the_weights_of_fit(three_rounds, tmp_path):
    federation, _ = three_rounds
    ordinary = federations.create(
        paper_fedaux(), {"resnet8": 4}, participation=0.5, local=federation.local,
        distillation=federation.distillation, pretraining=Pretraining(epochs=3, batch_size=20),
    )  # fmt: skip
    federations.fit(tmp_path, ordinary, 3)
    federations.assert_same(federations.weights(federation), federations.weights(ordinary))


# --- the summary -------------------------------------------------------------------------------


def test_stages_add_up_to_the_round_that_the_clock_measured(three_rounds):
    federation, clock = three_rounds
    stages = summarize(federation, clock, 2, [])["stages"]
    for stage in stages.values():
        seconds = stage["seconds"]
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
    last, median = federation.history[-1], {n: s["seconds"]["median"] for n, s in stages.items()}
    assert median["clients"] == last["seconds/clients"]
    assert median["validation"] == clock.validations[-1]
    whole, pretraining = median.pop("whole round"), median.pop("pre-training resnet8")
    assert whole == clock.rounds[-1]
    assert sum(median.values()) == pytest.approx(whole)
    rate = stages["pre-training resnet8"]["views_per_second"]
    assert rate == pytest.approx(2 * 40 / pretraining)  # two views of each sample


def test_an_epoch_has_at_most_the_given_steps():
    few = federations.FewDigits()
    data = MeasuredData(few, few, num_clients=2)
    data.setup()
    data.pretraining_steps = 3
    assert len(data.pretrain_batches(10)) == 3
    assert data.pretraining_samples == 30


def test_a_single_round_without_distillation(tmp_path):
    federation, clock = measured(tmp_path, FedAvg(), rounds=1)
    printed = format_table(summarize(federation, clock, 0, []))
    assert "distillation" not in printed
    assert "takes longer" not in printed  # a single round has no start


def test_the_device_is_that_of_the_rounds(three_rounds, monkeypatch):
    """After a fit on a GPU Lightning has put the federation back on the host."""
    federation, clock = three_rounds
    strategy = federation.trainer.strategy
    monkeypatch.setattr(type(strategy), "root_device", torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"the one at {device}")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**30)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 4 * 2**30)
    printed = format_table(summarize(federation, clock, 0, []))
    for words in ("the one at cuda:0", "device memory at most 3.00 GiB (4.00 GiB reserved)"):
        assert words in printed


def test_the_first_round_is_compared_with_later_ones(three_rounds, monkeypatch):
    federation, clock = three_rounds
    assert federation.preparation_seconds > sum(clock.epochs["resnet8"])
    slow = copy.copy(clock)
    slow.rounds, slow.epochs = [9.0, 2.0, 3.0], {"resnet8": [4.0, 1.0, 1.0]}
    history = [
        {**entry, "seconds/clients": seconds}
        for entry, seconds in zip(federation.history, (5.0, 1.0, 1.5), strict=True)
    ]
    monkeypatch.setattr(federation.state, "history", history)
    monkeypatch.setattr(federation, "preparation_seconds", 8.5)
    prepared = defaultdict(list, {"first step": [1.5, 0.25], "kernels compiled": [0.5]})
    monkeypatch.setattr(federation, "once", prepared)
    summary = summarize(federation, slow, 1, [])
    extra = summary["start"]["extra_seconds"]
    assert extra["whole round"] == 6.5
    assert extra["clients"] == 3.75
    assert extra["pre-training resnet8"] == 3.0
    assert set(extra) > {"averaging", "teachers", "distillation", "evaluation"}
    printed = format_table(summary)
    assert "before the first round, without pre-training: 2.5 s\n" in printed
    assert "longer by: pre-training resnet8 3 s, clients 3.75 s, " in printed
    assert "  first step: 2, 1.75 s in all\n  kernels compiled: 1, 0.5 s in all" in printed


# --- what a process prepares once --------------------------------------------------------------


class PreparingRunner(StageRunner):
    """Prepares something in every call."""

    def run_all(self, module, *args, **options):
        with self.preparing("preparing ResNet8: first step (2 x 16 samples)"):
            time.sleep(0.01)
        return super().run_all(module, *args, **options)


def test_preparations_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "create_runner", lambda trainer, _: PreparingRunner(trainer))
    federation, _ = measured(tmp_path, FedDF(), rounds=2)
    seconds = federation.once
    assert list(seconds) == ["first step"]
    assert len(seconds["first step"]) == 4  # clients and student in two rounds
    assert min(seconds["first step"]) >= 0.01


def test_kernels_are_counted():
    knobs = pytest.importorskip("triton.knobs")
    before = knobs.compilation.listener
    federation = federations.create(kind=MeasuredFederation)
    federation.once = defaultdict(list)
    try:
        federation._listen_to_triton(torch.device("cuda"))
        for hit in (False, True, True):
            times = knobs.CompileTimes(1_000_000, [("ttir", 400_000)], 100_000)
            knobs.compilation.listener(
                src=None, metadata={}, metadata_group={}, times=times, cache_hit=hit
            )
    finally:
        knobs.compilation.listener = before
    assert federation.once == {
        "kernels compiled": [1.5],
        "kernels from the disk cache": [1.5, 1.5],
    }
