"""The measuring of rounds: that it measures fit's own, and leaves the user's folders alone."""

import json
import time

import pytest
import torch

from fedaux_pl.algorithms import FedAvg, FedBE, FedDF, FedProx
from fedaux_pl.benchmark import MeasuredFederation, RoundClock, format_table, summarize
from fedaux_pl.benchmark import summary as report
from fedaux_pl.benchmark.flops import forward_flops, matmul_peak, training_flops
from fedaux_pl.benchmark.plain_rounds import PlainRounds
from fedaux_pl.benchmark.start_clock import StartClock
from fedaux_pl.benchmark.workload import Workload, _representative
from fedaux_pl.cli.entry import main
from fedaux_pl.engine import StageRunner
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import assembly
from fedaux_pl.federation.settings import Distillation, LocalTraining, Pretraining
from fedaux_pl.models import create_model
from fedaux_pl.modules import ClientModule
from tests import federations
from tests.cli.test_cli import status, tiny
from tests.paper import paper_fedaux
from tests.texts import encoder, ids


def measured(root, algorithm, clients=None, rounds=2, compare_plain=False, **options):
    """A measured federation after its rounds, and its clock."""
    settings = {
        "local": LocalTraining(epochs=2, batch_size=16),
        "distillation": Distillation(epochs=2, batch_size=16, lr=1e-3),
        "pretraining": Pretraining(epochs=1, batch_size=20),
        "model_options": federations.SMALL,
    }
    clients = clients or {"resnet8": 4}
    federation = MeasuredFederation(algorithm, clients, 0.5, **(settings | options))
    timer = RoundClock(compare_plain)
    federations.fit(root, federation, rounds, callbacks=[timer])
    return federation, timer


@pytest.fixture
def known_peak(monkeypatch):
    """Measuring the peak takes longer than a round."""
    monkeypatch.setattr(report, "matmul_peak", lambda device, dtype: (1e11, 1024))


# --- the command -------------------------------------------------------------------------------


@pytest.mark.usefixtures("known_peak")
def test_benchmark_writes_its_file_and_nothing_else(tmp_path, capsys):
    (tmp_path / "cache").mkdir()
    more = ["--rounds=2", "--warmup=1", "--pretraining_steps=2", "--compare_plain=true"]
    assert main(tiny("benchmark", tmp_path, *more)) == 0
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert written == {"cache", "benchmark", "benchmark/benchmark.json"}

    summary = json.loads((tmp_path / "benchmark" / "benchmark.json").read_text())
    assert list(summary["stages"]) == [
        "pre-training resnet8",
        "scoring heads",
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
    assert summary["config"]["settings"]["clients"] == {"resnet8": 3}
    assert "--rounds=2" in summary["config"]["command_line"]
    for stage in summary["stages"].values():
        seconds = stage["seconds"]
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
    assert summary["stages"]["teachers"]["share_of_peak"] > 0
    assert summary["memory"]["host_peak_bytes"] > 50 * 2**20
    assert summary["memory"]["device_peak_bytes"] is None
    assert summary["plain"]["same_weights"]
    assert summary["plain"]["ratio_of_minima"] > 0

    printed = capsys.readouterr().out
    for words in ("pre-training resnet8", "whole round", "host memory", "the same weights"):
        assert words in printed
    assert f"Written to {tmp_path / 'benchmark' / 'benchmark.json'}" in printed


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--rounds=0"], "rounds must be at least 1, but is 0"),
        (["--warmup=-1"], "warmup must be at least 0, but is -1"),
        (["--pretraining_steps=0"], "pretraining_steps must be at least 1, but is 0"),
        (["--ckpt_path=last"], "leave out ckpt_path"),
    ],
)
def test_wrong_options_are_named(options, says, tmp_path, capsys):
    assert status(tiny("benchmark", tmp_path, *options)) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_error_leaves_no_folder_behind(tmp_path, capsys):
    more = ["--compare_plain=true", "--model.algorithm=FedProx", "--rounds=1", "--warmup=0"]
    assert main(tiny("benchmark", tmp_path, *more)) == 1
    assert (
        "model.algorithm must be FedAvg or FedDF or FedAUX, but is FedProx"
        in capsys.readouterr().err
    )
    assert not list((tmp_path / "benchmark").iterdir())


