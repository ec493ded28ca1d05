"""Recorded steps side by side are plain training.

The recorder here records nothing: it takes the steps again, on the tensors that they were given.
So all that is particular to recording is tested (which samples, which replica, which kind of step,
optimizers that are reset in place), and CUDA graphs themselves where there is a GPU.
"""

import copy
import dataclasses
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from fedaux_pl.data import TensorBatches
from fedaux_pl.engine import Job, StageRunner
from fedaux_pl.engine.replicas import Replicas, Trial
from fedaux_pl.modules import ClientModule
from tests.engine.test_stage import within

SIZES = (50, 37, 64, 16, 33)


class Own:
    """Random numbers of the CPU that one replica alone draws."""

    def seed(self, seed):
        self.state = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def drawn(self):
        before = torch.get_rng_state()
        torch.set_rng_state(self.state)
        yield
        self.state = torch.get_rng_state()
        torch.set_rng_state(before)


class Again:
    """Takes steps again, and counts what it was asked for."""

    def __init__(self, limit=3, obstacle="", draws=False):
        self.trial = Trial(obstacle, limit, draws)
        self.numbered = []
        self.recorded = []
        self.replayed = 0
        self.others = set()
        self.pools = 0
        self.recorded_in = []

    def attempt(self, module, optimizer_of, batch, step):
        return self.trial

    def prepare(self, optimizer):
        pass

    def pool(self):
        self.pools += 1
        return self.pools

    def numbers(self):
        return Own()

    @contextmanager
    def beside(self, others):
        self.others.add(others)
        yield

    def record(self, steps, pool, numbers):
        self.recorded.append(len(steps))
        self.recorded_in.append(pool)
        self.numbered.append(len(numbers))

        def replay():
            self.replayed += 1
            for step in steps:
                step()

        return replay


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


def client(**options):
    torch.manual_seed(0)
    return ClientModule(Net(), 3, **options)


def jobs(sizes=SIZES, seed=0, epochs=2, carried=None, state=None):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(300, 8, generator=generator)
    y = torch.randint(3, (300,), generator=generator)
    start = state or client().trained_state()
    made = []
    for number, size in enumerate(sizes):
        subset = torch.randperm(300, generator=generator)[:size]
        batches = TensorBatches(
            x, y, batch_size=16, shuffle=True, seed=10 * seed + number, smallest=2, subset=subset
        )
        kept = None if carried is None else carried[number]
        made.append(Job(batches, epochs, seed, start, kept))
    return made


def both(work, recorder=None):
    """What some work gives step by step, and recorded."""
    recorder = recorder or Again()
    plain = within(lambda runner: work(StageRunner(runner.trainer)))
    recorded = within(lambda runner: work(StageRunner(runner.trainer, recorder)))
    return plain, recorded


def assert_same_results(plain, recorded):
    assert len(plain) == len(recorded)
    for one, other in zip(plain, recorded, strict=True):
        assert one.steps == other.steps
        assert one.loss == pytest.approx(other.loss, rel=1e-6)
        for key, value in one.state.items():
            assert torch.equal(value, other.state[key]), key
        for index, entries in one.optimizer_state["state"].items():
            for name, value in entries.items():
                assert torch.equal(value, other.optimizer_state["state"][index][name])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mu": 0.1},
        {"train": "head"},
        {"optimizer": "sgd", "momentum": 0.9, "lr": 0.1},
        {"optimizer": "adamw", "weight_decay": 0.1},
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 3, 8])
def test_clients_of_unequal_sizes(options, limit):
    recorder = Again(limit)
    results = both(lambda runner: runner.run_all(client(**options), jobs()), recorder)
    assert_same_results(*results)
    assert recorder.replayed > 0
    assert max(recorder.recorded) == min(limit, len(SIZES)) or limit == 8
    assert max(recorder.others) == max(recorder.recorded) - 1


class Dropping(Net):
    def features(self, x):
        return nn.functional.dropout(super().features(x), 0.3, self.training)


@pytest.mark.parametrize("limit", [1, 2, 3, 8])
def test_replicas_draw_random_numbers_of_their_own(limit):
    """Beside others a client drops what it drops alone, in every epoch and in the next round."""
    recorder = Again(limit, draws=True)

    def rounds(runner):
        torch.manual_seed(0)
        module, results = ClientModule(Dropping(), 3), []
        for round_ in range(2):
            seeds = [10 * round_ + number for number in range(len(SIZES))]
            drawn = [
                dataclasses.replace(job, seed=seed)
                for job, seed in zip(jobs(seed=round_), seeds, strict=True)
            ]
            results += runner.run_all(module, drawn)
        return results

    assert_same_results(*both(rounds, recorder))
    assert recorder.numbered == recorder.recorded
    assert max(recorder.recorded) == min(limit, len(SIZES))


def test_steps_that_draw_nothing_need_no_numbers():
    recorder = Again()
    within(lambda runner: StageRunner(runner.trainer, recorder).run_all(client(), jobs()))
    assert set(recorder.numbered) == {0}


