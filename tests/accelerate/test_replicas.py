"""Captured steps of replicas give the results of plain training.

The recorder here captures nothing: a replay calls the steps again, on the same tensors. So
everything but CUDA graphs is tested: which samples, which replica, which kind of step, optimizers
that are reset in place. ``test_cuda_graphs`` needs a GPU.
"""

import copy
import dataclasses
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import nn

from fedaux_pl.accelerate import CudaRunner
from fedaux_pl.accelerate.recording.cuda_graphs import ProbeResult
from fedaux_pl.accelerate.recording.replicas import Replicas
from fedaux_pl.data import TensorBatches
from fedaux_pl.data.lazy_inputs import read_later
from fedaux_pl.engine import Job
from fedaux_pl.functional import balanced_weights
from fedaux_pl.modules import (
    ClientModule,
    OptimizerSettings,
)
from tests.accelerate.recorders import FakeRecorder
from tests.engine.test_stage import within

SIZES = (50, 37, 64, 16, 33)


class Net(nn.Module):
    feature_dim = 12

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 12)
        self.norm = nn.BatchNorm1d(12)
        self.head = nn.Linear(12, 3)

    def features(self, x):
        return torch.relu(self.norm(self.hidden(x)))

    def forward(self, x):
        return self.head(self.features(x))


SGD = OptimizerSettings("sgd", lr=0.1)


def client(**options):
    torch.manual_seed(0)
    return ClientModule(Net(), 3, **options)


def jobs(sizes=SIZES, seed=0, epochs=2, carried=None, state=None, lazy=False, weighted=False):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(300, 8, generator=generator)
    y = torch.randint(3, (300,), generator=generator)
    x = read_later(x) if lazy else x
    targets = (y, balanced_weights(y)) if weighted else (y,)
    start = state or client().copy_model_state()
    made = []
    for number, size in enumerate(sizes):
        subset = torch.randperm(300, generator=generator)[:size]
        batches = TensorBatches(
            x, *targets, batch_size=16, shuffle=True, seed=10 * seed + number, smallest=2,
            subset=subset,
        )  # fmt: skip
        optimizer_state = None if carried is None else carried[number]
        made.append(Job(batches, epochs, seed, start, optimizer_state))
    return made


def captured(work, recorder):
    """The result of a function that is called with a runner that captures steps."""
    return within(lambda runner: work(CudaRunner(runner.trainer, recorder=recorder)))


def both(work, recorder=None):
    """The results of a function that is called with a plain runner and with one that captures."""
    return within(work), captured(work, recorder or FakeRecorder())


def assert_same_results(plain, replayed):
    assert len(plain) == len(replayed)
    for one, other in zip(plain, replayed, strict=True):
        assert one.steps == other.steps
        assert one.loss == pytest.approx(other.loss, rel=1e-6)
        for key, value in one.state.items():
            assert torch.equal(value, other.state[key]), key
        for index, entries in one.optimizer_state["state"].items():
            for name, value in entries.items():
                assert torch.equal(value, other.optimizer_state["state"][index][name])


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, 1),
        ({"mu": 0.1}, 2),
        ({"trained": "head"}, 3),
        ({"weighted": True, "label_smoothing": 0.1}, 3),
        ({"optimizer": OptimizerSettings("sgd", lr=0.1, momentum=0.9)}, 8),
    ],
)
def test_clients_of_unequal_sizes(options, limit):
    recorder = FakeRecorder(limit)
    made = partial(jobs, weighted=options.get("weighted", False))
    results = both(lambda runner: runner.run_all(client(**options), made()), recorder)
    assert_same_results(*results)
    assert recorder.replayed > 0
    assert max(recorder.captured) == min(limit, len(SIZES)) or limit == 8
    assert set(recorder.captured_rngs) == {0}  # steps draw no random numbers


