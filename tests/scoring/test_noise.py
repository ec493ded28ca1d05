"""Gaussian noise: its distribution, its tails, its seeds and its last bits."""

import math
import random

import torch
from scipy import stats

from fedaux_pl.functional import gaussian_sigma
from fedaux_pl.scoring import Privacy
from fedaux_pl.scoring.noise import standard_normal

VECTOR = torch.tensor([1.0, -2.0, 3.0])


def test_noise_depends_on_its_seed_and_not_on_the_global_one():
    def draw(seed):
        torch.manual_seed(0)
        return Privacy(0.5, 1e-5).release(VECTOR, 1.0, noise_seed=seed)[0]

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))
    assert not torch.equal(draw(None), draw(None))


def test_two_seeded_releases_do_not_cancel():
    """If their noise were equal up to its scale, two releases would reveal the vector."""

    def solve(one, other):
        (first, a), (second, b) = one, other
        return (first * b.sigma - second * a.sigma) / (b.sigma - a.sigma)

    def release(epsilon, sensitivity=1.0, vector=VECTOR, share=1.0, **options):
        return Privacy(epsilon, **options).release(vector, sensitivity, noise_seed=7, share=share)

    pairs = [
        (release(0.1), release(0.04)),
        (release(0.1), release(0.1, sensitivity=0.5)),
        (release(0.1), release(0.1, delta=1e-6)),
        (release(0.1), release(0.1, mechanism="classical")),
        (release(0.1), release(0.1, 0.5, VECTOR.flip(0))),
        (release(0.1), release(0.1, share=0.5)),
    ]
    for one, other in pairs:
        assert (solve(one, other) - VECTOR).norm() > VECTOR.norm()
    near, same = release(0.1, vector=VECTOR.double() + 1e-9), release(0.1)
    assert (near[0] - same[0]).norm() > 1  # the difference of the vectors does not show


def test_the_noise_is_gaussian_with_the_sigma_of_the_guarantee():
    draws = []
    for _ in range(700):
        released, record = Privacy(0.5, 1e-5).release(VECTOR, 0.25)
        draws.append(released - VECTOR)
    sigma = gaussian_sigma(0.5, 1e-5, 0.25)
    assert (record.sigma, record.sensitivity, record.mechanism) == (sigma, 0.25, "analytic")
    assert (record.epsilon, record.delta, record.flaw) == (0.5, 1e-5, "")
    noise = torch.cat(draws) / sigma
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-4
    assert len(noise.unique()) > 0.7 * len(noise)  # of about 6,000 multiples of sigma / 1,024


def test_low_order_bits_do_not_tell_the_vector():
    """Of noise alone they are random; of 0.1 plus noise near -0.1 they are 0."""
    for vector in (torch.zeros(400), torch.full((400,), 0.1)):
        released, record = Privacy(1.0, 1e-5).release(vector, 0.01)
        step = 2.0 ** math.floor(math.log2(record.sigma)) / 1024
        assert record.sigma / 2048 < step <= record.sigma / 1024
        assert torch.equal(released / step, (released / step).round())
    simulated, _ = Privacy(1.0, 1e-5).release(vector, 0.01, noise_seed=0)
    assert not torch.equal(simulated / step, (simulated / step).round())  # those of earlier runs


class Bits(random.Random):
    """The same random bit forever."""

    def __init__(self, bit):
        self.bit = bit

    def getrandbits(self, count):
        return self.bit * (2**count - 1)


def test_the_tails_of_the_noise_reach_the_smallest_delta():
    assert abs(standard_normal(1, Bits(0)).item()) > 37
    assert standard_normal(1, Bits(1)).item() == 0
    least = -math.log10(stats.norm.sf(37))
    assert least > 100  # the smallest delta that a budget accepts


def test_far_tails_have_the_right_distribution():
    """Given that the first 60 bits are 0, a tail beyond 8.8 standard deviations."""

    class Tail(random.Random):
        def getrandbits(self, count):
            return super().getrandbits(count) >> (60 if count > 60 else 0)

    noise = standard_normal(3000, Tail(0)).abs()
    assert noise.min() > 8.8
    uniform = stats.norm.sf(noise.numpy()) * 2 * 2**60
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3
