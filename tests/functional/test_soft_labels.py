import math

import pytest
import torch

from fedaux_pl.functional import soft_labels


def naive_soft_labels(logits, scores):
    """A_s sample by sample and class by class in Python floats."""
    teachers, samples, classes = logits.shape
    result = []
    for n in range(samples):
        total = sum(scores[k][n].item() for k in range(teachers))
        mixed = [
            sum(scores[k][n].item() * logits[k][n][c].item() for k in range(teachers)) / total
            for c in range(classes)
        ]
        exps = [math.exp(value) for value in mixed]
        result.append([value / sum(exps) for value in exps])
    return torch.tensor(result)


def test_scores_weight_the_logits():
    logits, scores = torch.randn(5, 7, 3), torch.rand(5, 7) + 1e-3
    torch.testing.assert_close(soft_labels(logits, scores), naive_soft_labels(logits, scores))


def test_without_scores_it_is_the_mean():
    logits = torch.randn(5, 7, 3)
    torch.testing.assert_close(soft_labels(logits), naive_soft_labels(logits, torch.ones(5, 7)))


def test_equal_scores_are_no_scores():
    logits = torch.randn(5, 7, 3)
    torch.testing.assert_close(soft_labels(logits, torch.full((5, 7), 0.3)), soft_labels(logits))


def test_logits_are_averaged_not_probabilities():
    # softmax((10, 0)/2) = (0.9933, 0.0067); the mean of the probabilities would be (0.75, 0.25).
    logits = torch.tensor([[[10.0, 0.0]], [[0.0, 0.0]]])
    assert soft_labels(logits)[0, 0].item() == pytest.approx(1 / (1 + math.exp(-5)), rel=1e-5)


def test_half_precision_logits_give_float32_labels():
    labels = soft_labels(torch.randn(3, 4, 5).bfloat16(), torch.rand(3, 4).double())
    assert labels.dtype == torch.float32
    torch.testing.assert_close(labels.sum(1), torch.ones(4))


@pytest.mark.parametrize(
    ("logits", "scores", "message"),
    [
        (torch.zeros(2, 3), None, r"\(teachers, samples, classes\) .* are \(2, 3\)"),
        (torch.zeros(0, 3, 2), None, "with at least one teacher"),
        (torch.zeros(1, 2, 2), torch.tensor([[1.0, -1.0]]), "smallest is -1.0"),
        (torch.zeros(1, 2, 2), torch.tensor([[1.0, 0.0]]), "sample 1 do not sum to a positive"),
        (torch.zeros(1, 2, 2), torch.tensor([[math.nan, 1.0]]), "sample 0 do not sum"),
    ],
)
def test_soft_labels_refuse(logits, scores, message):
    with pytest.raises(ValueError, match=message):
        soft_labels(logits, scores)
