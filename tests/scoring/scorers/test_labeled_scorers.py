"""Scorers with labels: what they release, and attacks on the sensitivities that they claim."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaux_pl.functional import gaussian_sigma, split_statistics
from fedaux_pl.scoring import (
    ClassCounts,
    ClassStatistics,
    ClassSums,
    Logistic,
    Mean,
    Privacy,
    Residuals,
    ScoresAndHead,
    Scoring,
    Step,
    Whitened,
)
from tests.scoring.test_audit import epsilon_lower_bound

EPSILON, DELTA, ALL = 1.0, 0.05, 6_000
C, K = 3, 4


def residuals(scale=0.0):
    """Those of a classifier that is undecided between the first two classes on the row 0."""
    weight = scale * torch.randn(C, K, generator=torch.Generator().manual_seed(0)).double()
    return Residuals(weight, torch.tensor([0.0, 0.0, -50.0]).double())


STATISTICS = [ClassStatistics(second_moment=rho) for rho in (0.1, 0.5, 1.0, 3.0)]
OTHERS = [ClassCounts(), ClassSums(), residuals(), residuals(1.0), residuals(30.0)]
SCORERS = st.sampled_from([*STATISTICS, *OTHERS]) | st.builds(
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
    return scorer.vector(rows, torch.eye(C).double()[labels], negatives)


@pytest.mark.parametrize("scorer", [*STATISTICS[:1], *OTHERS[:3], ScoresAndHead()])
def test_the_length_of_a_vector_is_that_of_the_scorer(scorer):
    """By which a server of sites refuses a message."""
    rows, labels = unit(torch.randn(6, K, dtype=torch.float64)), torch.arange(6) % C
    assert len(vector(scorer, rows, labels)) == scorer.vector_length(K, C)


def test_class_statistics_and_counts_are_those_of_the_records():
    rows = unit(torch.randn(10, K, dtype=torch.float64))
    labels = torch.tensor([0, 0, 2, 2, 2, 0, 2, 2, 2, 2])
    scorer = ClassStatistics(second_moment=0.7)
    sums, counts, moment = split_statistics(vector(scorer, rows, labels), C, 0.7)
    torch.testing.assert_close(sums[2], rows[labels == 2].sum(dim=0))
    torch.testing.assert_close(moment, rows.T @ rows)
    assert counts.tolist() == pytest.approx([3, 0, 7])
    assert vector(ClassCounts(), rows, labels).tolist() == [3, 0, 7]
    table = vector(ClassSums(), rows, labels).view(C, K + 1)
    torch.testing.assert_close(table[:, :-1], sums)
    assert table[:, -1].tolist() == [3, 0, 7]


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


def replaced(row, label):
    """Two data sets of two records, the first of which is replaced by another record."""
    rows = torch.eye(K).double()[:1].repeat(2, 1)
    other = rows.clone()
    other[0] = torch.tensor(row, dtype=torch.float64)
    return rows, torch.tensor([0, 0]), other, torch.tensor([label, 0])


OPPOSITE, SAME, ORTHOGONAL = [-1.0, 0, 0, 0], [1.0, 0, 0, 0], [0, 1.0, 0, 0]
WORST = [
    (ClassStatistics(), (OPPOSITE, 0)),
    (ClassStatistics(), (ORTHOGONAL, 1)),
    (ClassStatistics(1.0), ([-0.5, math.sqrt(0.75), 0, 0], 0)),
    (ClassStatistics(1.0), (ORTHOGONAL, 1)),
    (ClassCounts(), (SAME, 1)),
    (residuals(), (SAME, 1)),
    (ClassSums(), (OPPOSITE, 0)),
    (ClassSums(), (ORTHOGONAL, 1)),
]


@pytest.mark.parametrize(("scorer", "pair"), WORST)
def test_the_sensitivity_is_attained(scorer, pair):
    rows, labels, new_rows, new_labels = replaced(*pair)
    moved = vector(scorer, rows, labels) - vector(scorer, new_rows, new_labels)
    assert float(moved.norm()) == pytest.approx(scorer.sensitivity(2, 0), rel=1e-9)


def attack(scorer, rows, labels, new_rows, new_labels, claimed=None):
    """A lower bound on epsilon from releases on two neighboring data sets."""
    vectors = vector(scorer, rows, labels), vector(scorer, new_rows, new_labels)
    # by more than rounding; noise is independent, so the other entries tell nothing
    differ = ~torch.isclose(*vectors)
    vectors = vectors[0][differ], vectors[1][differ]
    budget, sensitivity = Privacy(EPSILON, DELTA), claimed or scorer.sensitivity(len(rows), 0)
    samples = [
        torch.stack([budget.release(v, sensitivity, side * ALL + i)[0] for i in range(ALL)])
        @ (vectors[0] - vectors[1])
        for side, v in enumerate(vectors)
    ]
    return epsilon_lower_bound(*samples, DELTA)


@pytest.mark.parametrize(
    ("scorer", "pair", "tight"),
    [
        *((scorer, pair, 0.45) for scorer, pair in (WORST[0], WORST[3], WORST[4])),
        *(pytest.param(*case, 0.45, marks=pytest.mark.nightly) for case in WORST[5:]),
        (ScoresAndHead(regularization=10.0), (OPPOSITE, 1), 0.25),
    ],
)
def test_releases_survive_an_attack_that_is_not_blind(scorer, pair, tight):
    assert tight < attack(scorer, *replaced(*pair)) <= EPSILON


@pytest.mark.parametrize(
    ("scorer", "pair"),
    [WORST[1], *(pytest.param(*case, marks=pytest.mark.nightly) for case in WORST[4:])],
)
def test_the_attack_catches_a_sensitivity_that_is_too_small(scorer, pair):
    """About that of a record that is removed, not replaced."""
    assert attack(scorer, *replaced(*pair), claimed=scorer.sensitivity(2, 0) / 2) > EPSILON


@pytest.mark.parametrize("scorer", [*STATISTICS, *OTHERS])
def test_no_vector_is_longer_than_the_bound_and_that_of_equal_records_attains_it(scorer):
    rows, labels = torch.eye(K).double()[:1].repeat(7, 1), torch.zeros(7).long()
    norm, bound = float(vector(scorer, rows, labels).norm()), scorer.largest_norm(7, 0)
    assert norm <= bound * (1 + 1e-12)
    assert scorer in OTHERS[3:] or norm == pytest.approx(bound, rel=1e-9)


@pytest.mark.parametrize(
    "scorer", [ClassStatistics(1.0), ClassCounts(), ClassSums(), residuals(), ScoresAndHead()]
)
def test_the_whole_release_has_the_noise_of_its_sensitivity_and_part(scorer):
    features = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.eye(C)[torch.arange(40) % C]
    scoring = Scoring(scorer, Whitened(K), privacy=Privacy(0.5))
    public_map = scoring.fit_map(features, features)
    for share in (1.0, 0.25):
        step = Step(scoring, share=share)
        head = step.release(0, features, features[:0], public_map, 1, labels)
        whole = gaussian_sigma(0.5, 1e-5, scorer.sensitivity(40, 0))
        sigma = whole / math.sqrt(share)
        assert head.release.sigma == pytest.approx(sigma, rel=1e-7)
        assert head.release.what == scorer.what
        exact = scorer.vector(public_map.rows(features), labels)
        assert 0.4 < float((head.weight - exact).square().mean().sqrt()) / sigma < 2
        assert float(head.weight.abs().max()) <= step.largest_value(40, 0)
        step.check_release(head, 40, 0)
        with pytest.raises(ValueError, match="needs the labels"):
            step.release(0, features, features[:0], public_map, 1)


def test_wrong_options_of_class_statistics_are_refused():
    with pytest.raises(ValueError, match="releases: got 3; expected to be 1, 2 or null"):
        ClassStatistics(releases=3)
    with pytest.raises(ValueError, match=r"rho: got .*; expected to be positive"):
        ClassStatistics(second_moment=0.0)


@pytest.mark.parametrize("scorer", [ClassStatistics(), *OTHERS[:3]])
def test_labels_are_needed(scorer):
    with pytest.raises(ValueError, match="needs the labels"):
        scorer.vector(torch.eye(2))
