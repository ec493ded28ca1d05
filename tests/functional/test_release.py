import math

import pytest
import torch
from scipy import stats

from fedaux_pl.functional import gaussian_release, gaussian_sigma, release_without_noise

VECTOR = torch.tensor([1.0, -2.0, 3.0])


def test_the_noise_is_gaussian_with_the_sigma_of_the_guarantee():
    draws = []
    for _ in range(700):
        released, record = gaussian_release(VECTOR, 0.25, 0.5, 1e-5)
        draws.append(released - VECTOR)
    sigma = gaussian_sigma(0.5, 1e-5, 0.25)
    assert (record.sigma, record.sensitivity, record.mechanism) == (sigma, 0.25, "analytic")
    assert (record.epsilon, record.delta, record.flaw) == (0.5, 1e-5, "")
    noise = torch.cat(draws) / sigma
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-4
    assert len(noise.unique()) == len(noise)


def test_a_seed_repeats_the_noise_and_the_global_one_does_not():
    def draw(seed):
        torch.manual_seed(0)
        return gaussian_release(VECTOR, 1.0, 0.5, 1e-5, noise_seed=seed)[0]

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))
    assert not torch.equal(draw(None), draw(None))


def test_without_noise_it_is_a_copy_that_promises_nothing():
    released, record = release_without_noise(VECTOR)
    assert released.tolist() == VECTOR.tolist()
    released.zero_()
    assert VECTOR[0] == 1
    assert (record.epsilon, record.sigma, record.mechanism) == (math.inf, 0, "none")


def test_it_refuses_what_has_no_sigma():
    with pytest.raises(ValueError, match="epsilon must be positive"):
        gaussian_release(VECTOR, 1.0, 0.0, 1e-5)
