import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaux_pl.functional import soft_labels
from fedaux_pl.scoring import Sigmoid, Standardized


def test_sigmoid_scores_are_the_papers():
    logits = torch.tensor([-2.0, 0.0, 1.5], dtype=torch.float64)
    scores = Sigmoid(0.25).scores(logits, torch.zeros(2))
    expected = [1 / (1 + math.exp(-z)) + 0.25 for z in logits.tolist()]
    assert scores.tolist() == pytest.approx(expected)


def test_standardized_scores_written_out():
    reference, logits = [1.0, 2.0, 6.0, 7.0], [4.0, 9.0]
    mean = sum(reference) / 4
    std = math.sqrt(sum((z - mean) ** 2 for z in reference) / 4)
    expected = [math.exp(3 * (z - mean) / std) for z in logits]
    scores = Standardized(3.0).scores(*(torch.tensor(x).double() for x in (logits, reference)))
    assert scores.tolist() == pytest.approx(expected)


def test_test_data_are_standardized_by_the_constants_of_the_distillation_data():
    """What is scored together with a sample does not change its score."""
    generator = torch.Generator().manual_seed(0)
    reference, test = torch.randn(2, 100, generator=generator).double()
    calibration = Standardized(2.0)
    alone = calibration.scores(test[:1], reference)
    assert calibration.scores(test, reference)[0] == alone
    assert calibration.scores(1e3 + test, reference)[50] > 1e10


def test_scores_do_not_depend_on_scale_and_shift_of_logits():
    reference = torch.randn(50, generator=torch.Generator().manual_seed(0)).double()
    calibration = Standardized(4.0)
    torch.testing.assert_close(
        calibration.scores(reference, reference),
        calibration.scores(1e-6 * reference - 3, 1e-6 * reference - 3),
        rtol=1e-6,
        atol=0,
    )


def test_weights_are_a_softmax_over_the_clients():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 40, generator=generator).double()
    scores = torch.stack([Standardized(3.0).scores(row, row) for row in logits])
    z = (logits - logits.mean(1, keepdim=True)) / logits.std(1, correction=0, keepdim=True)
    torch.testing.assert_close(scores / scores.sum(0), (3 * z).softmax(dim=0))


@pytest.mark.parametrize("value", [0.0, 0.1, -1e8])
def test_a_client_with_constant_logits_has_score_1(value):
    reference = torch.full((1000,), value, dtype=torch.float64)
    scores = Standardized(5.0).scores(torch.tensor([value, value + 1]).double(), reference)
    assert scores.tolist() == [1, 1]


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.floats(-1e100, 1e100), min_size=2, max_size=20),
    st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=5),
    st.floats(1e-3, 20),
)
def test_scores_are_positive_and_finite_and_so_are_soft_labels(reference, logits, sharpness):
    scores = Standardized(sharpness).scores(
        *(torch.tensor(values, dtype=torch.float64) for values in (logits, reference))
    )
    small = scores.float()
    assert (small > 0).all()
    assert small.isfinite().all()
    for part in (small, small.flip(0)):
        teachers = 30 * torch.randn(1, len(part), 4, generator=torch.Generator().manual_seed(0))
        labels = soft_labels(teachers.expand(3, -1, -1), torch.stack([small, part, part]))
        torch.testing.assert_close(labels.sum(dim=1), torch.ones(len(part)))


def test_options_out_of_range():
    for sharpness in (0.0, -1.0, 20.5, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"got {sharpness}; expected to .*at most 20"):
            Standardized(sharpness)
    for xi in (-1e-9, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"xi: got .*; expected to be at least 0 and finite"):
            Sigmoid(xi)