def test_inputs_in_host_memory_are_read_before_every_step():
    recorder = FakeRecorder()
    plain = within(lambda runner: runner.run_all(client(), jobs()))
    read = captured(lambda runner: runner.run_all(client(), jobs(lazy=True)), recorder)
    assert_same_results(plain, read)
    assert recorder.replayed > 0


def corrections(seed):
    """A correction for each job, of every size."""
    generator = torch.Generator().manual_seed(seed)
    parameters = dict(Net().named_parameters())
    return [
        {name: torch.randn(p.shape, generator=generator) for name, p in parameters.items()}
        for _ in SIZES
    ]


def test_each_replica_has_its_own_correction():
    """In two rounds with other corrections; an empty one is zero, not the last one."""

    def rounds(runner):
        module, results = client(corrected=True, optimizer=SGD), []
        for seed in (1, 2):
            made = zip(jobs(), [*corrections(seed)[:-1], {}], strict=True)
            results += runner.run_all(
                module, [dataclasses.replace(job, correction=change) for job, change in made]
            )
        return results

    recorder = FakeRecorder(2)
    plain, replayed = both(rounds, recorder)
    assert_same_results(plain, replayed)
    assert recorder.replayed > 0
    uncorrected = within(lambda runner: runner.run_all(client(optimizer=SGD), jobs()))
    weight = "hidden.weight"
    for number, one in enumerate(uncorrected):
        first, second = plain[number].state[weight], plain[len(SIZES) + number].state[weight]
        is_last = number == len(SIZES) - 1
        assert torch.equal(first, one.state[weight]) is is_last
        assert torch.equal(first, second) is is_last


def test_each_replica_has_its_own_learning_rates_and_clipped_gradients():
    """In two rounds, the second with other rates; each client has the rates of its own steps."""
    optimizer = OptimizerSettings("sgd", lr=0.125, clip_norm=0.3)

    def rounds(runner):
        module, results = client(optimizer=optimizer), []
        for factor in (1.0, 0.25):
            # float32, which captured steps read, has these values
            rates = [lambda n, c=c, f=factor: 0.125 * f * 0.5 ** (n % (c + 1)) for c in range(5)]
            made = [dataclasses.replace(job, lr=lr) for job, lr in zip(jobs(), rates, strict=True)]
            results += runner.run_all(module, made)
        return results

    recorder = FakeRecorder(2)
    plain, replayed = both(rounds, recorder)
    assert_same_results(plain, replayed)
    assert recorder.replayed > 0
    constant = within(lambda runner: runner.run_all(client(optimizer=optimizer), jobs()))
    same = [torch.equal(a.state["hidden.weight"], b.state["hidden.weight"])
            for a, b in zip(plain, constant, strict=False)]  # fmt: skip
    assert same == [True, False, False, False, False]
    unclipped = OptimizerSettings("sgd", lr=0.125)
    free = within(lambda runner: runner.run_all(client(optimizer=unclipped), jobs()))
    assert not torch.equal(free[0].state["hidden.weight"], plain[0].state["hidden.weight"])


class NetWithDropout(Net):
    def features(self, x):
        return nn.functional.dropout(super().features(x), 0.3, self.training)


def test_each_replica_has_its_own_random_numbers():
    """A client has the same dropout masks with other replicas as alone, in all rounds."""
    recorder = FakeRecorder(2, uses_rng=True)

    def rounds(runner):
        torch.manual_seed(0)
        module, results = ClientModule(NetWithDropout(), 3), []
        for round_ in range(2):
            made = enumerate(jobs(seed=round_), start=10 * round_)
            results += runner.run_all(
                module, [dataclasses.replace(job, seed=seed) for seed, job in made]
            )
        return results

    assert_same_results(*both(rounds, recorder))
    assert recorder.captured_rngs == recorder.captured
    assert max(recorder.captured) == 2


