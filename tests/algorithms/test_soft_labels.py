"""Soft labels summed teacher by teacher equal those of all logits at once."""

import pytest
import torch

from fedaux_pl.algorithms import Algorithm, FedAUX, FedBE, FedDF, Member, Teachers
from fedaux_pl.functional import SoftLabelSum, soft_labels


@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize("teachers", [1, 5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_running_sum_equals_all_at_once(scored, teachers, dtype):
    generator = torch.Generator().manual_seed(0)
    logits = (5 * torch.randn(teachers, 7, 3, generator=generator)).to(dtype)
    scores = torch.rand(teachers, 7, generator=generator) + 1e-8 if scored else None
    total = SoftLabelSum()
    for index in range(teachers):
        total.add(logits[index], 1.0 if scores is None else scores[index])
    result = total.result()
    assert result.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(result, soft_labels(logits, scores))


def test_there_must_be_teachers():
    with pytest.raises(ValueError, match="no teachers: add at least one"):
        SoftLabelSum().result()
    empty = Teachers([], lambda name, state: state["logits"], (7, 3))
    with pytest.raises(ValueError, match="no teachers"):
        FedDF().soft_labels(empty)
    with pytest.raises(ValueError, match="no clients"):
        FedBE().soft_labels(empty)


def test_soft_labels_must_be_overridden():
    with pytest.raises(NotImplementedError, match=r"Algorithm .* must override soft_labels"):
        Algorithm().soft_labels(Teachers([], lambda name, state: state["logits"], (7, 3)))


def test_scores_are_indexed_by_client_id():
    """Clients 4 and 1 of 6 take part: FedAUX uses rows 4 and 1 of the scores, FedDF none."""
    logits, scores = torch.randn(2, 7, 3), torch.rand(6, 7) + 0.1
    members = [Member("a", {"logits": logits[i]}, c) for i, c in enumerate((4, 1))]
    teachers = Teachers(
        members, lambda name, state: state["logits"], shape=(7, 3), certainty=scores
    )
    torch.testing.assert_close(
        FedAUX().soft_labels(teachers), soft_labels(logits, scores[torch.tensor([4, 1])])
    )
    torch.testing.assert_close(FedDF().soft_labels(teachers), soft_labels(logits))


def test_teachers_that_count_by_the_size_of_their_client():
    class BySize(FedDF):
        def weight(self, teacher):
            return teacher.size

    logits = torch.randn(2, 7, 3)
    members = [Member("a", {"logits": logits[i]}, i, size) for i, size in enumerate((30, 10))]
    teachers = Teachers(members, lambda name, state: state["logits"], shape=(7, 3))
    expected = (0.75 * logits[0] + 0.25 * logits[1]).softmax(dim=1)
    torch.testing.assert_close(BySize().soft_labels(teachers), expected)
