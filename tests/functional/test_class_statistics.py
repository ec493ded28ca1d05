"""Class statistics: loops over records, an attack on their sensitivity, and noisy counts."""

import math

import pytest
import torch
from torch.testing import assert_close

from fedaux_pl.functional import (
    class_priors,
    pool_class_means,
    shrink_to_mean,
    split_statistics,
    statistics_sensitivity,
    sum_statistics,
)
from fedaux_pl.functional.class_statistics import known_counts, statistics_row_length
from fedaux_pl.scoring import PublicMap
from tests.functional.rows import drawn, unit

RHOS = [0.01, 0.3, 0.5, 0.7, 1.0, 4.0]


def phi(row, label, rho, classes=2):
    """What one record adds."""
    return sum_statistics(row[None], torch.eye(classes)[label][None], rho)


@pytest.mark.parametrize("rho", RHOS)
def test_sums_are_those_of_a_loop_and_are_split_again(rho):
    rows, labels = unit(drawn(9, 3)), [0, 2, 2, 0, 2, 2, 0, 0, 0]
    vector = sum_statistics(rows, torch.eye(4)[labels], rho)
    sums, counts, moment = torch.zeros(4, 3), torch.zeros(4), torch.zeros(3, 3)
    for row, label in zip(rows, labels, strict=True):
        sums[label] += row
        counts[label] += 1
        moment += row.outer(row)
    for found, expected in zip(
        split_statistics(vector, 4, rho), (sums, counts, moment), strict=True
    ):
        assert_close(found, expected.double(), check_dtype=False)
    parts = [phi(row, label, rho, 4) for row, label in zip(rows, labels, strict=True)]
    assert_close(vector, torch.stack(parts).sum(dim=0))


@pytest.mark.parametrize("rho", RHOS)
def test_the_vector_has_the_norm_of_the_matrix(rho):
    """<phi, phi'> = [y = y'] (<r, r'> + t^2) + rho <r, r'>^2, so noise has the scale it claims."""
    one, other = 0.9 * unit(drawn(2, 5))
    t, c = statistics_sensitivity(rho)[0], float(one @ other)
    for label in (0, 1):
        found = float(phi(one, 0, rho) @ phi(other, label, rho))
        assert found == pytest.approx((label == 0) * (c + t**2) + rho * c**2, rel=1e-12)


def test_the_length_of_a_row_follows_from_that_of_the_vector():
    for classes in (1, 2, 3, 10, 100, 1000, 20_000):
        for k in (*range(1, 40), 64, 127, 128, 511, 512, 2048, 10_000):
            length = classes * (k + 1) + k * (k + 1) // 2
            assert statistics_row_length(length, classes) == k


def climb(rho, label, seed):
    """The largest distance that gradient ascent finds between records in the unit ball."""
    pair = 0.5 * unit(drawn(2, 4, seed=seed))
    for _ in range(60):
        pair.requires_grad_(True)
        distance = (phi(pair[0], 0, rho) - phi(pair[1], label, rho)).norm()
        (gradient,) = torch.autograd.grad(distance, pair)
        pair = pair.detach() + 0.3 * gradient
        pair = pair / pair.norm(dim=1, keepdim=True).clamp(min=1.0)
    return float(distance.detach())


@pytest.mark.parametrize("rho", RHOS)
def test_no_pair_of_records_exceeds_the_sensitivity_and_one_attains_it(rho):
    """Long and short rows on a grid and at random, of the same and of another class."""
    _, bound = statistics_sensitivity(rho)
    angles = torch.linspace(0, 2 * math.pi, 73, dtype=torch.float64)
    circle = torch.stack([angles.cos(), angles.sin()], dim=1)
    for rows in (circle, unit(drawn(50, 3)), unit(drawn(50, 4))):
        rows = torch.cat([rows, 0.97 * rows, 0.5 * rows, 0 * rows[:1]])
        own, others = (torch.stack([phi(row, y, rho) for row in rows]) for y in (0, 1))
        for vectors in (own, others):
            exact = "donot_use_mm_for_euclid_dist"
            largest = float(torch.cdist(own, vectors, compute_mode=exact).max())
            assert largest <= bound * (1 + 1e-12)
            assert rows.shape[1] > 2 or largest > 0.999 * bound
    for label in (0, 1):
        found = max(climb(rho, label, seed) for seed in range(2))
        assert 0.999 * bound < found <= bound * (1 + 1e-12)