def test_later_rounds_reuse_captured_steps():
    recorder = FakeRecorder()
    counts = []

    def rounds(runner):
        module = client()
        results = []
        for seed in range(3):  # other orders, other clients in other places
            order = [(n + seed) % len(SIZES) for n in range(len(SIZES))]
            results = runner.run_all(module, jobs([SIZES[n] for n in order], seed))
            counts.append(len(recorder.captured))
        return results

    assert_same_results(*both(rounds, recorder))
    captures = counts[3:]
    assert captures[-1] - captures[-2] <= 2
    assert recorder.replayed > 10


def test_optimizers_continue_in_place():
    def carry(runner):
        module = client()
        first = runner.run_all(module, jobs())
        carried = [result.optimizer_state for result in first]
        before = copy.deepcopy(carried)
        second = runner.run_all(module, jobs(seed=1, carried=carried))
        for one, other in zip(before, carried, strict=True):  # unchanged
            for index, entries in one["state"].items():
                for name, value in entries.items():
                    assert torch.equal(value, other["state"][index][name])
        runner.run_all(module, jobs(seed=2))  # a fresh start in between
        return second + runner.run_all(module, jobs(seed=3, carried=carried))

    assert_same_results(*both(carry))


def test_optimizer_state_is_copied_on_request_only():
    wanted = [Job(j.batches, 1, 0, j.state, keep_optimizer=False) for j in jobs((40,))]
    for result in both(lambda runner: runner.run_all(client(), wanted)):
        assert result[0].optimizer_state is None


def test_a_module_is_trained_in_place():
    def single(runner):
        module = client()
        losses = []
        job = Job(jobs((70,))[0].batches, 3, 5)
        [result] = runner.run_all(module, [job], losses.append)
        assert losses[-1] == result.loss
        return module.copy_model_state(), losses

    plain, replayed = both(single)
    for key, value in plain[0].items():
        assert torch.equal(value, replayed[0][key])
    assert plain[1] == pytest.approx(replayed[1], rel=1e-6)


def test_steps_that_cannot_be_captured_run_one_by_one(caplog):
    recorder = FakeRecorder(obstacle="it synchronizes")
    with caplog.at_level("INFO", logger="fedaux_pl"):
        results = both(lambda runner: runner.run_all(client(), jobs()) * 2, recorder)
    assert_same_results(*results)
    assert not recorder.captured
    messages = [r.message for r in caplog.records if "ClientModule" in r.message]
    assert messages == [
        "ClientModule: steps run one by one, because they cannot be captured (it synchronizes)"
    ]


def test_results_are_in_job_order_and_reported_when_done():
    reported = []
    results = captured(
        lambda runner: runner.run_all(client(), jobs(), on_done=reported.append), FakeRecorder()
    )
    assert [r.steps for r in reported] == sorted((r.steps for r in reported), reverse=True)
    assert [r.steps for r in results] == [2 * len(job.batches) for job in jobs()]


def test_a_forgotten_module_is_captured_again():
    recorder = FakeRecorder()

    def train_twice(runner):
        module = client()
        for _ in range(2):
            runner.run_all(module, jobs((40,)))
            runner.forget(module)

    captured(train_twice, recorder)
    assert recorder.captured == [1, 1, 1, 1]  # full and last batches, twice


def test_waves_are_few_and_of_nearly_equal_size():
    probe = ProbeResult(max_replicas=8)
    replicas = Replicas(client(), step=None, recorder=FakeRecorder(), probe=probe)
    for count, expected in ((1, [1]), (8, [8]), (9, [4, 5]), (20, [6, 7, 7]), (40, [8] * 5)):
        waves = list(replicas.waves(range(count)))
        assert [len(wave) for wave in waves] == expected
        assert [n for wave in waves for n in wave] == list(range(count))


