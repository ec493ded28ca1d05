"""Discrete Gaussian noise: exact probabilities, OpenDP, the same bytes without floats, and sums."""

import math
import random
import sys
from fractions import Fraction
from hashlib import shake_256
from types import SimpleNamespace

import pytest

pytest.importorskip("opendp")

import numpy as np
import opendp.prelude as dp
from scipy.signal import fftconvolve
from scipy.stats import chi2_contingency, chisquare, ks_2samp

from fedaux_pl.functional import discrete_gaussian, gaussian_sigma, noise_of_sum

module = sys.modules["fedaux_pl.functional.discrete_gaussian"]  # not the function


def stream(seed=0):
    return random.Random(seed).randbytes


def probabilities(variance, points):
    """N_Z(0, variance) at integers that hold all of its mass."""
    weights = np.exp(-(points**2) / (2 * variance))
    return weights / weights.sum()


def binned(draws, edge):
    """The counts of -edge, ..., edge, all further ones at the ends."""
    return np.bincount(np.clip(np.asarray(draws), -edge, edge) + edge, minlength=2 * edge + 1)


@pytest.mark.parametrize(("sigma", "edge"), [(1, 3), (2, 6), (4, 12), (37, 100)])
def test_draws_have_the_exact_probabilities(sigma, edge):
    points = np.arange(-12 * sigma, 12 * sigma + 1)
    expected = np.zeros(2 * edge + 1)
    np.add.at(expected, np.clip(points, -edge, edge) + edge, probabilities(sigma**2, points))
    counts = binned(discrete_gaussian(300_000, sigma, stream()), edge)
    assert chisquare(counts, 300_000 * expected).pvalue > 0.01


def test_wide_draws_have_the_normal_moments_and_uniform_low_bits():
    for sigma in (10**6, 2**55):
        draws = discrete_gaussian(300_000, sigma, stream(1)).numpy()
        x = draws / sigma
        for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
            spread = math.sqrt(math.prod(range(1, 2 * power, 2)) / len(x))
            assert abs(float((x**power).mean()) - moment) < 4 * spread
        assert chisquare(np.bincount(draws % 16)).pvalue > 0.01


def test_draws_are_distributed_as_those_of_opendp():
    """OpenDP has no seed: p-values below 1e-9 do not occur by chance."""
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    theirs = dp.m.make_gaussian(*space, scale=4.0)([0] * 8000)
    counts = np.stack([binned(theirs, 10), binned(discrete_gaussian(8000, 4, stream()), 10)])
    assert chi2_contingency(counts).pvalue > 1e-9
    theirs = dp.m.make_gaussian(*space, scale=1e6)([0] * 8000)
    assert ks_2samp(theirs, discrete_gaussian(8000, 10**6, stream())).pvalue > 1e-9


class CountedStream:
    def __init__(self):
        self.bytes, self.requests = stream(3), []

    def __call__(self, count):
        self.requests.append(count)
        return self.bytes(count)


@pytest.mark.parametrize("sigma", [1, 7, 123_456_789, 2**55 - 1])
def test_floats_decide_nothing_that_integers_would_decide_otherwise(monkeypatch, sigma):
    """All decisions by integers, and an exp() that is wrong within the bound: the same draws."""
    fast, exp = CountedStream(), np.exp
    draws = discrete_gaussian(150, sigma, fast)
    for error, factor in ((2.0, 1.0), (2.0**-7, 1.005), (2.0**-7, 0.995)):
        monkeypatch.setattr(module, "_ERROR", error)
        monkeypatch.setattr(module.np, "exp", lambda x, factor=factor: factor * exp(x))
        slow = CountedStream()
        assert discrete_gaussian(150, sigma, slow).equal(draws)
        assert slow.requests == fast.requests


def test_an_exp_that_is_wrong_beyond_the_bound_is_seen(monkeypatch):
    draws, exp = discrete_gaussian(2000, 99, stream()), np.exp
    monkeypatch.setattr(module.np, "exp", lambda x: 1.005 * exp(x))
    assert not discrete_gaussian(2000, 99, stream()).equal(draws)


@pytest.mark.parametrize("power", [1, 3])
def test_a_tie_is_decided_by_further_bits(power):
    """The first 63 bits of e^-power: the extension decides, here against a series of fractions."""
    value = 1 / sum(Fraction(power**n, math.factorial(n)) for n in range(60))
    first, below = math.floor(value * 2**63), 0
    for number in range(300):
        further = shake_256(b"seed" + number.to_bytes(8, "little")).digest(32)
        exact = Fraction((first << 256) + int.from_bytes(further, "big"), 2**319) < value
        assert module._is_below(first, power, 1, b"seed", number) == exact
        below += exact
    assert below / 300 == pytest.approx(float(value * 2**63 - first), abs=0.1)