# --- the same work -----------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [FedAvg(), FedDF(), paper_fedaux()], ids=lambda a: a.name)
def test_the_plain_loop_comes_to_the_same_weights(algorithm, tmp_path):
    clients = {"resnet8": 2, "shufflenet": 2}
    federation, timer = measured(tmp_path, algorithm, clients, compare_plain=True)
    assert len(timer.plain) == len(timer.rounds) == 2
    assert timer.differing == []

    ordinary = federations.create(
        algorithm, clients, participation=0.5, local=federation.local,
        distillation=federation.distillation, pretraining=Pretraining(epochs=3, batch_size=20),
    )  # fmt: skip
    federations.fit(tmp_path / "fit", ordinary, 2)
    federations.assert_same(
        federations.weights(federation), federations.weights(ordinary)
    )  # and so does fit


def test_another_result_of_the_plain_loop_is_noticed(tmp_path, monkeypatch):
    run = PlainRounds.run

    def wrong(self, round_, states):
        return run(self, round_ + (round_ == 2), states)

    monkeypatch.setattr(PlainRounds, "run", wrong)
    assert measured(tmp_path, FedAvg(), compare_plain=True)[1].differing == [2]


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (FedProx(), {}),
        (FedBE(), {}),
        (FedAvg(), {"train": "head"}),
        (FedAvg(), {"batchnorm": "batch"}),
        (FedAvg(), {"optimizer_state": "carry"}),
    ],
)
def test_what_the_plain_loop_does_not_know_is_refused(algorithm, options, tmp_path):
    with pytest.raises(ConfigurationError, match="leave out --compare_plain"):
        measured(tmp_path, algorithm, rounds=1, compare_plain=True, **options)


# --- counting ----------------------------------------------------------------------------------


