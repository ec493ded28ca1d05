"""The empirical-Bayes discriminant: Fisher's without noise, formulas entry by entry with it."""

import math

import pytest

pytest.importorskip("sklearn")

import numpy as np
import torch
from sklearn.covariance import OAS
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch.testing import assert_close

from fedaux_pl.functional import (
    class_priors,
    linear_discriminant,
    pool_class_means,
    split_statistics,
    statistics_sensitivity,
    sum_statistics,
)
from fedaux_pl.functional.discriminant import (
    shrink_covariance,
    shrink_means,
    shrunk_covariance,
)

C, K = 4, 6


def records(count=2000, seed=0, classes=C):
    """Rows of norm 1 of classes that differ, their labels, and the covariance of public rows."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    scales = torch.linspace(1.0, 0.3, K).double()
    labels = torch.randint(classes, (count,), generator=generator)
    rows = (normal(C, K) * scales)[labels] + scales.sqrt() * normal(count, K)
    public = torch.nn.functional.normalize(normal(500, K) * scales.sqrt() @ mixing(), dim=1)
    return torch.nn.functional.normalize(rows, dim=1), labels, torch.cov(public.T)


def mixing():
    return torch.eye(K).double() + 0.2 * torch.ones(K, K).double().triu()


def exact(rows, labels):
    """Means, priors and second moment, as ``linear_discriminant`` takes them."""
    means = torch.stack([rows[labels == c].mean(dim=0) for c in range(C)])
    return means, labels.bincount(minlength=C) / len(labels), rows.T @ rows / len(rows)


def noisy(sigma, rows, labels, clients=1, seed=0, rho=0.5):
    """The arguments of ``linear_discriminant`` from releases of several clients."""
    generator = torch.Generator().manual_seed(seed)
    vectors = []
    for own in torch.arange(len(rows)).chunk(clients):
        vector = sum_statistics(rows[own], torch.eye(C)[labels[own]], rho)
        noise = torch.randn(len(vector), generator=generator, dtype=torch.float64)
        vectors.append(vector + sigma * noise)
    parts = zip(*(split_statistics(vector, C, rho) for vector in vectors), strict=True)
    sums, counts, moments = (torch.stack(part) for part in parts)
    sigmas, constant = torch.full((clients,), sigma).double(), statistics_sensitivity(rho)[0]
    total = sigma * math.sqrt(clients)
    return (
        *pool_class_means(sums, counts, sigmas, sigmas / constant),
        class_priors(counts.sum(dim=0), total / constant),
        moments.sum(dim=0) / len(rows),
        total / math.sqrt(rho) / len(rows),
    )


def probabilities(discriminant, rows):
    return discriminant.classifier.logits(rows).softmax(dim=1)


def test_without_noise_it_is_fishers_discriminant():
    rows, labels, public = records()
    means, priors, moment = exact(rows, labels)
    found = linear_discriminant(
        means, torch.zeros(C).double(), priors.double(), moment, 0.0, public
    )
    fisher = LinearDiscriminantAnalysis(solver="lsqr").fit(rows.numpy(), labels.numpy())
    expected = torch.from_numpy(fisher.predict_log_proba(rows.numpy()))
    logits = found.classifier.logits(rows).log_softmax(dim=1)
    assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    offsets = means - rows.mean(dim=0)
    within = torch.cov(rows.T, correction=0) - (offsets.T * priors) @ offsets
    weight = torch.linalg.solve(within, offsets.T).T
    assert_close(found.classifier.weight, weight, rtol=1e-5, atol=1e-5)
    assert_close(found.mean, rows.mean(dim=0))
    total = torch.cov(rows.T, correction=0)
    assert_close(found.covariance, total, rtol=1e-5, atol=1e-7)


def naive_means(offsets, variances, d):
    """The posterior of one entry after the other, with beta of the largest likelihood."""
    shape = [x * x * len(d) / sum(y * y for y in d) for x in d]
    precisions = [min(variances) / v if v else 1.0 for v in variances]
    excess = [np.mean(np.square(o)) - v for o, v in zip(offsets, variances, strict=True)]
    signal = max(np.average(excess, weights=precisions), 1e-3 * np.mean(d))
    best, beta = -math.inf, None
    for step in range(10):
        candidate, value = signal * math.exp(-3 + step / 2), 0.0
        for own, v in zip(offsets, variances, strict=True):
            for o, s in zip(own, shape, strict=True):  # log density of N(0, candidate s + v)
                value -= math.log(candidate * s + v) / 2 + o * o / (candidate * s + v) / 2
        if value > best:
            best, beta = value, candidate
    posterior, left = np.zeros((len(offsets), len(d))), np.zeros((len(offsets), len(d)))
    for c, v in enumerate(variances):
        for j, s in enumerate(shape):
            prior = beta * s
            posterior[c, j] = prior / (prior + v) * offsets[c][j]
            left[c, j] = prior * v / (prior + v)
    return posterior, left


def naive_covariance(matrix, noise, d):
    """The posterior of one entry after the other, a floor of eigenvalues and a ridge."""
    k = len(d)
    prior = [max(np.trace(matrix), 0.2 * sum(d)) / sum(d) * x for x in d]
    posterior, ridge = np.zeros((k, k)), np.zeros(k)
    for diagonal in (True, False):
        pairs = [(i, j) for i in range(k) for j in range(k) if (i == j) == diagonal]
        v, g = max(noise, 1e-9) ** 2 * (1 if diagonal else 0.5), 0.05
        for _ in range(6):
            above = below = 0.0
            for i, j in pairs:
                size = prior[i] * prior[j]
                rest = matrix[i, j] - prior[i] * diagonal
                above += (rest**2 - v) * size / (g * size + v) ** 2
                below += size**2 / (g * size + v) ** 2
            g = max(above / below, 1e-5)
        for i, j in pairs:
            size, mean = g * prior[i] * prior[j], prior[i] * diagonal
            posterior[i, j] = mean + size / (size + v) * (matrix[i, j] - mean)
            ridge[i] += size * v / (size + v)
    root = np.diag(np.sqrt(prior))
    values, vectors = np.linalg.eigh(np.linalg.inv(root) @ posterior @ np.linalg.inv(root))
    floored = sum(
        max(value, 0.03) * np.outer(u, u) for value, u in zip(values, vectors.T, strict=True)
    )
    return root @ floored @ root + np.diag(np.sqrt(ridge))


@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.02, 3.0])
def test_shrinkage_is_that_of_a_loop_over_entries(noise):
    rows, labels, public = records(300)
    means, _, moment = exact(rows, labels)
    d = torch.linalg.eigvalsh(public)
    generator = torch.Generator().manual_seed(1)
    variances = noise**2 * torch.tensor([1.0, 2.0, 0.5, 30.0]).double()
    offsets = means - means.mean(dim=0)
    offsets += variances.sqrt()[:, None] * torch.randn(C, K, generator=generator)
    expected = naive_means(offsets.tolist(), variances.tolist(), d.tolist())
    for found, own in zip(shrink_means(offsets, variances, d), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), own, rtol=1e-9, atol=1e-15)
    error = noise * torch.randn(K, K, generator=generator).double()
    matrix = moment + (error + error.T) / 2
    expected = naive_covariance(matrix.numpy(), noise, d.tolist())
    found = shrink_covariance(matrix, noise, d).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("sigma", [0.0, 3.0, 30.0, 1e5])
def test_the_discriminant_is_that_of_its_formulas(sigma):
    rows, labels, public = records()
    given = noisy(sigma, rows, labels, clients=3)
    found = linear_discriminant(*given, public)
    means, variances, priors, moment = (own.numpy() for own in given[:4])
    d, u = np.linalg.eigh(public.numpy())
    mean = sum(p * m for p, m in zip(priors, means, strict=True))
    offsets, left = naive_means((means - mean) @ u, variances.tolist(), d.tolist())
    between = sum(p * np.outer(o, o) for p, o in zip(priors, offsets, strict=True))
    left = np.diag(sum(p * own for p, own in zip(priors, left, strict=True)))
    within = u.T @ (moment - np.outer(mean, mean)) @ u - between - left
    s = u @ (naive_covariance(within, given[4], d.tolist()) + left) @ u.T
    weight = offsets @ u.T @ np.linalg.inv(s)
    bias = [
        math.log(p) - w @ (u @ o) / 2 - w @ mean
        for p, w, o in zip(priors, weight, offsets, strict=True)
    ]
    np.testing.assert_allclose(found.classifier.weight.numpy(), weight, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.classifier.bias.numpy(), bias, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.mean.numpy(), mean)
    np.testing.assert_allclose(found.covariance.numpy(), s + u @ between @ u.T, atol=1e-9)


@pytest.mark.parametrize(("sigma", "clients"), [(1e6, 5), (1e12, 1)])
def test_noise_that_hides_everything_leaves_nearly_uniform_probabilities(sigma, clients):
    rows, labels, public = records()
    for seed in range(5):
        found = linear_discriminant(*noisy(sigma, rows, labels, clients, seed), public)
        p = probabilities(found, rows)
        assert found.covariance.isfinite().all()
        assert 0.1 < float(p.min()) <= float(p.max()) < 0.5


@pytest.mark.parametrize("clients", [1, 5])
def test_a_class_that_no_client_holds_does_not_harm_the_others(clients):
    """Its count is noise, of either sign."""
    rows, labels, public = records(classes=C - 1)
    accuracy = []
    for seed in range(4):
        found = linear_discriminant(*noisy(3.0, rows, labels, clients, seed), public)
        p = probabilities(found, rows)
        accuracy.append(float((p.argmax(dim=1) == labels).double().mean()))
    whole = probabilities(linear_discriminant(*noisy(0.0, rows, labels), public), rows)
    assert min(accuracy) > float((whole.argmax(dim=1) == labels).double().mean()) - 0.05
    assert float(whole[:, -1].max()) < 0.01


@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_rows_may_vary_in_fewer_directions_than_they_have_entries(sigma):
    rows, labels, _ = records()
    rows[:, 4:] = 0
    found = linear_discriminant(*noisy(sigma, rows, labels), torch.cov(rows.T))
    assert float((probabilities(found, rows).argmax(dim=1) == labels).double().mean()) > 0.7
    weight = found.classifier.weight.abs()
    assert weight[:, 4:].max() < 0.01 * weight.max()


@pytest.mark.parametrize("sigma", [0.0, 1.0, 1e4])
def test_rows_that_are_all_alike_leave_the_priors(sigma):
    rows, labels, public = records()
    rows = rows[:1].expand(len(rows), -1)
    for covariance in (public, torch.zeros(K, K).double()):
        found = linear_discriminant(*noisy(sigma, rows, labels), covariance)
        p = probabilities(found, rows)
        assert found.covariance.isfinite().all()
        assert p.isfinite().all()
        if sigma < 2:
            assert_close(p[0], torch.full((C,), 1 / C).double(), rtol=0.2, atol=0.0)


def test_rows_of_one_entry():
    rows, labels = torch.tensor([[0.9], [0.5], [-0.9], [-0.5]]).double(), torch.tensor([0, 0, 1, 1])
    means, half = torch.tensor([[0.7], [-0.7]]).double(), torch.tensor([0.5, 0.5]).double()
    moment = rows.T @ rows / 4
    found = linear_discriminant(means, 0 * half, half, moment, 0.0, torch.cov(rows.T))
    expected = means / 0.04  # the variance within classes
    assert_close(found.classifier.weight, expected, rtol=1e-5, atol=0.0)
    assert torch.equal(probabilities(found, rows).argmax(dim=1), labels)


def test_one_class_has_all_the_probability():
    rows, _, public = records()
    means, moment = rows.mean(dim=0)[None], rows.T @ rows / len(rows)
    one = torch.ones(1).double()
    found = linear_discriminant(means, 0.01 * one, one, moment, 0.01, public)
    assert torch.equal(probabilities(found, rows), torch.ones(len(rows), 1).double())


@pytest.mark.parametrize(("count", "length"), [(10, 30), (500, 6), (50, 1)])
def test_the_covariance_of_few_rows_is_that_of_scikit_learn(count, length):
    generator = torch.Generator().manual_seed(0)
    scales = torch.linspace(0.1, 3.0, length).double()
    rows = scales * torch.randn(count, length, generator=generator).double()
    expected = OAS().fit(rows.numpy()).covariance_
    assert_close(shrunk_covariance(rows), torch.from_numpy(expected))
    assert torch.equal(shrunk_covariance(0 * rows), torch.zeros(length, length).double())
