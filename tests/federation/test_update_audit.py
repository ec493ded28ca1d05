"""An attack on private updates: canaries in tiny runs, whose updates an attacker tells apart.

Three records have gradients of 0. That of the fourth, the canary, is long, and its label turns it
around: the worst pair of the proof. The attacker sees the update of the run and knows all else.
"""

import math
from itertools import islice

import pytest
import torch
from torch import nn

from fedaux_pl import LocalTraining, UpdatePrivacy
from fedaux_pl.data.poisson_batches import PoissonBatches
from fedaux_pl.federation.private_updates import private_steps
from fedaux_pl.modules import GradientNoise, PrivateClientModule
from tests.scoring.test_audit import epsilon_lower_bound

EPSILON, DELTA = 1.0, 0.05
RUNS = 6_000
INPUTS = torch.zeros(4, 1)
INPUTS[0] = 1e4
LOCAL = LocalTraining(batch_size=2, privacy=UpdatePrivacy(EPSILON, DELTA, clip_norm=0.1))
STEPS = private_steps(LOCAL, size=4, rounds=1, released=0.0)


class Linear(nn.Module):
    """Two classes and one input."""

    feature_dim = 1

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1, 2, bias=False)

    def features(self, x):
        return x

    def forward(self, x):
        return self.head(x)


def draw_batches(label, rate):
    labels = torch.tensor([label, 0, 0, 0])
    options = {"rate": rate, "steps": RUNS * STEPS.steps, "subset": torch.arange(4)}
    return PoissonBatches(INPUTS, labels, seed=label, **options)


def trained_updates(label, noise, rate):
    """The weights after each of the first steps, by the learning rate."""
    client = PrivateClientModule(Linear())
    client.set_noise(noise)
    nn.init.zeros_(client.model.head.weight)
    lr = 1e-8  # the logits of the canary stay near 0
    optimizer = torch.optim.SGD(client.parameters(), lr)
    weights = []
    torch.manual_seed(label)
    for batch in islice(draw_batches(label, rate), 10):
        optimizer.zero_grad()
        client.training_step(batch, 0).backward()
        optimizer.step()
        weights.append(-client.model.head.weight.detach().flatten() / lr)
    return torch.stack(weights)


def updates(label, noise, rate=STEPS.rate):
    """The attacker's statistic of the updates of many runs, in which the canary has this label.

    It needs the draws of batches and noise alone; the first steps show that training has the same.
    """
    sign = 1 - 2 * label
    gradient = torch.tensor([-sign, sign]) * noise.clip_norm * (1 - 1e-4) / math.sqrt(2)
    drawn = [bool(inputs.any()) for inputs, _ in draw_batches(label, rate)]
    torch.manual_seed(label)
    means = torch.stack([noise.mean(gradient * is_drawn) for is_drawn in drawn])
    trained = trained_updates(label, noise, rate)
    torch.testing.assert_close(means[:10].cumsum(dim=0), trained, rtol=1e-3, atol=1e-4)
    return means.view(RUNS, -1, 2).sum(dim=1) @ torch.tensor([-1.0, 1.0])


def audit(multiplier=1.0, clip=1.0, **options):
    """A lower bound on epsilon with a part of the noise, or clipping at a multiple of the norm."""
    scale = multiplier * STEPS.multiplier / clip
    noise = GradientNoise(clip * LOCAL.privacy.clip_norm, scale, batch_size=2)
    return epsilon_lower_bound(*(updates(label, noise, **options) for label in (0, 1)), DELTA)


def test_updates_survive():
    """The attack is not blind: its lower bound is a good part of epsilon."""
    assert 0.4 < audit() <= EPSILON


@pytest.mark.parametrize("broken", [{"multiplier": 0.5}, {"clip": 3.0}, {"rate": 1.0}])
def test_broken_updates_are_caught(broken):
    """Half the noise, of a removed record; a longer gradient; every batch has every record."""
    assert audit(**broken) > EPSILON
