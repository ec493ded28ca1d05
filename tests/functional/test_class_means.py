import pytest
import torch

from fedaux_pl.functional import discriminant_directions, pool_class_means


def simulated(noise, clients=400, seed=0):
    """Sums and counts of two classes, whose means are known, with noise."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.tensor([[0.3, 0.0, 0.4], [0.0, -0.3, 0.1]], dtype=torch.float64)
    counts = torch.randint(0, 200, (clients, 2), generator=generator).double()
    counts[::3, 0] = 0  # every third client has nothing of the first class
    sums = counts[:, :, None] * means
    sigmas = torch.full((clients,), noise, dtype=torch.float64)
    sums = sums + noise * torch.randn(sums.shape, generator=generator, dtype=torch.float64)
    noisy = counts + noise * torch.randn(counts.shape, generator=generator, dtype=torch.float64)
    return means, sums, noisy, sigmas


def test_without_noise_the_means_are_exact():
    means, sums, counts, sigmas = simulated(0.0)
    found, variances = pool_class_means(sums, counts, sigmas)
    torch.testing.assert_close(found, means)
    assert variances.tolist() == [0, 0]


def test_the_stated_variance_is_that_of_the_estimate():
    errors, stated = [], []
    for seed in range(40):
        means, sums, counts, sigmas = simulated(10.0, clients=50, seed=seed)
        found, variances = pool_class_means(sums, counts, sigmas)
        errors.append((found - means).square().mean(dim=1))
        stated.append(variances)
    ratio = torch.stack(errors).mean(dim=0) / torch.stack(stated).mean(dim=0)
    assert ((ratio > 0.7) & (ratio < 1.6)).all(), ratio  # the counts are noisy, too


def test_counts_that_may_be_noise_are_dropped():
    sums = torch.tensor([[[10.0], [0.0]], [[99.0], [10.0]]])
    counts = torch.tensor([[10.0, 0.5], [1.5, 10.0]])
    found, _ = pool_class_means(sums, counts, torch.ones(2))
    assert found.tolist() == [[1.0], [1.0]]


def test_a_class_without_counts_above_the_noise_keeps_its_largest():
    sums, counts = torch.tensor([[[1.0]], [[2.0]]]), torch.tensor([[0.5], [1.0]])
    found, variances = pool_class_means(sums, counts, torch.ones(2))
    assert (found.tolist(), variances.tolist()) == ([[2.0]], [1.0])
    found, _ = pool_class_means(sums, -counts, torch.ones(2))
    assert found.isfinite().all()


def test_precise_clients_count_more():
    sums, counts = torch.tensor([[[10.0]], [[30.0]]]), torch.full((2, 1), 10.0)
    found, variances = pool_class_means(sums, counts, torch.tensor([1.0, 2.0]))
    assert float(found) == pytest.approx((1 * 1 + 3 / 4) / (1 + 1 / 4))
    assert float(variances) == pytest.approx(1 / (100 + 100 / 4))


def covariance():
    root = torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return root @ root.T / 4 + 0.1 * torch.eye(4)


MEANS = torch.randn(3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def test_it_is_the_posterior_mean_under_its_prior():
    """beta S^2 (beta S^2 + v)^-1 (m_c - m) by a naive loop, with beta from the differences."""
    variances = torch.tensor([0.01, 0.1, 0.3]).double()
    offsets = MEANS - MEANS.mean(dim=0)
    beta = (offsets.square().sum(dim=1) - 4 * variances).mean() / (covariance() ** 2).sum()
    prior = beta * covariance() @ covariance()
    for c, found in enumerate(discriminant_directions(MEANS, variances, covariance())):
        mean = prior @ torch.linalg.inv(prior + variances[c] * torch.eye(4)) @ offsets[c]
        torch.testing.assert_close(
            found, torch.linalg.inv(covariance()) @ mean, rtol=1e-5, atol=1e-6
        )


def test_without_noise_it_is_fishers_discriminant():
    found = discriminant_directions(MEANS, torch.zeros(3).double(), covariance())
    expected = (MEANS - MEANS.mean(dim=0)) @ torch.linalg.inv(covariance())
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_with_much_noise_it_is_the_mean_in_directions_of_much_variance():
    found = discriminant_directions(MEANS, torch.full((3,), 1e4).double(), covariance()) * 1e6
    offsets = (MEANS - MEANS.mean(dim=0)) @ covariance()
    cosine = torch.nn.functional.cosine_similarity(found, offsets)
    torch.testing.assert_close(cosine, torch.ones(3).double(), rtol=1e-4, atol=1e-4)


def test_a_mean_of_noise_alone_does_not_move_the_others():
    """As of a class that no client has, with negative noisy counts: 1e12 times the noise."""
    variances = torch.tensor([0.01, 0.02]).double()
    expected = discriminant_directions(MEANS[:2], variances, covariance())
    means = torch.cat([MEANS[:2], 1e12 * MEANS[2:]])
    variances = torch.cat([variances, torch.tensor([1e24]).double()])
    found = discriminant_directions(means, variances, covariance())
    torch.testing.assert_close(found[:2], expected)
    assert found.isfinite().all()
