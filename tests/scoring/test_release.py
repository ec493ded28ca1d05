import math

import pytest
import torch
from scipy import stats

from fedaux_pl.functional import gaussian_sigma
from fedaux_pl.scoring import Budget

VECTOR = torch.tensor([1.0, -2.0, 3.0])


def test_the_noise_is_gaussian_with_the_sigma_of_the_guarantee():
    draws = []
    for _ in range(700):
        released, record = Budget(0.5, 1e-5).release(VECTOR, 0.25)
        draws.append(released - VECTOR)
    sigma = gaussian_sigma(0.5, 1e-5, 0.25)
    assert (record.sigma, record.sensitivity, record.mechanism) == (sigma, 0.25, "analytic")
    assert (record.epsilon, record.delta, record.flaw) == (0.5, 1e-5, "")
    noise = torch.cat(draws) / sigma
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-4
    assert len(noise.unique()) == len(noise)


def test_noise_depends_on_its_seed_and_not_on_the_global_one():
    def draw(seed):
        torch.manual_seed(0)
        return Budget(0.5, 1e-5).release(VECTOR, 1.0, noise_seed=seed)[0]

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))
    assert not torch.equal(draw(None), draw(None))


def test_without_noise_it_is_a_copy_without_a_guarantee():
    released, record = Budget(epsilon=None).release(VECTOR, 1.0)
    assert released.tolist() == VECTOR.tolist()
    released.zero_()
    assert VECTOR[0] == 1
    assert (record.epsilon, record.sigma, record.mechanism) == (math.inf, 0, "none")


def test_an_invalid_epsilon_is_refused():
    with pytest.raises(ValueError, match="epsilon must be positive"):
        Budget(0.0, 1e-5)
