"""The plan of releases: in which steps clients release, and how the steps share the budget.

The plan depends only on options and on public numbers, so that server and clients agree on it.
"""

from collections.abc import Mapping
from dataclasses import replace

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional import most_records
from fedaux_pl.scoring.choices import (
    COUNT_SHARE_AT_SITES,
    PublicNumbers,
    choose_count_share,
    choose_dimensions,
    choose_releases,
    choose_whitening,
)
from fedaux_pl.scoring.feature_maps import FeatureMap, Whitened
from fedaux_pl.scoring.scorers import ClassCounts, ClassStatistics, Residuals, Scorer
from fedaux_pl.scoring.scoring import Scoring
from fedaux_pl.scoring.step import Step

Plan = Mapping[str, Step]
"""The steps of a method by name, in their order; empty if its clients release nothing."""


def plan(scoring: Scoring, numbers: PublicNumbers | None, counts: bool = False) -> Plan:
    """Plan the steps in which clients release, and choose the options that the user left open.

    Most scorers need a single step. ``ClassStatistics`` need up to three steps: the statistics, the
    class counts of each client, and the gradient of the classifier that the server makes from the
    statistics.

    Args:
        scoring: The options. An option that is None is open.
        numbers: The public numbers about the clients' data, by which open options are chosen. None
            at real sites, which report these numbers only together with their releases. No option
            may be open there, except ``count_share`` of secure sums.
        counts: Whether the server needs the class counts of each client, as FedAUX does.

    Examples:
        >>> from fedaux_pl import FedClassMeans
        >>> numbers = PublicNumbers({"resnet8": [2500] * 20}, classes=10)
        >>> steps = plan(FedClassMeans().release.scoring, numbers)
        >>> steps["statistics"].scoring.feature_map
        Whitened(dimensions=64, whitening=0.5)
    """
    _check_secure_sums(scoring, numbers)
    scoring = replace(scoring, feature_map=_plan_feature_map(scoring, numbers))
    scorer = scoring.scorer
    if isinstance(scorer, ClassStatistics):
        return _plan_class_statistics(scoring, scorer, numbers, counts)
    return {"scores": Step(scoring)}


def first_step(plan: Plan) -> Step:
    """Return the first step of a plan that is not empty."""
    return next(iter(plan.values()))


def _check_secure_sums(scoring: Scoring, numbers: PublicNumbers | None) -> None:
    """Raise a ConfigurationError if the clients' vectors cannot be added up by secure sums."""
    if not scoring.privacy.secure:
        return
    if not isinstance(scoring.scorer, ClassStatistics):
        raise ConfigurationError(
            f"privacy.secure is set, but {type(scoring.scorer).__name__} needs the vector of each "
            "client: set privacy.secure to null, or scoring to StatisticsScoring"
        )
    if numbers is not None:
        check_records(scoring.scorer, max(map(sum, numbers.sizes.values())))


def check_records(scorer: Scorer, count: int) -> None:
    """Raise a ConfigurationError if a secure sum over this many records could exceed 64 bits."""
    if not isinstance(scorer, ClassStatistics):
        return
    most = most_records(scorer.second_moment)
    if count > most:
        raise ConfigurationError(
            f"the clients of a secure sum have {count:,} records together; expected at most "
            f"{most:,}: leave out clients, or set privacy.secure to null"
        )


def _plan_feature_map(scoring: Scoring, numbers: PublicNumbers | None) -> FeatureMap:
    """Return the feature map in which no option is open."""
    feature_map = scoring.feature_map
    if not isinstance(feature_map, Whitened):
        return feature_map
    dimensions = feature_map.dimensions
    if dimensions is None:
        dimensions = choose_dimensions(scoring.scorer, scoring.privacy, _require(numbers))
    whitening = feature_map.whitening
    if whitening is None:
        whitening = choose_whitening(scoring.scorer, dimensions)
    return replace(feature_map, dimensions=dimensions, whitening=whitening)


def _plan_class_statistics(
    scoring: Scoring,
    scorer: ClassStatistics,
    numbers: PublicNumbers | None,
    needs_counts: bool,
) -> Plan:
    """Return the steps "statistics", "counts" and "gradient", of which the last two are optional.

    The statistics and the gradient are secure sums if the user has set ``privacy.secure``. A sum
    hides the counts of each client, so clients release them in a step of their own. Without a sum,
    the server reads the counts from the statistics of each client.
    """
    privacy = scoring.privacy
    releases = scorer.releases or choose_releases(privacy, _require(numbers))
    scoring = replace(scoring, scorer=replace(scorer, releases=releases))
    is_summed = privacy.secure is not None

    # The counts get a share of the budget. The other releases get equal parts of the rest.
    count_share = 0.0
    if privacy.secure is not None and needs_counts:
        if privacy.secure.count_share is not None:
            count_share = privacy.secure.count_share
        elif numbers is not None:
            count_share = choose_count_share(privacy, numbers)
        else:
            count_share = COUNT_SHARE_AT_SITES
            scoring = _with_count_share(scoring, count_share)
    share = (1 - count_share) / releases

    steps = {"statistics": Step(scoring, "statistics", share, is_summed)}
    if count_share > 0:
        # count_share up to rounding; keys of ledgers contain this value, so its formula must stay
        remaining_share = 1 - releases * share
        counts = replace(scoring, scorer=ClassCounts())
        steps["counts"] = Step(counts, "counts", remaining_share)
    if releases == 2:
        gradient = replace(scoring, scorer=Residuals())
        steps["gradient"] = Step(gradient, "gradient", share, is_summed)
    return steps


def _with_count_share(scoring: Scoring, count_share: float) -> Scoring:
    """Return a scoring with secure sums in which ``count_share`` is no longer open."""
    privacy = scoring.privacy
    assert privacy.secure is not None  # noqa: S101 - for mypy
    secure = replace(privacy.secure, count_share=count_share)
    return replace(scoring, privacy=replace(privacy, secure=secure))


def _require(numbers: PublicNumbers | None) -> PublicNumbers:
    """Return the public numbers; raise a ConfigurationError at real sites."""
    if numbers is None:
        raise ConfigurationError(
            "real sites report the numbers of their records only with their releases, so that no "
            "option of the releases can be chosen by these numbers: set scoring.dimensions (of "
            "FedCOF: dimensions) and, with class statistics, scoring.releases (1 or 2)"
        )
    return numbers
