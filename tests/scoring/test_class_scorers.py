"""Scorers with labels: what they release, and attacks on the sensitivities that they claim."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaux_pl.errors import PrivacyError
from fedaux_pl.functional import gaussian_epsilon, gaussian_sigma
from fedaux_pl.scoring import (
    ClassMeans,
    Logistic,
    Mean,
    Privacy,
    ScoresAndHead,
    Scoring,
    Standardized,
    Whitened,
)
from tests.scoring.test_audit import epsilon_lower_bound

EPSILON, DELTA, ALL = 1.0, 0.05, 6_000
C, K = 3, 4

SCORERS = st.just(ClassMeans()) | st.builds(
    ScoresAndHead,
    scorer=st.sampled_from([Mean(), Logistic(regularization=0.01, tolerance=1e-8)]),
    regularization=st.sampled_from([1e-3, 0.01, 0.1, 10.0]),
    share=st.sampled_from([0.1, 0.5, 0.9]),
    tolerance=st.sampled_from([1e-8, 1e-4]),
)


def unit(rows):
    return torch.nn.functional.normalize(rows, dim=1)


def vector(scorer, rows, labels, negatives=None):
    negatives = rows[:0] if negatives is None or not scorer.uses_negatives else negatives
    return scorer.class_vector(rows, torch.eye(C).double()[labels], negatives)


def test_class_means_are_sums_and_counts():
    rows = unit(torch.randn(10, K, dtype=torch.float64))
    labels = torch.tensor([0, 0, 2, 2, 2, 0, 2, 2, 2, 2])
    table = ClassMeans.class_sums(vector(ClassMeans(), rows, labels), C)
    for c in range(C):
        own = rows[labels == c]
        torch.testing.assert_close(table[c, :-1], own.sum(dim=0) / 10)
        assert float(table[c, -1]) == pytest.approx(len(own) / 10)
    assert ClassMeans().row_length(table.flatten(), C) == K


def test_the_rows_of_class_means_add_up_to_the_mean_of_the_rows():
    """So the signal-to-noise ratio of the scores is that of ``Mean``."""
    rows, labels = unit(torch.randn(10, K, dtype=torch.float64)), torch.arange(10) % C
    table = ClassMeans.class_sums(vector(ClassMeans(), rows, labels), C)
    torch.testing.assert_close(table[:, :-1].sum(dim=0), Mean().vector(rows, rows[:0]))
    noise = math.sqrt(2) * ClassMeans().sensitivity(10, 0)
    assert noise == pytest.approx(Mean().sensitivity(10, 0))


def test_scores_and_head_are_recovered():
    generator = torch.Generator().manual_seed(0)
    rows = unit(torch.randn(20, K, generator=generator, dtype=torch.float64))
    negatives = unit(torch.randn(30, K, generator=generator, dtype=torch.float64))
    for scorer in (Mean(), Logistic(regularization=0.01)):
        both = ScoresAndHead(scorer, regularization=0.1, share=0.3)
        released = vector(both, rows, torch.arange(20) % C, negatives)
        weight, head = both.split(released, C, 20, 30)
        own = negatives if scorer.uses_negatives else negatives[:0]
        torch.testing.assert_close(weight, scorer.vector(rows, own))
        assert head.shape == (C, K + 1)
        assert both.row_length(released, C) == K


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_the_parts_compose_exactly(share):
    """mu^2 of the whole release is the sum of those of its parts, which split it by ``share``."""
    both = ScoresAndHead(regularization=0.1, share=share)
    whole = Privacy(EPSILON, 1e-5).record(both.sensitivity(100, 0))
    scale = both.split(torch.ones(K + C * (K + 1)).double(), C, 100, 0)[0][0]  # 1 / r
    scores = Mean().sensitivity(100, 0) / (float(scale) * whole.sigma)
    head = both._head_sensitivity(100) / whole.sigma
    assert scores**2 + head**2 == pytest.approx(whole.mu**2, rel=1e-12)
    assert scores**2 == pytest.approx(share * whole.mu**2, rel=1e-12)
    assert gaussian_epsilon(1e-5, 1 / math.hypot(scores, head)) == pytest.approx(EPSILON, rel=1e-6)


OTHER = st.sampled_from(["opposite", "same", "zero", "random", "axis"])


@settings(deadline=None, max_examples=60, derandomize=True)
@given(SCORERS, st.integers(0, 2**32), st.integers(1, 12), OTHER, st.booleans(), st.booleans())
def test_a_replaced_record_moves_the_vector_by_at_most_the_sensitivity(
    scorer, seed, size, other, relabel, pure
):
    """Records that stand alone or against all others, with another label or the same."""
    generator = torch.Generator().manual_seed(seed)
    rows = unit(torch.randn(size, K, generator=generator, dtype=torch.float64))
    labels = torch.randint(C, (size,), generator=generator)
    if pure:  # all other records are equal: the fit is as certain as it gets
        rows[:], labels[:] = rows[-1].clone(), 0
    new_rows, new_labels = rows.clone(), labels.clone()
    new_rows[0] = {
        "opposite": -rows[0],
        "same": rows[0],
        "zero": torch.zeros(K),
        "random": unit(torch.randn(1, K, generator=generator, dtype=torch.float64))[0],
        "axis": torch.eye(K)[0],
    }[other]
    if relabel:
        new_labels[0] = (labels[0] + 1) % C
    negatives = unit(torch.randn(8, K, generator=generator, dtype=torch.float64))
    before = vector(scorer, rows, labels, negatives)
    moved = before - vector(scorer, new_rows, new_labels, negatives)
    sizes = size, len(negatives) if scorer.uses_negatives else 0
    assert float(moved.norm()) <= scorer.sensitivity(*sizes) * (1 + 1e-12)
    assert float(before.norm()) <= scorer.largest_norm(*sizes) * (1 + 1e-12)


def test_class_means_attain_their_sensitivity_with_the_same_and_with_another_label():
    rows = torch.eye(K).double()[:1].repeat(5, 1)
    opposite = rows.clone()
    opposite[0] *= -1
    labels, other = torch.zeros(5).long(), torch.tensor([1, 0, 0, 0, 0])
    bound = ClassMeans().sensitivity(5, 0)
    for new_rows, new_labels in ((opposite, labels), (rows, other)):
        moved = vector(ClassMeans(), rows, labels) - vector(ClassMeans(), new_rows, new_labels)
        assert float(moved.norm()) == pytest.approx(bound, rel=1e-12)


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


def attack(scorer, rows, labels, new_rows, new_labels, claimed=None):
    """A lower bound on epsilon from releases on two neighboring data sets."""
    vectors = vector(scorer, rows, labels), vector(scorer, new_rows, new_labels)
    budget, sensitivity = Privacy(EPSILON, DELTA), claimed or scorer.sensitivity(len(rows), 0)
    samples = [
        torch.stack([budget.release(v, sensitivity, side * ALL + i)[0] for i in range(ALL)])
        @ (vectors[0] - vectors[1])
        for side, v in enumerate(vectors)
    ]
    return epsilon_lower_bound(*samples, DELTA)


def relabeled(sign=1.0):
    """Two data sets of two records, one of which has another label and perhaps the opposite row."""
    rows = torch.eye(K).double()[:1].repeat(2, 1)
    other = rows.clone()
    other[0] *= sign
    return rows, torch.tensor([0, 0]), other, torch.tensor([1, 0])


@pytest.mark.parametrize(
    ("scorer", "sign", "tight"),
    [(ClassMeans(), 1.0, 0.5), (ScoresAndHead(regularization=10.0), -1.0, 0.3)],
)
def test_releases_survive_an_attack_that_is_not_blind(scorer, sign, tight):
    assert tight < attack(scorer, *relabeled(sign)) <= EPSILON


def test_the_attack_catches_a_sensitivity_that_forgets_the_labels():
    """1 / (sqrt(2) n), as if a replaced record could not leave its class's block."""
    assert attack(ClassMeans(), *relabeled(), claimed=math.sqrt(2) / 2 / 2) > EPSILON


