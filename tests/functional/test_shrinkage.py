import pytest
import torch

from fedaux_pl.functional import shrink_to_mean


def drawn(n, k, spread, sigma, seed=0):
    """m + u_i, and the same with noise."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(k, generator=generator, dtype=torch.float64)
    true = mean + spread * torch.randn(n, k, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, k, generator=generator, dtype=torch.float64)
    return true, true + sigma[:, None] * noise


def test_against_a_loop():
    _, vectors = drawn(5, 7, 1.0, torch.full((5,), 0.5, dtype=torch.float64))
    sigmas = torch.tensor([0.1, 0.5, 0.5, 0.7, 0.0], dtype=torch.float64)
    found = shrink_to_mean(vectors, sigmas)
    mean = sum(vectors) / 5
    variance = sum(float(((v - mean) ** 2).sum()) for v in vectors) / (4 * 7)
    spread = max(0.0, variance - sum(float(s) ** 2 for s in sigmas) / 5)
    for guess, vector, sigma in zip(found, vectors, sigmas, strict=True):
        factor = spread / (spread + float(sigma) ** 2)
        torch.testing.assert_close(guess, mean + factor * (vector - mean))


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0, 3.0])
def test_estimates_are_closer_to_the_truth(spread):
    sigma = torch.linspace(0.5, 1.5, 20, dtype=torch.float64)
    true, noisy = drawn(20, 128, spread, sigma)
    before = (noisy - true).square().mean()
    after = (shrink_to_mean(noisy, sigma) - true).square().mean()
    best = spread**2 / (spread**2 + sigma.square())
    # the mean squared error of the best estimate for known m and t
    floor = (best * sigma.square()).mean()
    assert after < before
    assert after < 1.3 * floor + 0.1 * before


def test_vectors_that_differ_by_noise_only_become_equal():
    vectors = torch.tensor([[1.0, 2.0], [1.1, 2.0], [0.9, 1.9]])
    found = shrink_to_mean(vectors, torch.ones(3))
    torch.testing.assert_close(found, vectors.mean(dim=0).expand(3, 2))


@pytest.mark.parametrize("n", [1, 4])
def test_vectors_without_noise_are_unchanged(n):
    vectors = torch.randn(n, 3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(shrink_to_mean(vectors, torch.zeros(n)), vectors)
    equal = vectors[:1].expand(n, 3)
    torch.testing.assert_close(shrink_to_mean(equal, torch.zeros(n)), equal)


def test_a_single_vector_is_unchanged():
    vector = torch.tensor([[1.0, -2.0]])
    assert torch.equal(shrink_to_mean(vector, torch.ones(1)), vector)


@pytest.mark.parametrize(
    ("vectors", "sigmas"),
    [
        (torch.zeros(3), torch.zeros(3)),
        (torch.zeros(0, 2), torch.zeros(0)),
        (torch.zeros(3, 2), torch.zeros(2)),
        (torch.zeros(3, 2), -torch.ones(3)),
        (torch.zeros(3, 2), torch.full((3,), float("nan"))),
    ],
)
def test_bad_input_is_refused(vectors, sigmas):
    with pytest.raises(ValueError, match=r"vectors must be|at least 0"):
        shrink_to_mean(vectors, sigmas)