def test_captured_steps_read_the_same_memory():
    """Each round's soft labels are copied to one buffer; unchanged inputs are not copied."""
    recorder = FakeRecorder()
    x = torch.randn(40, 8)
    inputs = [x, x, x.clone(), x.clone()]
    captures, losses = [], []

    def rounds(runner):
        module = client()
        for round_ in range(4):
            y = torch.randint(3, (40,), generator=torch.Generator().manual_seed(round_))
            batches = TensorBatches(inputs[round_], y, batch_size=16, shuffle=True, seed=round_)
            start = module.copy_model_state()
            [result] = runner.run_all(module, [Job(batches, 2, 0, start)])
            captures.append(len(recorder.captured))
            losses.append(result.loss)
        return [result]

    assert_same_results(*both(rounds, recorder))
    assert captures[4:] == [2, 2, 4, 4]  # full and last batches, again when inputs were copied
    # new captures do not use the pool of deleted ones
    pools = recorder.captured_pools
    assert pools[0] == pools[1]
    assert pools[2] == pools[3] > pools[1]
    assert losses[:4] == pytest.approx(losses[4:], rel=1e-6)


@pytest.mark.parametrize(
    ("sizes", "rounds", "expected"),
    [
        # the trial step is a first step; each kind is prepared once
        (
            (40, 40),
            [(0, 1)] * 3,
            [
                "trial step",
                "capturing a step (2 x 16 samples)",
                "first step (2 x 8 samples)",
                "capturing a step (2 x 8 samples)",
            ],
        ),
        # new replicas with known kernels are captured at once; a step that no longer shares the
        # device runs first
        (
            (32, 32, 32),
            [(0, 1), (0, 1, 2), (1, 2), (2,)],
            [
                "trial step",
                "capturing a step (2 x 16 samples)",
                "capturing a step (3 x 16 samples)",
                "first step (1 x 16 samples)",
                "capturing a step (1 x 16 samples)",
            ],
        ),
        # a trial step with a smaller batch tries other kernels: cuDNN tries none for those
        (
            (9, 9),
            [(0, 1)],
            ["trial step", "first step (2 x 9 samples)", "capturing a step (2 x 9 samples)"],
        ),
    ],
)
def test_what_is_prepared_is_shown(sizes, rounds, expected):
    """In rounds with some of the clients, which have the given sizes."""
    shown = []

    @contextmanager
    def preparing(text):
        shown.append(text.removeprefix("preparing Net: "))
        yield

    def run(runner):
        runner.preparing, module, made = preparing, client(), jobs(sizes)
        for clients in rounds:
            runner.run_all(module, [made[number] for number in clients])

    captured(run, FakeRecorder())
    assert shown == expected


@pytest.mark.parametrize(
    "optimizer", [OptimizerSettings("adamw"), OptimizerSettings("sgd", momentum=0.9)]
)
def test_optimizers_have_their_state_before_a_step_is_captured(optimizer):
    """Of all replicas: what a capture allocates is overwritten by other captured steps."""
    parameters, found = {name for name, _ in Net().named_parameters()}, []

    class Recorder(FakeRecorder):
        def capture(self, steps, pool, rngs=()):
            for step in steps:
                replica = step.func.__self__
                weights = replica.module.model.named_parameters()
                found.append({name for name, p in weights if replica.optimizer.state.get(p)})
            return super().capture(steps, pool, rngs)

    def rounds(runner):
        module = client(optimizer=optimizer)
        for count in (2, 5):
            runner.run_all(module, jobs()[:count])

    captured(rounds, Recorder(5))
    assert len(found) > 5
    assert all(names == parameters for names in found)


def test_cudnn_tries_no_kernels_for_last_batches(monkeypatch):
    """Neither in the first step of a kind nor in the capture, in which it could not."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    tried = {}

    class Recorder(FakeRecorder):
        @contextmanager
        def step_context(self, others):
            tried.setdefault("first", []).append(torch.backends.cudnn.benchmark)
            yield

        def capture(self, steps, pool, rngs=()):
            tried.setdefault("captured", []).append(torch.backends.cudnn.benchmark)
            return super().capture(steps, pool, rngs)

    captured(lambda runner: runner.run_all(client(), jobs((40,))), Recorder())
    assert tried == {"first": [False], "captured": [True, False]}
    assert torch.backends.cudnn.benchmark
