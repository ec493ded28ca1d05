import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fedaux_pl.functional import average_states, bayesian_ensemble, sample_posterior


def states(k=4, d=3):
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "w": torch.randn(d, generator=generator) * 2 + 5,
            "var": torch.rand(d, generator=generator) * 1e-3,
            "n": torch.tensor(10 * i),
        }
        for i in range(k)
    ]


def test_gaussian_samples_have_the_weighted_mean_and_variance_of_the_clients():
    clients, weights = states(), [1, 2, 3, 4]
    samples = sample_posterior(clients, weights, num_samples=5_000, seed=1)
    drawn = torch.stack([sample["w"] for sample in samples])
    shares = torch.tensor(weights) / 10
    values = torch.stack([client["w"] for client in clients])
    mean = (shares[:, None] * values).sum(0)
    variance = (shares[:, None] * (values - mean) ** 2).sum(0)
    # standard errors: sigma / sqrt(n) for the mean, sigma^2 sqrt(2 / n) for the variance
    assert ((drawn.mean(0) - mean).abs() < 5 * variance.sqrt() / 5_000**0.5).all()
    assert ((drawn.var(0) - variance).abs() < 5 * variance * (2 / 5_000) ** 0.5).all()
    assert abs(torch.corrcoef(drawn.T)[0, 1].item()) < 0.07  # parameters are independent


def test_averaged_keys_and_counters_are_not_perturbed():
    clients, weights = states(), [1, 2, 3, 4]
    mean = average_states(clients, weights)
    for sample in sample_posterior(clients, weights, 3, seed=1, averaged=["var"]):
        assert torch.equal(sample["var"], mean["var"])
        assert torch.equal(sample["n"], mean["n"])
        assert not torch.equal(sample["w"], mean["w"])


def test_dirichlet_samples_are_the_weighted_points_between_the_clients():
    """With one-hot clients a sample is its own mixing vector gamma_i w_i / sum."""
    clients = [{"w": row} for row in torch.eye(3)]
    drawn = torch.stack(
        [s["w"] for s in sample_posterior(clients, [1, 1, 1], 2000, 3, "dirichlet")]
    )
    assert_close(drawn.sum(1), torch.ones(2000))
    assert drawn.min() >= 0
    # Dir(1, 1, 1): mean 1/3, variance 1/18
    assert_close(drawn.mean(0), torch.full((3,), 1 / 3), atol=0.02, rtol=0)
    assert_close(drawn.var(0), torch.full((3,), 1 / 18), atol=0.005, rtol=0)
    heavy = torch.stack(
        [s["w"] for s in sample_posterior(clients, [8, 1, 1], 2000, 3, "dirichlet")]
    )
    assert heavy.mean(0)[0] > 0.6


@pytest.mark.parametrize("kind", ["gaussian", "dirichlet"])
def test_samples_are_a_function_of_the_seed_and_load_into_the_model(kind):
    def client(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).state_dict()

    clients = [client(seed) for seed in range(3)]
    buffers = ["1.running_mean", "1.running_var"]
    one = sample_posterior(clients, [1, 1, 1], 2, 5, kind, averaged=buffers)
    two = sample_posterior(clients, [1, 1, 1], 2, 5, kind, averaged=buffers)
    other = sample_posterior(clients, [1, 1, 1], 2, 6, kind, averaged=buffers)
    assert torch.equal(one[1]["0.weight"], two[1]["0.weight"])
    assert not torch.equal(one[1]["0.weight"], one[0]["0.weight"])
    assert not torch.equal(one[1]["0.weight"], other[1]["0.weight"])
    nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).load_state_dict(one[0])


def test_the_ensemble_averages_probabilities():
    logits = torch.randn(4, 5, 3)
    naive = sum(member.softmax(-1) for member in logits) / 4
    assert_close(bayesian_ensemble(logits), naive)
