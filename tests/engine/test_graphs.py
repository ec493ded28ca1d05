"""CUDA graphs of training steps give what plain steps give. All of it needs a GPU."""

import copy
import dataclasses
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import nn

from fedaux_pl.data import TensorBatches
from fedaux_pl.engine import Job, StageRunner
from fedaux_pl.engine.graphs import CudaGraphs
from fedaux_pl.engine.replicas import Trial
from fedaux_pl.models import create_model
from fedaux_pl.models.tiling import ALONE, CROWDED, tiling
from fedaux_pl.modules import ClientModule, DistillationModule, SimCLR
from tests.engine.test_stage import within as within_trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SIZES = (200, 197, 131, 200, 64)


class Again(CudaGraphs):
    """Takes steps again in place of replaying them."""

    def record(self, steps, pool, numbers=()):
        def again():
            for step in steps:
                with self.beside(len(steps) - 1):
                    step()

        return again


class Plain(CudaGraphs):
    """Refuses everything."""

    def attempt(self, *args):
        return Trial("plain steps are asked for", 1)


def within(work, precision="32-true"):
    """What a function of the Trainer gives inside one on the GPU."""
    return within_trainer(lambda runner: work(runner.trainer), precision, accelerator="gpu")


def jobs(start, targets="labels", sizes=SIZES, epochs=2, batch_size=32):
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(256, (400, 3, 32, 32), generator=generator, dtype=torch.uint8).cuda()
    y = torch.randint(10, (400,), generator=generator).cuda()
    if targets == "soft":
        y = torch.randn(400, 10, generator=generator).softmax(dim=1).cuda()
    made = []
    for number, size in enumerate(sizes):
        subset = torch.randperm(400, generator=generator)[:size]
        batches = TensorBatches(
            x, y, batch_size=batch_size, shuffle=True, seed=number, smallest=2, subset=subset
        )
        made.append(Job(batches, epochs, number, start))
    return made


def results(module, work, precision="32-true", recorders=(Plain, CudaGraphs)):
    """What some work gives with each of the recorders."""
    device = torch.device("cuda", 0)
    found = []
    for recorder in recorders:
        one = copy.deepcopy(module)
        found.append(
            within(
                lambda trainer, one=one, recorder=recorder: work(
                    StageRunner(trainer, recorder(device)), one
                ),
                precision,
            )
        )
    return found


def distance(one, other, start):
    """How far two trainings are apart, relative to how far they went."""

    def size(a, b):
        return sum(float((a[k].double() - b[k].double().to(a[k].device)).square().sum()) for k in a)

    return (size(one, other) / size(one, start)) ** 0.5


