import math

import pytest
import torch
from torch.testing import assert_close

from fedaux_pl.functional import pack_logits, soft_labels, standardized_labels, unpack_logits


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
    assert_close(soft_labels(logits, scores), naive_soft_labels(logits, scores))


def test_without_scores_it_is_the_mean():
    logits = torch.randn(5, 7, 3)
    assert_close(soft_labels(logits), naive_soft_labels(logits, torch.ones(5, 7)))


def test_half_precision_logits_give_float32_labels():
    labels = soft_labels(torch.randn(3, 4, 5).bfloat16(), torch.rand(3, 4).double())
    assert labels.dtype == torch.float32
    assert_close(labels.sum(1), torch.ones(4))


def test_a_class_that_is_constant_over_the_public_data_is_only_centered():
    reference = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    labels = standardized_labels(torch.tensor([[2.0, 7.0]]), reference, sharpness=0.5)
    assert_close(labels, torch.tensor([[0.0, 1.0]]).softmax(dim=1))


@pytest.mark.parametrize(
    ("logits", "scores", "message"),
    [
        (torch.zeros(2, 3), None, r"got \(2, 3\); .*\(teachers, samples, classes\)"),
        (torch.zeros(0, 3, 2), None, "with at least one teacher"),
        (torch.zeros(1, 2, 2), torch.tensor([[1.0, -1.0]]), "scores: got -1.0"),
        (torch.zeros(1, 2, 2), torch.tensor([[1.0, 0.0]]), "a sum of 0.0; expected"),
        (torch.zeros(1, 2, 2), torch.tensor([[math.nan, 1.0]]), "a sum of nan; expected"),
    ],
)
def test_soft_labels_refuse(logits, scores, message):
    with pytest.raises(ValueError, match=message):
        soft_labels(logits, scores)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("scale", "dtype"),
    [(1e-6, torch.float32), (0.1, torch.bfloat16), (30.0, torch.float16), (1e4, torch.float64)],
)
def test_distances_to_the_largest_logit(scale, dtype):
    logits = (scale * draw(200, 10)).to(dtype)
    packed = pack_logits(logits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (200, 11)
    expected = logits.double() - logits.double().amax(dim=1, keepdim=True)
    spread = -expected.amin(dim=1, keepdim=True)
    error = (unpack_logits(packed) - expected).abs()
    assert bool((error <= 1.0001 * 2**0.25 / 255 / 2 * spread).all())
    assert torch.equal(unpack_logits(packed).amax(dim=1), torch.zeros(200))


@pytest.mark.parametrize("row", [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0], [1e30, 0.0, -1e30]])
def test_equal_and_huge_logits(row):
    """Equal logits stay equal; distances beyond the largest scale end at it."""
    labels = unpack_logits(pack_logits(torch.tensor([row]))).softmax(dim=1)
    assert_close(labels, torch.tensor([row]).softmax(dim=1))
    huge = unpack_logits(pack_logits(torch.tensor([[1e30, -1e30]])))
    assert huge.tolist() == [[0.0, pytest.approx(-255 * 2**23.75)]]


def test_no_samples():
    assert unpack_logits(pack_logits(torch.zeros(0, 4))).shape == (0, 4)