def test_later_rounds_reuse_what_was_recorded():
    recorder = Again()
    counts = []

    def rounds(runner):
        module = client()
        results = []
        for seed in range(4):  # other orders, other clients in other places
            order = [(n + seed) % len(SIZES) for n in range(len(SIZES))]
            results = runner.run_all(module, jobs([SIZES[n] for n in order], seed))
            counts.append(len(recorder.recorded))
        return results

    assert_same_results(*both(rounds, recorder))
    recorded = counts[4:]
    assert recorded[-1] - recorded[-2] <= 2
    assert recorder.replayed > 10


def test_optimizers_go_on_in_place():
    def carry(runner):
        module = client()
        first = runner.run_all(module, jobs())
        carried = [result.optimizer_state for result in first]
        before = copy.deepcopy(carried)
        second = runner.run_all(module, jobs(seed=1, carried=carried))
        for one, other in zip(before, carried, strict=True):  # what was carried is left alone
            for index, entries in one["state"].items():
                for name, value in entries.items():
                    assert torch.equal(value, other["state"][index][name])
        runner.run_all(module, jobs(seed=2))  # and a fresh start after that is one
        return second + runner.run_all(module, jobs(seed=3, carried=carried))

    assert_same_results(*both(carry))


def test_the_optimizer_is_only_copied_where_it_is_wanted():
    wanted = [Job(j.batches, 1, 0, j.state, keep_optimizer=False) for j in jobs((40,))]
    for result in both(lambda runner: runner.run_all(client(), wanted)):
        assert result[0].optimizer_state is None


def test_one_module_in_place():
    def single(runner):
        module = client()
        losses = []
        result = runner.run(module, jobs((70,))[0].batches, 3, 5, on_epoch=losses.append)
        assert losses[-1] == result.loss
        return module.trained_state(), losses

    plain, recorded = both(single)
    for key, value in plain[0].items():
        assert torch.equal(value, recorded[0][key])
    assert plain[1] == pytest.approx(recorded[1], rel=1e-6)


def test_what_cannot_be_recorded_runs_step_by_step(caplog):
    recorder = Again(obstacle="it asks the host")
    with caplog.at_level("INFO", logger="fedaux_pl"):
        results = both(lambda runner: runner.run_all(client(), jobs()) * 2, recorder)
    assert_same_results(*results)
    assert not recorder.recorded
    said = [r.message for r in caplog.records if "ClientModule" in r.message]
    assert said == [
        "ClientModule: steps run one by one, because they cannot be recorded (it asks the host)"
    ]


def test_results_are_in_the_order_of_the_jobs_and_reported_as_they_come():
    reported = []

    def work(runner):
        return runner.run_all(client(), jobs(), on_done=reported.append)

    within(lambda runner: work(StageRunner(runner.trainer, Again())))
    assert [r.steps for r in reported] == sorted((r.steps for r in reported), reverse=True)
    results = within(lambda runner: work(StageRunner(runner.trainer, Again())))
    assert [r.steps for r in results] == [2 * len(job.batches) for job in jobs()]


def test_a_forgotten_module_is_recorded_anew():
    recorder = Again()

    def twice(runner):
        module = client()
        for _ in range(2):
            runner.run_all(module, jobs((40,)))
            runner.forget(module)

    within(lambda runner: twice(StageRunner(runner.trainer, recorder)))
    assert recorder.recorded == [1, 1, 1, 1]  # full and last batches, twice


def test_waves_are_few_and_equal():
    replicas = Replicas(client(), lambda m: m.configure_optimizers(), None, Again(), 8)
    for count, expected in ((1, [1]), (8, [8]), (9, [4, 5]), (20, [6, 7, 7]), (40, [8] * 5)):
        waves = list(replicas.waves(range(count)))
        assert [len(wave) for wave in waves] == expected
        assert [n for wave in waves for n in wave] == list(range(count))


def test_what_is_recorded_reads_from_where_it_read_before():
    """New soft labels in every round are copied to one place; data that stays is read in place."""
    recorder = Again()
    x = torch.randn(40, 8)
    recorded, losses = [], []

    def rounds(runner):
        module = client()
        for round_ in range(4):
            y = torch.randint(3, (40,), generator=torch.Generator().manual_seed(round_))
            batches = TensorBatches(x, y, batch_size=16, shuffle=True, seed=round_)
            start = module.trained_state()
            [result] = runner.run_all(module, [Job(batches, 2, 0, start)])
            recorded.append(len(recorder.recorded))
            losses.append(result.loss)
        return [result]

    assert_same_results(*both(rounds, recorder))
    assert recorded[4:] == [2, 4, 4, 4]  # full and last batches, again when labels were copied
    # memory of recordings that are gone is not recorded into
    assert recorder.recorded_in[0] == recorder.recorded_in[1]
    assert recorder.recorded_in[2] == recorder.recorded_in[3] > recorder.recorded_in[1]
    assert losses[:4] == pytest.approx(losses[4:], rel=1e-6)