@pytest.fixture
def deterministic(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize(
    "options", [{}, {"mu": 0.1}, {"train": "head"}, {"optimizer": "sgd", "momentum": 0.9}]
)
def test_replayed_steps_are_the_steps(deterministic, precision, options):
    """The same kernels on the same samples: what differs is rounding, if anything."""
    torch.manual_seed(0)
    module = ClientModule(create_model("resnet8", 10), 10, **options)
    start = module.trained_state()
    again, replayed = results(
        module, lambda runner, one: runner.run_all(one, jobs(start)), precision, (Again, CudaGraphs)
    )
    for one, other in zip(again, replayed, strict=True):
        assert one.steps == other.steps
        assert distance(one.state, other.state, start) < 1e-3
        assert one.loss == pytest.approx(other.loss, rel=1e-3)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_replayed_steps_are_plain_training(precision):
    """Other kernels round otherwise, and Adam makes as much of a small gradient as of a large."""
    torch.manual_seed(0)
    module = ClientModule(create_model("resnet8", 10), 10)
    start = module.trained_state()
    plain, replayed = results(
        module, lambda runner, one: runner.run_all(one, jobs(start)), precision
    )
    for one, other in zip(plain, replayed, strict=True):
        assert one.steps == other.steps
        assert distance(one.state, other.state, start) < 0.3
        assert one.loss == pytest.approx(other.loss, rel=0.05)


def test_students(deterministic):
    torch.manual_seed(0)
    module = DistillationModule(create_model("resnet8", 10), 10, lr=1e-3)
    start = module.trained_state()
    again, replayed = results(
        module,
        lambda runner, one: runner.run_all(one, jobs(start, "soft", (400,))),
        recorders=(Again, CudaGraphs),
    )
    assert distance(again[0].state, replayed[0].state, start) < 1e-3


def test_views_are_random_and_repeat_with_the_seed(deterministic):
    torch.manual_seed(0)
    module = SimCLR("resnet8")
    start = module.backbone_state()
    images = jobs(None)[0].batches.tensors[0]

    def work(runner, one):
        states = []
        for seed in (3, 3, 4):
            again = copy.deepcopy(one)
            runner.run(again, TensorBatches(images, batch_size=64), 2, seed)
            states.append(again.backbone_state())
            runner.forget(again)
        return states

    again, replayed = results(module, work, recorders=(Again, CudaGraphs))
    for states in (again, replayed):
        assert distance(states[0], states[1], start) < 1e-3
        assert distance(states[0], states[2], start) > 0.1
    assert distance(again[0], replayed[0], start) < 1e-3


class Twice(ClientModule):
    """Every convolution is used twice in a step."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + self(batch[0].flip(3)).square().mean()


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
@pytest.mark.parametrize(
    "create",
    [
        DistillationModule,
        partial(ClientModule, mu=0.1),
        partial(ClientModule, train="head"),
        partial(ClientModule, optimizer="sgd", momentum=0.9),
        Twice,
    ],
)
def test_weight_gradients_aside_change_nothing(deterministic, create, precision):
    """The same kernels on other streams; a missing wait would leave other values behind."""
    torch.manual_seed(0)
    module = create(create_model("resnet8", 10), 10, lr=1e-3)
    start = module.trained_state()
    targets = "soft" if create is DistillationModule else "labels"
    inline, aside = results(
        module,
        lambda runner, one: runner.run_all(one, jobs(start, targets, (400,), epochs=4)),
        precision,
        (partial(CudaGraphs, overlap=False), CudaGraphs),
    )
    assert distance(inline[0].state, aside[0].state, start) < 1e-3
    assert inline[0].loss == pytest.approx(aside[0].loss, rel=1e-3)


def test_views_with_weight_gradients_aside(deterministic):
    torch.manual_seed(0)
    module = SimCLR("resnet8")
    start = module.backbone_state()
    images = jobs(None)[0].batches.tensors[0]

    def work(runner, one):
        runner.run(one, TensorBatches(images, batch_size=64), 2, 3)
        return one.backbone_state()

    recorders = (partial(CudaGraphs, overlap=False), CudaGraphs)
    inline, aside = results(module, work, "bf16-mixed", recorders)
    assert distance(inline, aside, start) < 1e-3


def test_only_replicas_that_are_alone_have_a_side_stream(monkeypatch):
    used = []

    @contextmanager
    def overlapping(side):
        used.append(side)
        yield

    monkeypatch.setattr("fedaux_pl.engine.graphs.overlapping", overlapping)
    graphs = CudaGraphs(torch.device("cuda", 0))
    with graphs._recorded_beside(1):
        assert tiling(2048, 64).shares is CROWDED
    assert not used
    with graphs._recorded_beside(0):
        assert tiling(2048, 64).shares is ALONE
    assert used == [graphs._side]
    with graphs.beside(0):
        assert tiling(2048, 64).shares is ALONE
    assert len(used) == 1


class Asking(ClientModule):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * (1.0 if loss.item() > 0 else 2.0)


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = create_model("resnet8", 10, width=0.25)
        self.feature_dim, self.head = self.body.feature_dim, self.body.head

    def features(self, x):
        return nn.functional.dropout(self.body.features(x), 0.5, self.training)

    def forward(self, x):
        return self.head(self.features(x))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_replicas_draw_random_numbers_of_their_own(deterministic, precision):
    """Side by side, and replayed, a client drops what it drops alone and step by step."""
    torch.manual_seed(0)
    module = ClientModule(Dropping(), 10)
    start = module.trained_state()

    class Single(Again):
        def attempt(self, *args):
            return dataclasses.replace(super().attempt(*args), limit=1)

    alone, beside, otherwise = (
        results(
            module,
            lambda runner, one, made=made: runner.run_all(one, made),
            precision,
            (recorder,),
        )[0]
        for made, recorder in (
            (jobs(start), Single),
            (jobs(start), CudaGraphs),
            ([dataclasses.replace(job, seed=job.seed + 7) for job in jobs(start)], CudaGraphs),
        )
    )
    for one, other, third in zip(alone, beside, otherwise, strict=True):
        assert distance(one.state, other.state, start) < 1e-2
        assert distance(one.state, third.state, start) > 0.05


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_texts_are_recorded_with_dropout_too(precision):
    torch.manual_seed(0)
    config = {"vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 2, "intermediate_size": 128, "max_position_embeddings": 64}
    module = ClientModule("encoder", 4, lr=1e-4, model_options={"config": config})
    start = module.trained_state()
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(5, 500, (400, 64), generator=generator, dtype=torch.int32)
    x[:, 40:] *= (torch.rand(400, 1, generator=generator) < 0.5).int()
    x, y = x.cuda(), torch.randint(4, (400,), generator=generator).cuda()
    made = [
        Job(
            TensorBatches(x, y, batch_size=32, shuffle=True, seed=n, subset=torch.arange(size)),
            2,
            n,
            start,
        )
        for n, size in enumerate(SIZES)
    ]
    recorder = CudaGraphs(torch.device("cuda", 0))
    again, replayed = results(
        module,
        lambda runner, one: runner.run_all(one, made),
        precision,
        (Again, lambda device: recorder),
    )
    for one, other in zip(again, replayed, strict=True):
        assert one.steps == other.steps
        assert distance(one.state, other.state, start) < 0.1  # sums of gradients in any order
        assert one.loss == pytest.approx(other.loss, rel=0.02)


def test_what_can_be_recorded_is_found_out_beforehand():
    batch = jobs(None)[0].batches.positions(0)[0], None
    x, y = jobs(None)[0].batches.tensors
    batch = x[batch[0]], y[batch[0]]

    def attempt(module):
        def work(trainer):
            graphs = CudaGraphs(torch.device("cuda", 0))
            runner = StageRunner(trainer, graphs)
            with torch.enable_grad():
                return graphs.attempt(
                    module.cuda().train(), lambda m: m.configure_optimizers(), batch, runner._step
                )

        return within(work)

    assert "synchroniz" in attempt(Asking("resnet8")).obstacle
    assert attempt(ClientModule("resnet8")) == Trial("", 8)
    assert attempt(ClientModule(Dropping())) == Trial("", 8, draws=True)
