import pytest
import torch

from fedaux_pl.functional import shrink_to_mean


def drawn(n, k, spread, sigma):
    """m + u_i, and the same with noise."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(k, generator=generator, dtype=torch.float64)
    true = mean + spread * torch.randn(n, k, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, k, generator=generator, dtype=torch.float64)
    return true, true + sigma[:, None] * noise


@pytest.mark.parametrize("sigmas", [[0.4, 0.5, 0.5, 0.7, 0.6], [0.1, 0.5, 0.5, 0.7, 9.0]])
def test_against_a_loop(sigmas):
    """The estimate of t^2 whose expected value is t^2, with equal or other weights."""
    _, vectors = drawn(5, 7, 1.0, torch.full((5,), 0.5, dtype=torch.float64))
    found = shrink_to_mean(vectors, torch.tensor(sigmas, dtype=torch.float64))
    weights = [1.0] * 5 if max(sigmas) <= 2 * min(sigmas) else [s**-2 for s in sigmas]
    total = sum(weights)
    mean = sum(w * v for w, v in zip(weights, vectors, strict=True)) / total
    squares = sum(
        w * float((v - mean).square().mean()) for w, v in zip(weights, vectors, strict=True)
    )
    of_noise = sum(w * s**2 * (1 - w / total) for w, s in zip(weights, sigmas, strict=True))
    of_spread = sum(w * (1 - w / total) for w in weights)
    spread = max(0.0, (squares - of_noise) / of_spread)
    assert spread > 0
    if max(sigmas) > 2 * min(sigmas):
        weights = [1 / (spread + s**2) for s in sigmas]
        mean = sum(w * v for w, v in zip(weights, vectors, strict=True)) / sum(weights)
    for guess, vector, sigma in zip(found, vectors, sigmas, strict=True):
        factor = spread / (spread + sigma**2)
        torch.testing.assert_close(guess, mean + factor * (vector - mean))


def test_the_noise_of_a_small_client_does_not_hide_how_the_others_differ():
    sigma = torch.tensor([0.5] * 20 + [60.0], dtype=torch.float64)
    true, noisy = drawn(21, 32, 1.0, sigma)
    found = shrink_to_mean(noisy, sigma)
    assert (found - true)[:20].square().mean() < (noisy - true)[:20].square().mean()
    assert found[:20].var(dim=0).mean() > 0.5


def test_one_vector_without_noise():
    vectors = torch.tensor([[1.0, 2.0], [5.0, -2.0], [0.9, 1.9]])
    found = shrink_to_mean(vectors, torch.tensor([0.0, 1.0, 1.0]))
    assert found.isfinite().all()
    torch.testing.assert_close(found[0], vectors[0])


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
    assert torch.equal(shrink_to_mean(vectors[:1], torch.ones(1)), vectors[:1])