def test_decisions_close_to_one_another_end(monkeypatch):
    """Bits that agree with e^-1 to 180 places: the precision is doubled until they differ."""
    value = 1 / sum(Fraction(1, math.factorial(n)) for n in range(90))
    close = math.floor(value * 2 ** (63 + 1024))
    for shift, below in ((1, False), (-1, True)):
        bits = (close + (shift << 860)) & (2**1024 - 1)

        digest = SimpleNamespace(digest=lambda size, bits=bits: bits.to_bytes(128, "big")[:size])
        monkeypatch.setattr(module, "shake_256", lambda _, digest=digest: digest)
        assert module._is_below(close >> 1024, 1, 1, b"", 0) == below


def discreteness(variance):
    """L(s^2) of ``noise_of_sum``."""
    r = sum(math.exp(-2 * math.pi**2 * variance * j**2) for j in range(1, 9))
    return 2 * r / (1 - 2 * r)


@pytest.mark.parametrize("variance", [0.3, 0.5, 0.8])
def test_a_sum_of_discrete_gaussians_is_almost_one(variance):
    """Lemma 1 by convolution; 0.4 of the bound for two is attained."""
    points = np.arange(-60, 61)
    one = probabilities(variance, points)
    total, bound = one, 0.0
    for honest in range(2, 6):
        total = np.convolve(total, one, mode="same")
        bound += 2 * discreteness(variance * (honest - 1) / honest)
        near = np.abs(points) < 8 * math.sqrt(honest * variance)
        expected = probabilities(honest * variance, points)
        distance = float(np.abs(np.log(total[near] / expected[near])).max())
        assert distance <= bound * (1 + 1e-9)
        assert honest > 2 or distance > 0.4 * bound


@pytest.mark.parametrize("variance", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("spent", [0.2, 0.3, 0.4])  # 9 in the lemma, whose error no float shows
def test_a_discrete_gaussian_is_almost_a_processed_gaussian(variance, spent):
    """Lemma 2 by integration over the real number."""
    points = np.arange(-40, 41)
    step = 1 / 256
    x = np.arange(-30, 30, step)
    density = np.exp(-(x**2) / (2 * (variance - spent)))
    density /= math.sqrt(2 * math.pi * (variance - spent))
    kernel = np.exp(-((points[:, None] - x) ** 2) / (2 * spent))
    processed = (density * kernel / kernel.sum(axis=0)).sum(axis=1) * step
    near = np.abs(points) < 7 * math.sqrt(variance)
    distance = np.abs(np.log(processed[near] / probabilities(variance, points)[near])).max()
    bound = discreteness(spent) + discreteness(variance)
    assert 1e-7 < distance <= bound  # more than the rounding of this test


def delta_of(total, shift, epsilon):
    """The smallest delta at epsilon between a distribution on integers and itself, shifted."""
    moved = np.concatenate([np.zeros(shift), total[:-shift]])
    return float(np.maximum(total - math.exp(epsilon) * moved, 0).sum())


@pytest.mark.parametrize("honest", [1, 3, 20])
def test_the_noise_of_a_sum_has_the_budget_that_was_asked_for(honest):
    """The exact delta of the sum of the clients' noise; a client less exceeds the budget."""
    epsilon, delta, sensitivity = 1.0, 1e-3, 300
    multiplier = gaussian_sigma(epsilon, delta, sensitivity=1.0)
    variance, own = noise_of_sum(multiplier, sensitivity**2, honest)
    assert Fraction(multiplier) ** 2 * sensitivity**2 + 9 <= variance <= honest * own**2
    one = probabilities(own**2, np.arange(-12 * own, 12 * own + 1))
    totals = [np.ones(1)]
    for _ in range(honest):
        totals.append(fftconvolve(totals[-1], one))
    assert 0.9 * delta < delta_of(totals[-1], sensitivity, epsilon) <= delta
    assert honest == 1 or delta_of(totals[-2], sensitivity, epsilon) > 1.1 * delta


def test_the_least_noise_hides_that_it_is_discrete():
    """eta at sigma = 4, for 10^9 coordinates and 10^6 clients."""
    clients = 10**6
    eta = clients * 2 * discreteness(8) + discreteness(9) + discreteness(16)
    assert 0 < 1e9 * eta < 1e-40


def test_what_cannot_be_drawn_is_refused():
    for sigma in (0, 2**55 + 1):
        with pytest.raises(ValueError, match=f"sigma: got {sigma}; expected to be an integer"):
            discrete_gaussian(1, sigma, stream())
    wrong = {"multiplier": (math.nan, 10**9, 1), r"D\^2": (1.0, 0, 1), "honest": (1.0, 10**9, 0)}
    for name, values in wrong.items():
        with pytest.raises(ValueError, match=f"{name}.*: got .*; expected to be"):
            noise_of_sum(*values)
    for squared, honest in ((1, 3), (10**40, 3)):
        with pytest.raises(ValueError, match=r"in steps: got .* to lie in 4 \.\.\. 2\^55"):
            noise_of_sum(1.0, squared, honest)
