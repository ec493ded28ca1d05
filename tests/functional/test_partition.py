import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from fedaux_pl.functional import dirichlet_partition, partition
from fedaux_pl.functional.partition import _balance, _log_dirichlet


def labels_of(sizes, seed=0):
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]


def counts(parts, labels, classes):
    return np.array([np.bincount(labels[part].numpy(), minlength=classes) for part in parts])


def assert_partition(parts, labels, num_clients):
    """Every sample in exactly one client, sizes equal to within one, indices sorted."""
    assert len(parts) == num_clients
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(labels)))
    sizes = [len(part) for part in parts]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    for part in parts:
        assert part.dtype == torch.int64
        assert bool((part.diff() > 0).all())


@settings(deadline=None, max_examples=40)
@given(
    class_sizes=st.lists(st.integers(1, 200), min_size=1, max_size=12),
    num_clients=st.integers(1, 60),
    log_alpha=st.floats(-3, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_split_is_a_partition_into_equal_sizes(class_sizes, num_clients, log_alpha, seed):
    labels = labels_of(class_sizes)
    if len(labels) < num_clients:
        with pytest.raises(ValueError, match=f"use at most {max(1, len(labels) // 2)} clients"):
            dirichlet_partition(labels, num_clients, 10**log_alpha, seed)
        return
    parts = dirichlet_partition(labels, num_clients, 10**log_alpha, seed)
    assert_partition(parts, labels, num_clients)


@pytest.mark.parametrize(("alpha", "num_clients"), [(1e-3, 1000), (1.0, 1), (1e4, 20)])
def test_the_extremes(alpha, num_clients):
    labels = labels_of([500] * 10)
    assert_partition(dirichlet_partition(labels, num_clients, alpha, 3), labels, num_clients)


def test_small_alpha_gives_clients_of_one_class_and_large_alpha_the_mixture():
    labels = labels_of([1000] * 10)
    purity = {}
    for alpha in (0.01, 1.0, 100.0):
        table = np.concatenate(
            [counts(dirichlet_partition(labels, 20, alpha, s), labels, 10) for s in range(3)]
        )
        purity[alpha] = (table.max(axis=1) / table.sum(axis=1)).mean()
    assert purity[0.01] > 0.8
    assert 0.2 < purity[1.0] < 0.5
    assert purity[100.0] < 0.15


@pytest.mark.parametrize(("clients", "classes", "sizes"), [(6, 6, (50, 50)), (20, 10, (250, 500))])
def test_the_normalization_is_the_papers(clients, classes, sizes):
    """The columns of the paper's P sum to 1, and P_ij M_j are our counts."""
    log_p = _log_dirichlet(np.random.default_rng(0), 1.0, clients, classes)
    plain = np.exp(log_p)
    for _ in range(1000):
        plain /= plain.sum(axis=1, keepdims=True)
        plain /= plain.sum(axis=0, keepdims=True)
    ours = _balance(log_p, np.full(clients, sizes[0]), np.full(classes, sizes[1]), 1000)
    np.testing.assert_allclose(ours, sizes[1] * plain, rtol=1e-6)


def test_counts_follow_the_balanced_matrix_to_within_rounding():
    labels = labels_of([500] * 10)
    table = counts(dirichlet_partition(labels, 20, 1.0, seed=4), labels, 10)
    rng = np.random.default_rng(4)
    rng.permutation(20)
    wanted = _balance(_log_dirichlet(rng, 1.0, 20, 10), np.full(20, 250), np.full(10, 500), 1000)
    # one sample of rounding, and at most one more where a row and a column wanted the same cell
    assert np.abs(table - wanted).max() < 2


def test_log_dirichlet_has_the_dirichlets_moments_and_never_underflows():
    rng = np.random.default_rng(0)
    draws = np.exp(_log_dirichlet(rng, 0.5, 4, 20_000))
    np.testing.assert_allclose(draws.sum(axis=0), 1)
    # symmetric Dirichlet: mean 1/n, variance (n - 1) / (n^2 (n alpha + 1))
    np.testing.assert_allclose(draws.mean(axis=1), 0.25, atol=0.01)
    np.testing.assert_allclose(draws.var(axis=1), 3 / (16 * 3), atol=0.003)
    tiny = _log_dirichlet(rng, 1e-3, 1000, 50)
    assert np.isfinite(tiny).all()
    np.testing.assert_allclose(logsumexp(tiny, axis=0), 0, atol=1e-9)


def test_the_iteration_ends_where_rows_and_columns_are_balanced(monkeypatch):
    calls = []
    count = lambda *args, **options: calls.append(1) or logsumexp(*args, **options)  # noqa: E731
    monkeypatch.setattr(partition, "logsumexp", count)
    found = _balance(np.zeros((2, 2)), np.array([3, 1]), np.array([2, 2]), max_iter=9)
    np.testing.assert_allclose(found, [[1.5, 1.5], [0.5, 0.5]])
    assert len(calls) == 2  # one iteration


def test_a_split_is_a_function_of_its_seed():
    labels = labels_of([100] * 5)
    one, two = (dirichlet_partition(labels, 7, 0.1, seed=11) for _ in range(2))
    other = dirichlet_partition(labels, 7, 0.1, seed=12)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_label_names_need_not_be_consecutive():
    labels = torch.tensor([7, 7, -1, -1, 100, 100])
    assert_partition(dirichlet_partition(labels, 3, 0.01, 0), labels, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(5).long(), 6, 1.0, 0), "5 samples cannot be split over 6 clients"),
        (
            (torch.zeros(4, 5).long(), 2, 1.0, 0),
            r"got \(torch.int64, .*; expected to be integers of shape \(N,\)",
        ),
        ((torch.zeros(5), 2, 1.0, 0), r"got \(torch.float32"),
        ((torch.zeros(5).long(), 0, 1.0, 0), "num_clients: got 0; expected to be at least 1"),
        ((torch.zeros(5).long(), 2, 0.0, 0), "alpha: got 0.0; expected to be positive and finite"),
        ((torch.zeros(5).long(), 2, float("nan"), 0), "alpha: got .*; expected to be positive"),
    ],
)
def test_partition_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        dirichlet_partition(*arguments)


def test_unequal_sizes_follow_the_dirichlet_draws_alone():
    labels = labels_of([400] * 5)
    clients = partition.unequal_partition(labels, 8, 0.5, seed=1)
    assert torch.equal(torch.cat(clients).sort().values, torch.arange(len(labels)))
    sizes = [len(client) for client in clients]
    assert min(sizes) >= 2
    assert max(sizes) > 2 * min(sizes)
    assert counts(clients, labels, 5).sum(axis=0).tolist() == [400] * 5


def test_a_split_into_unequal_sizes_that_leaves_clients_empty_is_refused():
    with pytest.raises(ValueError, match="expected a larger alpha or fewer clients"):
        partition.unequal_partition(labels_of([10, 10]), 10, 0.01, seed=0)


def test_shards_are_cuts_of_the_samples_sorted_by_class():
    labels = labels_of([100] * 10)
    clients = partition.shard_partition(labels, 10, seed=0)
    assert_partition(clients, labels, 10)
    table = counts(clients, labels, 10)
    assert set(table.flatten().tolist()) <= {0, 50, 100}  # 20 shards of half a class each
    other = partition.shard_partition(labels, 10, seed=1)
    assert not all(torch.equal(*pair) for pair in zip(clients, other, strict=True))
    with pytest.raises(ValueError, match="19 samples cannot be split over 10 clients"):
        partition.shard_partition(labels[:19], 10, seed=0)
