"""The measuring of rounds: that it measures fit's own, and leaves the user's folders alone."""

import json
import time

import pytest
import torch

from fedaux_pl.algorithms import FedAvg, FedBE, FedDF
from fedaux_pl.benchmark import (
    MeasuredData,
    MeasuredFederation,
    RoundClock,
    format_table,
    summarize,
)
from fedaux_pl.benchmark import summary as report
from fedaux_pl.benchmark.flops import forward_flops, matmul_peak, training_flops
from fedaux_pl.benchmark.summary import Workload, _representative
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


def measured(root, algorithm, clients=None, rounds=2, **options):
    """A measured federation after its rounds, and its clock."""
    settings = {
        "local": LocalTraining(epochs=2, batch_size=16),
        "distillation": Distillation(epochs=2, batch_size=16, lr=1e-3),
        "pretraining": Pretraining(epochs=1, batch_size=20),
        "model_options": federations.SMALL,
    }
    clients = clients or {"resnet8": 4}
    federation = MeasuredFederation(algorithm, clients, 0.5, **(settings | options))
    timer = RoundClock()
    few, count = federations.FewDigits(), sum(clients.values())
    data = MeasuredData(few, few, num_clients=count, alpha=1.0)
    federations.fit(root, federation, rounds, data, callbacks=[timer])
    return federation, timer


@pytest.fixture
def known_peak(monkeypatch):
    """Measuring the peak takes longer than a round."""
    monkeypatch.setattr(report, "matmul_peak", lambda device, dtype: (1e11, 1024))


# --- the command -------------------------------------------------------------------------------


@pytest.mark.usefixtures("known_peak")
def test_benchmark_writes_its_file_and_nothing_else(tmp_path, capsys):
    (tmp_path / "cache").mkdir()
    more = ["--rounds=2", "--warmup=1", "--pretraining_steps=2"]
    assert main(tiny("benchmark", tmp_path, *more)) == 0
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert written == {"cache", "benchmark", "benchmark/benchmark.json"}

    summary = json.loads((tmp_path / "benchmark" / "benchmark.json").read_text())
    assert list(summary["stages"]) == [
        "pre-training resnet8",
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
    assert {"views", "samples", "rounds"} == {s["unit"] for s in summary["stages"].values()}

    printed = capsys.readouterr().out
    for words in ("pre-training resnet8", "whole round", "host memory", " views"):
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


def test_the_former_option_is_refused_with_a_line(tmp_path, capsys):
    assert status(tiny("benchmark", tmp_path, "--compare_plain=true")) == 2
    assert "benchmark has no option compare_plain any more: leave it" in capsys.readouterr().err


def test_an_error_leaves_no_folder_behind(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(MeasuredFederation, "prepare", fails)
    assert main(tiny("benchmark", tmp_path, "--rounds=1", "--warmup=0")) == 1
    assert "no such data" in capsys.readouterr().err
    assert not list((tmp_path / "benchmark").iterdir())


def fails(self, preparation):
    raise ConfigurationError("no such data")


def test_a_measured_federation_ends_with_the_weights_of_fit(tmp_path):
    federation, _ = measured(tmp_path, paper_fedaux())
    ordinary = federations.create(
        paper_fedaux(), {"resnet8": 4}, participation=0.5, local=federation.local,
        distillation=federation.distillation, pretraining=Pretraining(epochs=3, batch_size=20),
    )  # fmt: skip
    federations.fit(tmp_path / "fit", ordinary, 2)
    federations.assert_same(federations.weights(federation), federations.weights(ordinary))


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
    head = training_flops(
        ClientModule(model, trained="head"), (x, torch.zeros(4, dtype=torch.long))
    )
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
    assert "takes longer" not in printed  # a single round has no start


def test_the_device_is_that_of_the_rounds(tmp_path, monkeypatch):
    """After a fit on a GPU Lightning has put the federation back on the host."""
    federation, timer = measured(tmp_path, FedAvg(), rounds=1)
    cuda = torch.device("cuda", 0)
    federation.measured_device = cuda
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
    timer.epochs["resnet8"] = [4.0, 1.0, 1.0]
    assert federation.preparation_seconds > 0
    federation.preparation_seconds = 8.5
    federation.start |= {"first step": [1.5, 0.25], "kernels compiled": [0.5]}
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


class PreparingRunner(StageRunner):
    """Prepares something in every call."""

    def run_all(self, module, *args, **options):
        with self.preparing("preparing ResNet8: first step (2 x 16 samples)"):
            time.sleep(0.01)
        return super().run_all(module, *args, **options)


def test_preparations_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(assembly, "create_runner", PreparingRunner)
    federation, _ = measured(tmp_path, FedDF(), rounds=2)
    seconds = federation.start
    assert list(seconds) == ["first step"]
    assert len(seconds["first step"]) == 4  # clients and student in two rounds
    assert min(seconds["first step"]) >= 0.01


def test_kernels_are_counted(tmp_path):
    knobs = pytest.importorskip("triton.knobs")
    before = knobs.compilation.listener
    try:
        federation, _ = measured(tmp_path, FedAvg(), rounds=1)
        for hit in (False, True, True):
            times = knobs.CompileTimes(1_000_000, [("ttir", 400_000)], 100_000)
            knobs.compilation.listener(
                src=None, metadata={}, metadata_group={}, times=times, cache_hit=hit
            )
    finally:
        knobs.compilation.listener = before
    assert federation.start == {
        "kernels compiled": [1.5],
        "kernels from the disk cache": [1.5, 1.5],
    }
