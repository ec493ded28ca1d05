import math

import pytest

pytest.importorskip("dp_accounting")

import numpy as np
import torch
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import norm

from fedaux_pl.functional import gaussian_epsilon
from fedaux_pl.functional.sampled_gaussian import (
    SampledGaussian,
    noise_multiplier,
    sampled_gaussian_epsilon,
)


def one_step_delta(rate, multiplier, epsilon):
    """H of P and Q at e^epsilon, by numerical integration."""
    x = np.linspace(0, 1 + 10 * multiplier, 200_001)

    def density(mean):
        return (1 - rate) * norm.pdf(x, 0, multiplier) + rate * norm.pdf(x, mean, multiplier)

    excess = density(1) - math.exp(epsilon) * density(-1)
    return np.trapezoid(excess.clip(0), x)


@pytest.mark.parametrize(("rate", "multiplier"), [(0.02, 0.8), (0.3, 1.5), (1.0, 2.0)])
def test_one_step_agrees_with_numerical_integration(rate, multiplier):
    delta = one_step_delta(rate, multiplier, epsilon=0.5)
    epsilon = sampled_gaussian_epsilon(delta, [SampledGaussian(rate, multiplier, 1)])
    assert epsilon + 1e-6 >= 0.5  # the integral has an error, too
    assert epsilon == pytest.approx(0.5, rel=2e-3)


@pytest.mark.parametrize(("rate", "multiplier", "steps"), [(0.1, 1.0, 30), (0.5, 4.0, 20)])
def test_a_second_accountant_finds_the_same_total(rate, multiplier, steps):
    """dp-accounting's distribution of the same pair, together with a Gaussian release."""
    mu = 0.7
    ours = [SampledGaussian(rate, multiplier, steps), SampledGaussian.of_release(mu)]
    options = {"value_discretization_interval": 1e-3}
    sampled = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier,
        sampling_prob=rate,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
        **options,
    )
    release = privacy_loss_distribution.from_gaussian_mechanism(1 / mu, **options)
    other = sampled.self_compose(steps).compose(release).get_epsilon_for_delta(1e-5)
    assert sampled_gaussian_epsilon(1e-5, ours) == pytest.approx(other, rel=2e-3)


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
def test_without_sampling_it_is_gaussian_differential_privacy(mu):
    exact = gaussian_epsilon(1e-5, 1 / mu)
    whole = sampled_gaussian_epsilon(1e-5, [SampledGaussian.of_release(mu)])
    steps = SampledGaussian(1.0, 2 / mu * math.sqrt(50), 50)
    assert exact <= whole <= 1.001 * exact
    assert exact <= sampled_gaussian_epsilon(1e-5, [steps]) <= 1.001 * exact
    assert sampled_gaussian_epsilon(1e-5, []) == 0


def plane_divergence(rate, gradients, factor):
    """H of a step in the plane for two clipped gradients, as a sum over a grid; z = 1."""
    axis = torch.linspace(-6, 6, 121).double()
    points = torch.cartesian_prod(axis, axis)

    def density(mean):
        return torch.exp(-0.5 * (points - mean).square().sum(1)) / (2 * math.pi)

    common = (1 - rate) * density(torch.zeros(2))
    one, other = (common + rate * density(gradient) for gradient in gradients)
    return float((one - factor * other).clamp(min=0).sum() * (axis[1] - axis[0]) ** 2)


@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_opposite_gradients_are_the_worst_pair(rate):
    generator = torch.Generator().manual_seed(0)
    worst = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double()
    pairs = torch.randn(8, 2, 2, generator=generator).double()
    pairs = pairs / pairs.norm(dim=2, keepdim=True).clamp(min=1)
    pairs[0] = torch.tensor([[1.0, 0.0], [0.0, 0.0]])  # a removed record
    pairs[1] = torch.eye(2)
    for factor in (1.0, 1.1, 1.5):
        bound = plane_divergence(rate, worst, factor)
        assert bound > 0
        assert all(plane_divergence(rate, pair, factor) < bound for pair in pairs)


def test_the_bound_of_a_removed_record_is_too_small():
    """That of add-or-remove accountants does not cover a replaced record."""
    removed = privacy_loss_distribution.from_gaussian_mechanism(
        1.0, sampling_prob=0.1, value_discretization_interval=1e-3
    )
    other = removed.self_compose(30).get_epsilon_for_delta(1e-5)
    assert sampled_gaussian_epsilon(1e-5, [SampledGaussian(0.1, 1.0, 30)]) > 1.2 * other


@pytest.mark.parametrize(("epsilon", "released"), [(8.0, 0.0), (1.0, 0.0), (1.0, 0.2), (50.0, 0.0)])
def test_the_multiplier_spends_the_budget_and_no_more(epsilon, released):
    rate = 0.05
    multiplier = noise_multiplier(epsilon, 1e-5, rate, 200, released)
    steps = SampledGaussian(rate, multiplier, 200)
    releases = [SampledGaussian.of_release(released)] if released else []
    assert 0.99 * epsilon < sampled_gaussian_epsilon(1e-5, [steps, *releases]) <= epsilon


def test_a_large_budget_has_the_least_multiplier():
    assert noise_multiplier(500.0, 1e-5, 0.01, 1) == 0.1


def test_a_budget_that_releases_have_spent_is_refused():
    with pytest.raises(ValueError, match="nothing of epsilon 1 is left"):
        noise_multiplier(1.0, 1e-5, 0.1, 100, released=0.3)


def test_equal_steps_add_up_and_more_cost_more():
    once = SampledGaussian(0.05, 1.0, 20)
    twice = SampledGaussian(0.05, 1.0, 40)
    total = sampled_gaussian_epsilon(1e-5, [once, once])
    assert total == sampled_gaussian_epsilon(1e-5, [twice])
    assert total > sampled_gaussian_epsilon(1e-5, [once])
    little = SampledGaussian(0.5, 0.05, 400)
    assert sampled_gaussian_epsilon(1e-5, [little]) == math.inf


def test_all_probability_is_on_the_grid():
    pmf, infinite = SampledGaussian(0.3, 0.7, 1).loss_pmf(2**12, 0.01)
    losses = 0.01 * np.concatenate([np.arange(2**11), np.arange(-(2**11), 0)])
    assert pmf.min() >= 0
    assert pmf.sum() + infinite == pytest.approx(1, abs=1e-12)
    assert (pmf * np.exp(-losses)).sum() == pytest.approx(1, abs=1e-6)  # under Q
