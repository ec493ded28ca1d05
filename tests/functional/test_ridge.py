"""Classifiers from sums over records, beside the same by loops over the records themselves."""

import pytest
import torch

from fedaux_pl.functional import classifier_of_means, ridge_classifier

K, C = 5, 3


def records(count=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, K, generator=generator, dtype=torch.float64)
    labels = torch.eye(C).double()[torch.randint(C, (count,), generator=generator)]
    return rows / rows.norm(dim=1, keepdim=True), labels


def test_sums_give_the_ridge_regression_on_all_records():
    """The minimum of sum |W r - e_y|^2 + lambda |W|^2 by least squares."""
    rows, labels = records()
    found = ridge_classifier(labels.T @ rows, rows.T @ rows, 0.3)
    stacked = torch.cat([rows, 0.3**0.5 * torch.eye(K).double()])
    targets = torch.cat([labels, torch.zeros(K, C).double()])
    torch.testing.assert_close(found.weight, torch.linalg.lstsq(stacked, targets).solution.T)
    assert not found.bias.any()


@pytest.mark.parametrize("noise", [0.1, 1.0, 100.0])
def test_noise_raises_the_ridge_above_its_norm(noise):
    """No direction of the noisy matrix is inverted whose eigenvalue the noise explains."""
    rows, labels = records()
    draws = torch.randn(K, K, generator=torch.Generator().manual_seed(1)).double()
    moment = rows.T @ rows + noise * (draws + draws.T) / 2
    sums = labels.T @ rows
    found = ridge_classifier(sums, moment, 1e-6, noise)
    assert float(found.weight.norm()) <= float(sums.norm()) / (noise * (2 * K) ** 0.5)


def test_covariances_are_those_of_the_clients_means():
    """Client by client and class by class; client 2 has one class only."""
    rows, labels = records(60)
    owners = torch.arange(60) % 4
    labels[owners == 2] = torch.eye(C).double()[0]
    sums = torch.stack([labels[owners == i].T @ rows[owners == i] for i in range(4)])
    counts = torch.stack([labels[owners == i].sum(dim=0) for i in range(4)])
    gram = 60 * rows.mean(dim=0).outer(rows.mean(dim=0))
    for label in range(C):
        of_class = labels[:, label] == 1
        center = rows[of_class].mean(dim=0)
        covariance = torch.zeros(K, K).double()
        holders = 0
        for client in range(4):
            own = rows[of_class & (owners == client)]
            if len(own):
                offset = own.mean(dim=0) - center
                covariance += len(own) * offset.outer(offset)
                holders += 1
        gram += (of_class.sum() - 1) * (covariance / (holders - 1) + 0.4 / K * torch.eye(K))
    expected = (gram.inverse() @ rows.T @ labels).T
    found = classifier_of_means(sums, counts, shrinkage=0.4)
    torch.testing.assert_close(found.weight, expected / expected.norm(dim=1, keepdim=True))
    assert not found.bias.any()