def test_operations_of_a_network_are_those_of_its_layers():
    """One convolution of 3x3, 3 to 4 channels on 8x8, and a linear layer from 4 to 10."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 10),
    )
    assert forward_flops(model, torch.randn(5, 3, 8, 8)) == 2 * (64 * 4 * 27 + 40)


def test_training_takes_twice_the_operations_more_but_for_the_first_layer():
    model = create_model("resnet8", 10, in_channels=1, width=0.125)
    x = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    forward = forward_flops(model, x)
    whole = training_flops(ClientModule(model), (x, torch.zeros(4, dtype=torch.long)))
    head = training_flops(ClientModule(model, train="head"), (x, torch.zeros(4, dtype=torch.long)))
    assert 2.8 * forward < whole < 3 * forward
    assert forward < head < 1.1 * forward


def test_no_text_counts_the_padding_of_another():
    model = encoder()
    x = ids(3, 20)

    def alone(count):
        return [count(row[None]) for row in x]

    forward = alone(lambda row: forward_flops(model, row))
    assert forward[0] < 0.2 * forward[1]
    assert forward_flops(model, x) == sum(forward) / 2
    client, y = ClientModule(model, 3), torch.zeros(2, dtype=torch.long)
    training = alone(lambda row: training_flops(client, (row, y[:1])))
    assert training_flops(client, (x, y)) == sum(training) / 2


def test_a_few_texts_stand_for_all():
    lengths = torch.randint(2, 20, (500,), generator=torch.Generator().manual_seed(0))
    model, x = encoder(), ids(*lengths.tolist())
    assert torch.equal(model.lengths(x), lengths)
    chosen = model.lengths(_representative(model, x)).double()
    assert len(chosen) == 8
    assert chosen.mean() == pytest.approx(float(lengths.double().mean()), rel=0.05)
    assert len(_representative(model, x[:3])) == 3
    images = torch.arange(40).view(40, 1, 1, 1)
    assert len(_representative(create_model("resnet8", 2, width=0.125), images).unique()) == 8


@pytest.mark.usefixtures("known_peak")
def test_samples_of_each_stage(tmp_path):
    """4 clients hold 16 of the 64 digits each, and 2 take part; 32 are distilled on, 40 tested."""
    federation, timer = measured(tmp_path, FedDF())
    work = Workload(federation)
    samples = {
        stage: work.of_round(stage, 1)[0]
        for stage in ("clients", "evaluation", "teachers", "distillation", "validation")
    }
    assert samples == {
        "clients": 2 * 2 * 16,
        "evaluation": 40 + 2 * 40,
        "teachers": 2 * 32,
        "distillation": 2 * 32,
        "validation": 40,
    }
    stages = summarize(federation, timer, 1, [])["stages"]
    of_round = stages.keys() - {"whole round"}
    parts = sum(stages[name]["seconds"]["median"] for name in of_round)
    assert parts == pytest.approx(stages["whole round"]["seconds"]["median"])
    assert stages["clients"]["per_second"] == pytest.approx(
        samples["clients"] / stages["clients"]["seconds"]["median"]
    )


def test_models_that_a_method_samples_are_counted_too(tmp_path):
    """FedBE predicts with its samples and with the average, in addition to the clients."""
    federation, _ = measured(tmp_path, FedBE(samples=3), rounds=1)
    models, rest = divmod(federation.predicted[0]["teachers", "resnet8"], 32)
    assert rest == 0
    assert models > 2 + 3 - 1
    # once more the average, which is evaluated in every method
    assert federation.predicted[0]["evaluation", "resnet8"] == (models + 1) * 40


@pytest.mark.usefixtures("known_peak")
def test_a_table_without_validation(tmp_path):
    federation, timer = measured(tmp_path, FedAvg(), rounds=1)
    printed = format_table(summarize(federation, timer, 0, []))
    assert "distillation" not in printed
    assert "plain loop" not in printed


def test_the_device_is_that_of_the_rounds(tmp_path, monkeypatch):
    """After a fit on a GPU Lightning has put the federation back on the host."""
    federation, timer = measured(tmp_path, FedAvg(), rounds=1)
    cuda = torch.device("cuda", 0)
    federation.stopwatch.device = cuda
    federation.device_peaks |= {"preparation": 2**30, "clients": 3 * 2**30}
    federation.device_reserved = 4 * 2**30
    calls = []
    monkeypatch.setattr(report, "matmul_peak", lambda *on: calls.append(on) or (8e14, 8192))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"the one at {device}")
    printed = format_table(summarize(federation, timer, 0, []))
    assert calls == [(cuda, torch.float32)]
    for words in ("the one at cuda:0", "800 TFLOP/s", "device memory at most 3.00 GiB (4.00 GiB"):
        assert words in printed


def test_the_peak_is_that_of_a_product():
    peak, size = matmul_peak(torch.device("cpu"), torch.float32)
    assert size == 1024
    assert 1e8 < peak < 1e14


# --- the start ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("known_peak")
def test_the_first_round_is_compared_with_later_ones(tmp_path):
    federation, timer = measured(tmp_path, FedDF(pretrained=True), rounds=3)
    timer.rounds[:] = [9.0, 2.0, 3.0]
    for entry, seconds in zip(federation.history, (5.0, 1.0, 1.5), strict=True):
        entry["seconds/clients"] = seconds
    federation.stopwatch.laps["pre-training resnet8"] = [4.0, 1.0, 1.0]
    assert federation.preparation_seconds > 0
    federation.preparation_seconds = 2.5
    federation.start.seconds["first step"] += [1.5, 0.25]
    federation.start.kernels["compiled"] += [0.5]
    summary = summarize(federation, timer, 1, [])
    extra = summary["start"]["extra_seconds"]
    assert extra["whole round"] == 6.5
    assert extra["clients"] == 3.75
    assert extra["pre-training resnet8"] == 3.0
    assert set(extra) > {"averaging", "teachers", "distillation", "evaluation"}
    printed = format_table(summary)
    assert "before the first round, without pre-training: 2.5 s\n" in printed
    assert "longer by: pre-training resnet8 3 s, clients 3.75 s, " in printed
    assert "  first step: 2, 1.75 s in all\n  kernels compiled: 1, 0.5 s in all" in printed


@pytest.mark.usefixtures("known_peak")
def test_one_round_has_no_start(tmp_path):
    assert "start" not in summarize(*measured(tmp_path, FedAvg(), rounds=1), 0, [])


class PreparingRunner(StageRunner):
    """Prepares something in every call."""

    def run_all(self, module, *args, **options):
        with self.preparing("preparing ResNet8: first step (2 x 16 samples)"):
            time.sleep(0.01)
        return super().run_all(module, *args, **options)


def test_preparations_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(assembly, "create_runner", PreparingRunner)
    federation, _ = measured(tmp_path, FedDF(), rounds=2)
    seconds = federation.start.seconds
    assert list(seconds) == ["first step"]
    assert len(seconds["first step"]) == 4  # clients and student in two rounds
    assert min(seconds["first step"]) >= 0.01


def test_kernels_are_counted():
    knobs = pytest.importorskip("triton.knobs")
    clock, before = StartClock(torch.device("cpu")), knobs.compilation.listener
    clock.listen()
    try:
        for hit in (False, True, True):
            times = knobs.CompileTimes(1_000_000, [("ttir", 400_000)], 100_000)
            knobs.compilation.listener(
                src=None, metadata={}, metadata_group={}, times=times, cache_hit=hit
            )
    finally:
        knobs.compilation.listener = before
    assert clock.summarize()["kernels"] == {
        "compiled": {"count": 1, "seconds": 1.5},
        "from the disk cache": {"count": 2, "seconds": 3.0},
    }
