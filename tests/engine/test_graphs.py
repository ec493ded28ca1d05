"""CUDA graphs of training steps give what plain steps give. All of it needs a GPU."""

import copy

import pytest
import pytorch_lightning as pl
import torch
from torch import nn

from fedaux_pl.data import TensorBatches
from fedaux_pl.engine import Job, StageRunner
from fedaux_pl.engine.graphs import CudaGraphs
from fedaux_pl.engine.replicas import Trial
from fedaux_pl.models import create_model
from fedaux_pl.modules import ClientModule, DistillationModule, SimCLR
from tests.engine.test_stage import Outer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SIZES = (200, 197, 131, 200, 64)


class Eager(CudaGraphs):
    """Refuses everything."""

    def attempt(self, *args):
        return Trial("plain steps are asked for", 1)


def within(work, precision="32-true"):
    """What a function of the runner gives inside a Trainer on the GPU."""
    outer = Outer(lambda runner: work(runner.trainer), before=False)
    pl.Trainer(
        accelerator="gpu",
        devices=1,
        precision=precision,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(outer)
    return outer.result


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


def plain_and_recorded(module, work, precision="32-true"):
    results = []
    for recorder in (Eager, CudaGraphs):
        one = copy.deepcopy(module)
        results.append(
            within(
                lambda trainer, one=one, recorder=recorder: work(
                    StageRunner(trainer, recorder(torch.device("cuda", 0))), one
                ),
                precision,
            )
        )
    return results


def distance(one, other):
    """|a - b| / |a - start| would need the start: relative to |a| is stricter where weights move."""
    gap = sum(float((one[k] - other[k]).double().square().sum()) for k in one)
    size = sum(float(one[k].double().square().sum()) for k in one)
    return (gap / size) ** 0.5


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("options", [{}, {"mu": 0.1}, {"train": "head"}, {"optimizer": "sgd"}])
def test_clients(precision, options):
    torch.manual_seed(0)
    module = ClientModule(create_model("resnet8", 10), 10, **options)
    start = module.trained_state()
    plain, recorded = plain_and_recorded(
        module, lambda runner, one: runner.run_all(one, jobs(start)), precision
    )
    for one, other in zip(plain, recorded, strict=True):
        assert one.steps == other.steps
        # steps of Adam are as large for a gradient of rounding errors as for any other
        assert distance(one.state, other.state) < (1e-2 if precision == "32-true" else 5e-2)
        assert one.loss == pytest.approx(other.loss, rel=0.05)


def test_one_step_is_the_same_step():
    torch.manual_seed(0)
    module = ClientModule(create_model("resnet8", 10), 10, optimizer="sgd", lr=0.1)
    start = module.trained_state()
    for epochs in (1, 3):  # of one batch each: the third step is a replay
        plain, recorded = plain_and_recorded(
            module,
            lambda runner, one, epochs=epochs: runner.run_all(
                one, jobs(start, sizes=(32, 32), epochs=epochs)
            ),
        )
        for one, other in zip(plain, recorded, strict=True):
            assert distance(one.state, other.state) < 1e-4


def test_students():
    torch.manual_seed(0)
    module = DistillationModule(create_model("resnet8", 10), 10, lr=1e-3)
    start = module.trained_state()
    plain, recorded = plain_and_recorded(
        module, lambda runner, one: runner.run_all(one, jobs(start, "soft", (400,)))
    )
    assert distance(plain[0].state, recorded[0].state) < 1e-2


def test_views_are_random_and_repeat_with_the_seed():
    torch.manual_seed(0)
    module = SimCLR("resnet8")

    def work(runner, one):
        batches = jobs(None, sizes=(400,), batch_size=64)[0].batches
        states = []
        for seed in (3, 3, 4):
            again = copy.deepcopy(one)
            runner.run(again, TensorBatches(batches.tensors[0], batch_size=64), 2, seed)
            states.append(again.backbone_state())
        return states

    plain, recorded = plain_and_recorded(module, work)
    for states in (plain, recorded):
        assert distance(states[0], states[1]) < 1e-2 < distance(states[0], states[2]) * 10
    assert distance(plain[0], recorded[0]) < 2e-2


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
    assert attempt(ClientModule(Dropping())) == Trial("", 1)
