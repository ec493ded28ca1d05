import pytest
import torch

from fedaux_pl.scoring import Logistic, Mean, PublicMap


def vector(features, bound):
    """The mean of the rows to which a public map clips the features."""
    return Mean().vector(PublicMap(bound=bound).rows(features))


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


CLOSE = [Mean(), Logistic(1e6), Logistic(1e6, False)]  # all gradients point in one direction


@pytest.mark.parametrize("scorer", [*CLOSE, Logistic(), Logistic(1e-3, False)])
def test_no_vector_is_longer_than_the_bound_and_that_of_equal_rows_is_close(scorer):
    rows = torch.eye(3, dtype=torch.float64)[[0] * 5]
    norm = float(scorer.vector(rows, negatives=-rows[:2] * scorer.uses_negatives).norm())
    bound = scorer.largest_norm(5, 2)
    assert norm <= bound * (1 + 1e-12)
    assert norm >= bound / 2.001 or scorer not in CLOSE


@pytest.mark.parametrize("scorer", [Mean(), Logistic()])
def test_the_length_of_a_row_follows_from_that_of_a_vector(scorer):
    vector = torch.zeros(scorer.vector_length(7, 3))
    assert scorer.row_length(vector, num_classes=3) == 7
