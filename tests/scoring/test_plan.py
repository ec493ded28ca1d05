"""The plan of releases by public numbers."""

import dataclasses

import pytest
import torch

from fedaux_pl import FedClassMeans
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.scoring import (
    ClassCounts,
    ClassStatistics,
    Mean,
    Part,
    Privacy,
    Residuals,
    Whitened,
    spent,
)
from fedaux_pl.scoring.plan import (
    PublicNumbers,
    choose_dimensions,
    choose_releases,
    count_share,
    further,
    has_counts,
    plan,
)

NUMBERS = PublicNumbers({"resnet8": [2500] * 20}, classes=10)
LOCAL = {"sums": "local"}
SECURE = {"sums": "secure"}
EPSILONS = [1e-3, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0]


def scoring(releases=None, dimensions=None, scorer=None, **privacy):
    feature_map = Whitened(dimensions, None if dimensions is None else 0.6)
    return dataclasses.replace(
        FedClassMeans(feature_map=feature_map, privacy=Privacy(**privacy)).scoring,
        scorer=scorer or ClassStatistics(releases=releases),
    )


def test_public_numbers_of_several_architectures():
    numbers = PublicNumbers({"resnet8": [10, 30], "shufflenet": [5, 5, 10]}, classes=10)
    assert (numbers.records, numbers.noises(Privacy())) == (30, 2)


@pytest.mark.parametrize("sums", [LOCAL, SECURE])
@pytest.mark.parametrize("epsilon", [None, 0.1, 10.0])
def test_open_options_are_chosen(epsilon, sums):
    planned = plan(scoring(epsilon=epsilon, **sums), NUMBERS)
    assert planned.feature_map.dimensions >= 1
    assert 0 <= planned.feature_map.whitening <= 1
    assert planned.scorer.releases in (1, 2)
    assert planned.part == Part(1 / planned.scorer.releases, secure=sums == SECURE)
    assert plan(planned, NUMBERS) == planned


@pytest.mark.parametrize("numbers", [NUMBERS, None])
@pytest.mark.parametrize("releases", [1, 2])
def test_explicit_options_stay(releases, numbers):
    own = scoring(releases, dimensions=7, epsilon=0.1)
    assert plan(own, numbers) == dataclasses.replace(own, part=Part(1 / releases))
    mean = scoring(dimensions=7, scorer=Mean())
    assert plan(mean, numbers) == mean


@pytest.mark.parametrize("own", [scoring(dimensions=7), scoring(releases=1, **SECURE)])
def test_real_sites_cannot_plan(own):
    with pytest.raises(ConfigurationError, match="set dimensions of feature_map, releases of"):
        plan(own, None)


def test_sites_agree_on_the_share_of_counts():
    own = scoring(2, dimensions=7, count_share=0.1, **SECURE)
    assert plan(own, NUMBERS, counts=True) == plan(own, None, counts=True)
    planned = plan(own, None, counts=True)
    assert planned.part == Part(0.45, secure=True)
    assert further(planned, {}).part.share == pytest.approx(0.1)
    assert has_counts(planned)
    assert not has_counts(plan(own, None))
    few = scoring(1, dimensions=7, count_share=0.005, **SECURE)
    assert has_counts(plan(few, None, counts=True))
    with pytest.raises(ConfigurationError, match=r"privacy.count_share \(such as 0.1\)"):
        plan(scoring(2, dimensions=7, **SECURE), None, counts=True)


def test_attempts_are_paid_in_advance():
    planned = plan(scoring(1, dimensions=7, attempts=2, **SECURE), NUMBERS, counts=True)
    assert 2 * planned.part.share + further(planned, {}).part.share == pytest.approx(1)


def test_secure_sums_are_refused():
    with pytest.raises(ConfigurationError, match="Mean needs the vector of each client: set priv"):
        plan(scoring(scorer=Mean(), **SECURE), NUMBERS)


@pytest.mark.parametrize("sums", [LOCAL, SECURE])
@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("releases", [1, 2])
def test_all_releases_have_the_whole_budget(releases, counts, sums):
    """The counts have a part of their own if the server sees the sum of the statistics alone."""
    planned = plan(scoring(releases, epsilon=0.5, **sums), NUMBERS, counts)
    tensors = {"weight": torch.ones(10, 7), "bias": torch.ones(10)}
    all_releases = [planned, further(planned, tensors)][:releases]
    if counts and sums == SECURE:
        all_releases.append(further(planned, {}))
        assert all_releases[-1].scorer == ClassCounts()
        assert not all_releases[-1].part.secure
    assert sum(own.part.share for own in all_releases) == pytest.approx(1, abs=1e-12)
    # as if the server saw each vector: the guarantee of a sum is that of sigma sqrt(n - 1)
    local = [dataclasses.replace(own, part=Part(own.part.share)) for own in all_releases]
    records = [own.record(own.sensitivity(100, 0), simulated=False) for own in local]
    assert 0.999999 * 0.5 <= spent(records, 1e-5)[0] <= 0.5


def test_residuals_get_the_classifier_and_the_plan_of_the_statistics():
    planned = plan(scoring(2, dimensions=7, **SECURE), NUMBERS, counts=True)
    tensors = {"weight": torch.ones(10, 7), "bias": torch.ones(10)}
    second = further(planned, tensors)
    assert isinstance(second.scorer, Residuals)
    assert second.scorer.tensors() == tensors
    assert dataclasses.replace(second, scorer=planned.scorer) == planned


def test_less_noise_never_means_fewer_dimensions_or_releases_or_more_for_counts():
    for sums in (LOCAL, SECURE):
        budgets = [*(Privacy(e, **sums) for e in EPSILONS), Privacy(None, **sums)]
        for scorer in (ClassStatistics(), Mean()):
            dimensions = [choose_dimensions(scorer, own, NUMBERS) for own in budgets]
            assert dimensions == sorted(dimensions)
            assert 1 <= dimensions[0] < dimensions[-1]
        releases = [choose_releases(own, NUMBERS) for own in budgets]
        shares = [count_share(own, NUMBERS) for own in budgets]
        assert releases == sorted(releases)
        assert (releases[0], releases[-1]) == (1, 2)
        assert shares == sorted(shares, reverse=True)
        assert 0 < shares[-1] < shares[0] < 0.5
    for epsilon in EPSILONS:
        local, secure = (
            choose_releases(Privacy(epsilon, **own), NUMBERS) for own in (LOCAL, SECURE)
        )
        assert local <= secure


def test_more_records_than_a_secure_sum_can_have_are_refused():
    many = PublicNumbers({"resnet8": [5 * 10**7] * 2}, classes=10)
    for options in ({}, {"scorer": ClassStatistics(0.15, 1)}):
        expected = r"100,000,000 records together; expected at most 83,\d{3},\d{3} with second_mom"
        with pytest.raises(ConfigurationError, match=expected):
            plan(scoring(**options, **SECURE), many)
    plan(scoring(scorer=ClassStatistics(1.0, 1), **SECURE), many)
    plan(scoring(**LOCAL), many)
    apart = PublicNumbers({"resnet8": [5 * 10**7], "shufflenet": [5 * 10**7]}, classes=10)
    plan(scoring(**SECURE), apart)  # two sums
