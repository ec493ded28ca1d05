"""A stage is plain training with the precision of the outer Trainer."""

import copy
import math

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn

from fedaux_pl.data import TensorBatches
from fedaux_pl.engine import Job, StageRunner
from fedaux_pl.engine.optimizer_state import is_resettable, restore
from fedaux_pl.modules import ClientModule, OptimizerSettings


class Outer(pl.LightningModule):
    """Calls a function of a stage runner in its training step, or before the first one."""

    def __init__(self, work, before):
        super().__init__()
        self.automatic_optimization = False
        self.work = work
        self.before = before
        self.result = None

    def configure_optimizers(self):
        return []

    def train_dataloader(self):
        return [0]

    def on_fit_start(self):
        if self.before:
            self.result = self.work(StageRunner(self.trainer))

    def training_step(self, batch, index):
        if not self.before:
            self.result = self.work(StageRunner(self.trainer))


def within(work, precision="32-true", before=False, accelerator="cpu"):
    """The result of a function of a stage runner, called under a Trainer."""
    outer = Outer(work, before)
    pl.Trainer(
        accelerator=accelerator,
        devices=1,
        precision=precision,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(outer)
    return outer.result


def train(runner, module, *job, on_epoch=None, **options):
    """The result of one job."""
    return runner.run_all(module, [Job(*job, **options)], on_epoch)[0]


class Net(nn.Module):
    feature_dim = 12

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 12)
        self.norm = nn.BatchNorm1d(12)
        self.head = nn.Linear(12, 3)
        self.seen = []

    def features(self, x):
        y = self.hidden(x)
        self.seen.append((torch.is_autocast_enabled("cpu"), y.dtype))
        return torch.relu(self.norm(y))

    def forward(self, x):
        return self.head(nn.functional.dropout(self.features(x), 0.2, self.training))


def module(**options):
    torch.manual_seed(0)
    return ClientModule(Net(), 3, **options)


def batches(epochs_differ=True):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(50, 8, generator=generator)
    y = torch.randint(3, (50,), generator=generator)
    return TensorBatches(x, y, batch_size=16, shuffle=epochs_differ, seed=3)


def by_hand(net, optimizer, epochs, seed):
    torch.manual_seed(seed)
    net.train()
    data = batches()
    losses = []
    for epoch in range(epochs):
        data.set_epoch(epoch)
        losses = []
        for x, y in data:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def test_it_is_plain_training():
    one = module()
    net = copy.deepcopy(one.model)
    result = within(lambda runner: train(runner, one, batches(), 2, seed=5))
    loss = by_hand(net, torch.optim.Adam(net.parameters(), lr=1e-3), 2, seed=5)
    for key, value in net.state_dict().items():
        assert torch.equal(one.model.state_dict()[key], value), key
    assert result.steps == 2 * 4
    assert result.loss == pytest.approx(loss, rel=1e-6)


def test_the_optimizer_continues_where_it_stopped():
    one = module()
    net = copy.deepcopy(one.model)

    def train_twice(runner):
        first = train(runner, one, batches(), 1, seed=5)
        return train(runner, one, batches(), 1, seed=6, optimizer_state=first.optimizer_state)

    result = within(train_twice)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for seed in (5, 6):
        by_hand(net, optimizer, 1, seed)
    assert torch.equal(one.model.hidden.weight, net.hidden.weight)
    assert int(result.optimizer_state["state"][0]["step"]) == 8


def test_a_stage_does_not_change_the_optimizer_state_it_is_given():
    """It may be in a checkpoint that is written later, or be needed again after a failure."""
    states = {}

    def train_twice(runner):
        state = train(runner, module(), batches(), 1, seed=5).optimizer_state
        states["before"] = copy.deepcopy(state)
        train(runner, module(), batches(), 1, seed=6, optimizer_state=state)
        states["after"] = state

    within(train_twice)
    for index, entries in states["before"]["state"].items():
        for name, value in entries.items():
            assert torch.equal(states["after"]["state"][index][name], value), name


