"""Models between two, and votes for them."""

import math

import pytest
import torch

from fedaux_pl.functional import blend_states, clipped_log_likelihood, most_votes
from tests.federations import assert_close, assert_same, network


def test_the_ends_are_the_models_themselves():
    average, distilled = network(0).state_dict(), network(1).state_dict()
    distilled["bn1.num_batches_tracked"] = torch.tensor(7)
    assert_same(blend_states(average, distilled, 1), distilled)
    start = blend_states(average, distilled, 0)
    assert start["bn1.num_batches_tracked"] == 7
    assert_same(start, average | {"bn1.num_batches_tracked": torch.tensor(7)})


def test_a_blend_moves_parameters_and_running_statistics():
    average, distilled = network(0).state_dict(), network(1).state_dict()
    blended = blend_states(average, distilled, 0.25)
    expected = {}
    for key, tensor in distilled.items():
        expected[key] = tensor
        if tensor.is_floating_point():
            expected[key] = average[key] + 0.25 * (tensor - average[key])
    assert_close(blended, expected)
    assert not torch.equal(blended["bn1.running_var"], average["bn1.running_var"])


def test_a_vote_is_the_sum_of_clipped_log_likelihoods():
    logits = torch.tensor([[2.0, 0.0], [0.0, 100.0], [math.nan, 0.0]])
    labels = torch.tensor([0, 0, 1], dtype=torch.uint8)
    expected = 2 - math.log(math.exp(2) + 1) - 4 - 4
    assert float(clipped_log_likelihood(logits, labels)) == pytest.approx(expected)


def test_one_record_changes_a_vote_by_at_most_4():
    torch.manual_seed(0)
    logits = 20 * torch.randn(50, 3)
    labels = torch.randint(3, (50,))
    votes = [clipped_log_likelihood(logits[i : i + 1], labels[i : i + 1]) for i in range(50)]
    assert min(votes) == -4
    assert max(votes) <= 0
    assert float(sum(votes)) == pytest.approx(float(clipped_log_likelihood(logits, labels)))


def test_of_equal_votes_the_first_wins():
    assert most_votes([-2.0, -1.0, -1.0, -3.0]) == 1
