"""Pre-training with a schedule over its steps and clipped gradients, against a plain loop."""

import copy
import math

import torch

from fedaux_pl.algorithms import FedAvg
from fedaux_pl.engine import StageRunner, isolated_rng
from fedaux_pl.federation.settings import Pretraining
from fedaux_pl.modules import SimCLR
from tests.federations import assert_same, create, fit


class Plain:
    """Trains as the runner does, and keeps the weights of h_0."""

    def __init__(self, module, job):
        batches, epochs = job.batches, job.epochs
        optimizer = torch.optim.SGD(module.parameters(), 0.5, momentum=0.9, weight_decay=1e-4)
        self.rates, total = [], epochs * len(batches)
        torch.manual_seed(job.seed)
        module.train()
        for epoch in range(epochs):
            batches.set_epoch(epoch)
            for index, batch in enumerate(batches):
                step = epoch * len(batches) + index
                lr = 0.5 * (step + 1) if step < 2 else 0.5 + 0.5 * math.cos(
                    math.pi * (step - 2) / (total - 2)
                )  # fmt: skip
                for group in optimizer.param_groups:
                    group["lr"] = lr / 2
                self.rates.append(lr / 2)
                optimizer.zero_grad()
                module.training_step(batch, index).backward()
                torch.nn.utils.clip_grad_norm_(module.parameters(), 0.05)
                optimizer.step()
        self.h0 = module.backbone_state()


def test_h0_is_that_of_a_plain_loop(tmp_path, monkeypatch):
    options = {"optimizer": "sgd", "lr": 0.5, "momentum": 0.9, "weight_decay": 1e-4}
    settings = Pretraining(
        epochs=4, batch_size=20, schedule="cosine", warmup=0.25, clip_norm=0.05, **options
    )
    federation, found = create(FedAvg(pretrained=True), pretraining=settings), []
    trained = StageRunner.run_all

    def run_all(runner, module, jobs, *hooks, **given):
        if isinstance(module, SimCLR):
            with isolated_rng(0):
                found.append(Plain(copy.deepcopy(module), *jobs))
        return trained(runner, module, jobs, *hooks, **given)

    monkeypatch.setattr(StageRunner, "run_all", run_all)
    fit(tmp_path, federation, 1)
    [plain] = found
    assert_same(federation.h0["resnet8"], plain.h0)
    assert len(plain.rates) == 8
    assert max(plain.rates) == 0.5 > 4 * plain.rates[-1]