@pytest.mark.parametrize("before", [True, False])
def test_the_precision_is_that_of_the_trainer(before):
    results = {}
    for precision in ("32-true", "bf16-mixed"):
        one = module()
        within(lambda runner, one=one: train(runner, one, batches(), 1, seed=5), precision, before)
        results[precision] = one.model
    assert set(results["32-true"].seen) == {(False, torch.float32)}
    assert set(results["bf16-mixed"].seen) == {(True, torch.bfloat16)}
    a, b = (results[name].hidden.weight for name in results)
    assert a.dtype == b.dtype == torch.float32
    assert not torch.equal(a, b)
    torch.testing.assert_close(a, b, atol=1e-2, rtol=0)


def test_random_numbers_depend_on_the_seed_alone():
    models = []

    def train_thrice(runner):
        torch.manual_seed(9)
        before = torch.get_rng_state()
        for seed in (5, 5, 6):
            one = module()
            torch.set_rng_state(before)
            train(runner, one, batches(), 1, seed=seed)
            models.append(one.model.hidden.weight)
            assert torch.equal(torch.get_rng_state(), before)

    within(train_thrice)
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])


@pytest.mark.parametrize("when", [0, 3])
def test_a_loss_that_is_not_a_number(when):
    one = module()
    plain = one.training_step
    one.training_step = lambda batch, index: (
        plain(batch, index) * (math.nan if index == when else 1)
    )
    with pytest.raises(FloatingPointError, match="loss of ClientModule became nan in epoch 1"):
        within(lambda runner: train(runner, one, batches(), 2, seed=0))


def test_the_error_names_the_learning_rate():
    one = module(optimizer=OptimizerSettings("sgd", lr=1e30, momentum=0.9))
    with pytest.raises(
        FloatingPointError, match=r"lower local\.lr \(--model\.local\.lr\), which is 1e\+30$"
    ):
        within(lambda runner: train(runner, one, batches(), 9, seed=0))
    one.option = ""  # a module that no option of a federation configures
    with pytest.raises(
        FloatingPointError, match="lower its learning rate, or use 32-true in place"
    ):
        within(lambda runner: train(runner, one, batches(), 9, seed=0), precision="bf16-mixed")


def test_losses_are_reported_epoch_by_epoch():
    losses = []
    result = within(
        lambda runner: train(runner, module(), batches(), 3, seed=0, on_epoch=losses.append)
    )
    assert len(losses) == 3
    assert losses[-1] == result.loss
    assert losses[-1] < losses[0]


def test_no_epochs_change_nothing():
    one = module()
    before = copy.deepcopy(one.state_dict())
    result = within(lambda runner: train(runner, one, batches(), 0, seed=0))
    assert math.isnan(result.loss)
    assert result.steps == 0
    assert all(torch.equal(value, before[key]) for key, value in one.state_dict().items())


def test_it_trains_where_gradients_are_off():
    one = module()
    before = one.model.hidden.weight.clone()

    def work(runner):
        with torch.no_grad():
            train(runner, one, batches(), 1, seed=0)

    within(work)
    assert not torch.equal(one.model.hidden.weight, before)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"momentum": 0.9}, True),
        ({"momentum": 0.9, "nesterov": True}, True),
        ({"momentum": 0.9, "dampening": 0.5}, False),
    ],
)
def test_a_reset_is_a_fresh_start_unless_momentum_is_dampened(options, expected):
    def step(optimizer, parameter):
        parameter.grad = torch.ones(2)
        optimizer.step()

    used, new = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = torch.optim.SGD([used], lr=1.0, **options)
    step(optimizer, used)
    restore(optimizer, None)
    used.data.zero_()
    step(optimizer, used)
    step(torch.optim.SGD([new], lr=1.0, **options), new)
    assert torch.equal(used, new) is is_resettable(optimizer) is expected
