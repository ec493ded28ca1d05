import pytest
import torch

from fedaux_pl.scoring import Mean, PublicMap

NONE = torch.zeros(0, 3)


def vector(features, bound):
    """The mean of the rows to which a public map clips the features."""
    return Mean().vector(PublicMap(bound=bound).rows(features), NONE)


def test_mean_is_the_mean_of_clipped_rows():
    x = torch.tensor([[3.0, 4.0, 0.0], [0.0, 1.0, 0.0]])
    expected = [(0.6 + 0) / 2, (0.8 + 0.5) / 2, 0]
    assert vector(x, 2.0).tolist() == pytest.approx(expected)


def test_no_replacement_exceeds_the_sensitivity_of_the_mean_and_one_attains_it():
    """Brute force: every record of random data by candidates on all sides, long and short."""
    generator = torch.Generator().manual_seed(0)
    closest = 0.0
    for n in (1, 2, 7):
        own = torch.randn(n, 3, generator=generator) * 3
        before = vector(own, 1.5)
        candidates = torch.cat([torch.randn(60, 3, generator=generator), -own, 1e6 * -own])
        for index in range(n):
            for candidate in candidates:
                changed = own.clone()
                changed[index] = candidate
                moved = (vector(changed, 1.5) - before).norm().item()
                assert moved <= Mean().sensitivity(n, 0)
                closest = max(closest, moved / Mean().sensitivity(n, 0))
    assert closest > 1 - 1e-12


def test_mean_refuses_a_client_without_data():
    with pytest.raises(ValueError, match=r"at least one sample, but are \(0, 3\)"):
        Mean().vector(NONE, NONE)
    with pytest.raises(ValueError, match="at least 1, but is 0"):
        Mean().sensitivity(0, 5)