@pytest.mark.filterwarnings("ignore:.*not finite")
@pytest.mark.parametrize("public_map", [PublicMap(unit=True), PublicMap(bound=0.7)])
def test_rows_of_private_features_stay_within_the_sensitivity(public_map):
    """Opposite, huge, tiny and broken features, and rounding."""
    features = drawn(30, 16).float()
    scales = torch.tensor([1.0, 1e-30, 1e-3, 1e18])[:, None, None]
    features = torch.cat([(scales * features).flatten(0, 1), -features, features.new_zeros(1, 16)])
    features[0, 0], features[1, 1] = math.nan, math.inf
    rows = public_map.private_rows(features)
    for rho in (0.5, 1.0):
        _, bound = statistics_sensitivity(rho)
        own, others = (torch.stack([phi(row, y, rho) for row in rows]) for y in (0, 1))
        assert max(float(torch.cdist(own, vectors).max()) for vectors in (own, others)) <= bound


@pytest.mark.parametrize("rho", [0.0, -1.0, math.inf, math.nan])
def test_an_invalid_weight_of_the_second_moment_is_refused(rho):
    with pytest.raises(ValueError, match=r"rho: got .*; expected to be positive and finite"):
        statistics_sensitivity(rho)


def clients(noise, count=50, seed=0):
    """Two class means, and sums and counts of clients with noise."""
    means = torch.tensor([[0.3, 0.0, 0.4], [0.0, -0.3, 0.1]], dtype=torch.float64)
    counts = drawn(count, 2, seed=seed).abs().mul(80).round()
    counts[::3, 0] = 0  # every third client has nothing of the first class
    sums = counts[:, :, None] * means + noise * drawn(count, 2, 3, seed=seed + 1000)
    noisy = counts + noise * drawn(count, 2, seed=seed + 2000)
    return means, sums, noisy, torch.full((count,), float(noise), dtype=torch.float64)


def naive_known(counts, sigmas):
    known = torch.zeros_like(counts)
    if len(counts) > 1 and counts.var(dim=0).mean() < 2 * sigmas.square().mean():
        known = shrink_to_mean(counts, sigmas).clamp(min=0)
        for c in range(counts.shape[1]):
            known[:, c] += max(0.0, float(sigmas.norm() - known[:, c].sum())) / len(counts)
        return known
    for c in range(counts.shape[1]):
        column = counts[:, c].tolist()
        for i, (count, sigma) in enumerate(zip(column, sigmas.tolist(), strict=True)):
            if count > 2 * sigma:
                known[i, c] = count
        if not known[:, c].any():
            first = column.index(max(column))
            known[first, c] = max(column[first], float(sigmas[first]), 1e-6)
    return known


@pytest.mark.parametrize("noise", [0.0, 10.0, 60.0, 1e9])
def test_pooled_means_are_those_of_a_loop(noise):
    _, sums, counts, sigmas = clients(noise, count=7)
    sigmas = sigmas * torch.linspace(0.5, 2, 7)
    found, variances = pool_class_means(sums, counts, sigmas, 1.5 * sigmas)
    known = naive_known(counts, 1.5 * sigmas)
    assert_close(known_counts(counts, 1.5 * sigmas), known)
    for c in range(2):
        total = 0.0
        mean = torch.zeros(sums.shape[2]).double()
        variance = 0.0
        for n, s, sigma in zip(known[:, c].tolist(), sums[:, c], sigmas.tolist(), strict=True):
            weight = n / (sums.shape[2] * sigma**2 + max(n, 1.0))
            total += weight * n
            mean += weight * s
            variance += (weight * sigma) ** 2
        assert_close(found[c], mean / total)
        assert float(variances[c]) == pytest.approx(variance / total**2)


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_without_noise_the_means_are_those_of_all_records(noise):
    _, sums, counts, _ = clients(0.0, count=7)
    sigmas = torch.full((7,), noise).double()
    found, _ = pool_class_means(sums, counts, sigmas, sigmas)
    assert_close(found, sums.sum(dim=0) / counts.sum(dim=0)[:, None], rtol=1e-9, atol=1e-9)


def test_counts_are_shrunk_if_noise_explains_more_than_half_of_their_variance():
    above, below = torch.tensor([[10.0], [12.1]]), torch.tensor([[10.0], [11.9]])  # 2.2 and 1.8
    assert torch.equal(known_counts(above, torch.ones(2)), above)
    expected = shrink_to_mean(below, torch.ones(2))
    assert_close(known_counts(below, torch.ones(2)), expected)


