"""Scores and head in one vector: the parts, their composition, and the worst pair of data sets."""

import math

import pytest
import torch

from fedaux_pl.errors import PrivacyError
from fedaux_pl.functional import gaussian_epsilon
from fedaux_pl.scoring import ClassStatistics, Logistic, Mean, Privacy, ScoresAndHead
from tests.scoring.scorers.test_labeled_scorers import EPSILON, C, K, unit, vector


def test_scores_and_head_are_recovered():
    generator = torch.Generator().manual_seed(0)
    rows = unit(torch.randn(20, K, generator=generator, dtype=torch.float64))
    negatives = unit(torch.randn(30, K, generator=generator, dtype=torch.float64))
    for scorer in (Mean(), Logistic(regularization=0.01)):
        both = ScoresAndHead(scorer, regularization=0.1, share=0.3)
        released = vector(both, rows, torch.arange(20) % C, negatives)
        weight, head = both.split(released, C, 20, 30)
        own = negatives if scorer.uses_negatives else negatives[:0]
        torch.testing.assert_close(weight, scorer.vector(rows, negatives=own))
        assert head.shape == (C, K + 1)
        assert both.row_length(released, C) == K


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_the_parts_compose_exactly(share):
    """mu^2 of the whole release is the sum of those of its parts, which split it by ``share``."""
    both = ScoresAndHead(regularization=0.1, share=share)
    whole = Privacy(EPSILON, 1e-5).cost(both.sensitivity(100, 0))
    scale = both.split(torch.ones(K + C * (K + 1)).double(), C, 100, 0)[0][0]  # 1 / r
    scores = Mean().sensitivity(100, 0) / (float(scale) * whole.sigma)
    head = both.head_sensitivity(100) / whole.sigma
    assert scores**2 + head**2 == pytest.approx(whole.mu**2, rel=1e-12)
    assert scores**2 == pytest.approx(share * whole.mu**2, rel=1e-12)
    assert gaussian_epsilon(1e-5, 1 / math.hypot(scores, head)) == pytest.approx(EPSILON, rel=1e-6)


def climb(regularization, size, steps=60):
    """The largest |W - W'| n lambda that a search over neighboring data sets has found."""
    scorer, generator = ScoresAndHead(regularization=regularization), torch.Generator()
    best, found = None, 0.0
    for step in range(steps):
        generator.manual_seed(step)
        if best is None or step < steps // 3:
            rows = torch.randn(size + 1, 2, generator=generator, dtype=torch.float64)
            labels = torch.randint(C, (size + 1,), generator=generator)
        else:
            rows = best[0] + 0.3 * torch.randn(best[0].shape, generator=generator).double()
            labels = best[1]
        rows = unit(rows)
        heads = [
            scorer.split(vector(scorer, own, classes), C, size, 0)[1]
            for own, classes in ((rows[:-1], labels[:-1]), (rows[1:], labels[1:]))
        ]
        moved = float((heads[0] - heads[1]).norm()) * size * regularization
        if moved > found:
            best, found = (rows, labels), moved
    return found


@pytest.mark.parametrize(("regularization", "size", "close"), [(10.0, 1, 0.45), (0.1, 2, 0.15)])
def test_a_search_for_the_worst_pair_stays_below_the_bound(regularization, size, close):
    """It comes within a good part of 2 sqrt(2), so that it is not blind."""
    found = climb(regularization, size)
    assert close * 2 * math.sqrt(2) < found <= 2 * math.sqrt(2) * (1 + 1e-6)


def test_a_fit_that_did_not_converge_is_not_released(monkeypatch):
    monkeypatch.setattr(
        "fedaux_pl.scoring.scorers.scores_and_head.fit_softmax_head",
        lambda rows, labels, *_, **__: (torch.zeros(C, K + 1).double(), 1e-3),
    )
    with pytest.raises(PrivacyError, match="stopped at a gradient norm of"):
        vector(ScoresAndHead(), torch.eye(K).double(), torch.zeros(K).long())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0.0}, "share: got 0.0; expected to lie strictly between 0 and 1"),
        ({"share": 1.0}, "share: got .*; expected to lie strictly"),
        ({"regularization": 0.0}, "lambda: got .*; expected to be positive"),
        ({"scorer": ClassStatistics()}, "without labels"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ScoresAndHead(**options)
