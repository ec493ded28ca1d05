"""The plan of releases by public numbers."""

import dataclasses

import pytest
import torch

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.scoring import (
    ClassCounts,
    ClassStatistics,
    Mean,
    Privacy,
    PublicNumbers,
    Residuals,
    Scoring,
    SecureSums,
    Step,
    Whitened,
    plan,
    spent,
)

NUMBERS = PublicNumbers({"resnet8": [2500] * 20}, classes=10)
LOCAL = {"secure": None}
SECURE = {"secure": SecureSums()}


def scoring(releases=None, dimensions=None, scorer=None, **privacy):
    feature_map = Whitened(dimensions, None if dimensions is None else 0.6)
    scorer = scorer or ClassStatistics(releases=releases)
    return Scoring(scorer, feature_map, privacy=Privacy(**privacy))


@pytest.mark.parametrize("sums", [LOCAL, SECURE])
@pytest.mark.parametrize("epsilon", [None, 0.1, 10.0])
def test_open_options_are_chosen(epsilon, sums):
    steps = plan(scoring(epsilon=epsilon, **sums), NUMBERS)
    first = steps["statistics"]
    assert first.scoring.feature_map.dimensions >= 1
    assert 0 <= first.scoring.feature_map.whitening <= 1
    assert first.scorer.releases == len(steps)
    assert (first.share, first.summed) == (1 / len(steps), sums == SECURE)
    assert plan(first.scoring, NUMBERS)["statistics"] == first


@pytest.mark.parametrize("numbers", [NUMBERS, None])
@pytest.mark.parametrize("releases", [1, 2])
def test_explicit_options_stay(releases, numbers):
    own = scoring(releases, dimensions=7, epsilon=0.1)
    steps = plan(own, numbers)
    assert list(steps) == ["statistics", "gradient"][:releases]
    assert steps["statistics"] == Step(own, "statistics", 1 / releases)
    mean = scoring(dimensions=7, scorer=Mean())
    assert plan(mean, numbers) == {"scores": Step(mean)}


@pytest.mark.parametrize("own", [scoring(dimensions=7), scoring(releases=1, **SECURE)])
def test_real_sites_cannot_plan(own):
    with pytest.raises(ConfigurationError, match=r"scoring\.releases \(1 or 2\)"):
        plan(own, None)


def test_sites_agree_on_the_share_of_counts():
    own = scoring(1, dimensions=7, secure=SecureSums(count_share=0.1))
    steps = plan(own, None, counts=True)
    assert plan(own, NUMBERS, counts=True) == steps
    assert list(steps) == ["statistics", "counts"]
    assert (steps["statistics"].share, steps["statistics"].summed) == (0.9, True)
    assert steps["counts"].share == pytest.approx(0.1)
    assert list(plan(own, None)) == ["statistics"]
    few = scoring(1, dimensions=7, secure=SecureSums(count_share=0.005))
    assert "counts" in plan(few, None, counts=True)
    default = plan(scoring(1, dimensions=7, **SECURE), None, counts=True)
    assert default == steps  # also in the keys of ledgers
    assert plan(scoring(1, dimensions=7, **SECURE), None)["statistics"].secure.count_share is None


def test_secure_sums_are_refused():
    with pytest.raises(ConfigurationError, match="Mean needs the vector of each client: set priv"):
        plan(scoring(scorer=Mean(), **SECURE), NUMBERS)


@pytest.mark.parametrize("secure", [None, SecureSums()])
@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("releases", [1, 2])
def test_all_releases_have_the_whole_budget(releases, counts, secure):
    """The counts have a part of their own if the server sees the sum of the statistics alone."""
    steps = plan(scoring(releases, epsilon=0.5, secure=secure), NUMBERS, counts)
    has_counts = counts and secure is not None
    assert ("counts" in steps) == has_counts
    if has_counts:
        assert steps["counts"].scorer == ClassCounts()
        assert not steps["counts"].summed
    assert sum(step.share for step in steps.values()) == pytest.approx(1, abs=1e-12)
    # as if the server saw each vector: the guarantee of a sum is that of sigma sqrt(n - 1)
    costs = [
        step.cost(step.scoring.sensitivity(100, 0), simulated=False) for step in steps.values()
    ]
    assert 0.999999 * 0.5 <= spent(costs, 1e-5)[0] <= 0.5


def test_the_gradient_has_the_plan_of_the_statistics():
    steps = plan(scoring(2, dimensions=7, **SECURE), NUMBERS, counts=True)
    assert list(steps) == ["statistics", "counts", "gradient"]
    tensors = {"weight": torch.ones(10, 7), "bias": torch.ones(10)}
    gradient = steps["gradient"].with_sent(tensors)
    assert isinstance(gradient.scorer, Residuals)
    assert gradient.scorer.tensors() == tensors
    first = steps["statistics"]
    assert dataclasses.replace(gradient, scoring=first.scoring, name=first.name) == first


def test_more_records_than_a_secure_sum_can_have_are_refused():
    many = PublicNumbers({"resnet8": [5 * 10**7] * 2}, classes=10)
    for options in ({}, {"scorer": ClassStatistics(0.15, 1)}):
        expected = r"100,000,000 records together; expected at most 83,\d{3},\d{3}: leave out"
        with pytest.raises(ConfigurationError, match=expected):
            plan(scoring(**options, **SECURE), many)
    plan(scoring(scorer=ClassStatistics(1.0, 1), **SECURE), many)
    plan(scoring(**LOCAL), many)
    apart = PublicNumbers({"resnet8": [5 * 10**7], "shufflenet": [5 * 10**7]}, classes=10)
    plan(scoring(**SECURE), apart)  # two sums