@pytest.mark.parametrize("count", [-1.0, 0.0, 1e-9])
def test_noise_is_not_divided_by_less_than_that_of_the_count(count):
    """Of a class that no client holds."""
    sums, sigmas = torch.full((1, 1, 3), 2.0), torch.full((1,), 2.0)
    means, variances = pool_class_means(sums, torch.tensor([[count]]), sigmas, 2 * sigmas)
    assert (means.tolist(), variances.tolist()) == ([[0.5] * 3], [0.25])
    several = torch.full((4, 1), count), sigmas.repeat(4), 2 * sigmas.repeat(4)
    means, variances = pool_class_means(sums.repeat(4, 1, 1), *several)
    assert (means.tolist(), variances.tolist()) == ([[1.0] * 3], [0.25])  # 8 / 8, (4 / 8)^2
    nothing = torch.zeros(1)
    means, variances = pool_class_means(0 * sums, torch.zeros(1, 1), nothing, nothing)
    assert (means.tolist(), bool(variances.isfinite())) == ([[0.0] * 3], True)


def test_priors_are_shares_shrunk_by_the_noise():
    counts, sigma = torch.tensor([100.0, 400.0, 700.0]).double(), 50.0
    spread = 300.0**2 - sigma**2  # the variance of the counts minus that of their noise
    shrunk = [400 + spread / (spread + sigma**2) * (n - 400) for n in counts.tolist()]
    assert class_priors(counts, sigma).tolist() == pytest.approx([n / 1200 for n in shrunk])
    assert class_priors(counts, 0.0).tolist() == pytest.approx([1 / 12, 4 / 12, 7 / 12])
    assert class_priors(counts, 1e9).tolist() == pytest.approx([1 / 3] * 3)


def test_a_class_without_records_has_a_prior_as_large_as_the_noise_of_its_count():
    assert float(class_priors(torch.tensor([900.0, 0.0]), 0.0)[1]) == pytest.approx(1e-6, rel=1e-4)
    for observed in (-20.0, 0.0):
        prior = class_priors(torch.tensor([900.0, observed]), 10.0)
        assert float(prior[1]) == pytest.approx(10 / 910, rel=1e-2)

    assert class_priors(torch.tensor([-5.0]), 1.0).tolist() == [1.0]


def truth_and_vectors(n, k, spread, sigma):
    """m + u_i, and the same with noise."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(k, generator=generator, dtype=torch.float64)
    true = mean + spread * torch.randn(n, k, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, k, generator=generator, dtype=torch.float64)
    return true, true + sigma[:, None] * noise


@pytest.mark.parametrize("sigmas", [[0.4, 0.5, 0.5, 0.7, 0.6], [0.1, 0.5, 0.5, 0.7, 9.0]])
def test_shrinkage_against_a_loop(sigmas):
    """The estimate of t^2 whose expected value is t^2, with equal or other weights."""
    _, vectors = truth_and_vectors(5, 7, 1.0, torch.full((5,), 0.5, dtype=torch.float64))
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
        assert_close(guess, mean + factor * (vector - mean))


def test_one_vector_without_noise():
    vectors = torch.tensor([[1.0, 2.0], [5.0, -2.0], [0.9, 1.9]])
    found = shrink_to_mean(vectors, torch.tensor([0.0, 1.0, 1.0]))
    assert found.isfinite().all()
    assert_close(found[0], vectors[0])


def test_vectors_that_differ_by_noise_only_become_equal():
    vectors = torch.tensor([[1.0, 2.0], [1.1, 2.0], [0.9, 1.9]])
    found = shrink_to_mean(vectors, torch.ones(3))
    assert_close(found, vectors.mean(dim=0).expand(3, 2))


@pytest.mark.parametrize("n", [1, 4])
def test_vectors_without_noise_are_unchanged(n):
    vectors = torch.randn(n, 3, generator=torch.Generator().manual_seed(1))
    assert_close(shrink_to_mean(vectors, torch.zeros(n)), vectors)
    equal = vectors[:1].expand(n, 3)
    assert_close(shrink_to_mean(equal, torch.zeros(n)), equal)
    assert torch.equal(shrink_to_mean(vectors[:1], torch.ones(1)), vectors[:1])