def test_a_fit_that_did_not_converge_is_not_released(monkeypatch):
    monkeypatch.setattr(
        "fedaux_pl.scoring.class_scorers.fit_softmax_head",
        lambda rows, labels, *_, **__: (torch.zeros(C, K + 1).double(), 1e-3),
    )
    with pytest.raises(PrivacyError, match="stopped at a gradient norm of"):
        vector(ScoresAndHead(), torch.eye(K).double(), torch.zeros(K).long())


def test_the_whole_release_has_the_noise_of_its_sensitivity():
    features = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.eye(C)[torch.arange(40) % C]
    for scorer in (ClassMeans(), ScoresAndHead()):
        scoring = Scoring(scorer, Whitened(K), Standardized(), "unit", Privacy(0.5), shrink=False)
        public_map = scoring.fit_map(features, features)
        head = scoring.release(0, features, features[:0], public_map, 1, labels)
        assert head.release.sigma == gaussian_sigma(0.5, 1e-5, scorer.sensitivity(40, 0))
        exact = scorer.class_vector(public_map.rows(features), labels, features[:0])
        assert 0.5 < float((head.weight - exact).std()) / head.release.sigma < 2
        with pytest.raises(ValueError, match="needs the labels"):
            scoring.release(0, features, features[:0], public_map, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0.0}, "share must lie strictly between 0 and 1, but is 0.0"),
        ({"share": 1.0}, "share must lie strictly"),
        ({"regularization": 0.0}, "lambda must be positive"),
        ({"scorer": ClassMeans()}, "without labels"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ScoresAndHead(**options)


def test_labels_are_needed():
    with pytest.raises(TypeError, match="ClassMeans needs labels"):
        ClassMeans().vector(torch.eye(2), torch.eye(2))
