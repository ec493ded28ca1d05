"""The plan of what clients release: its steps and their budgets, chosen by public numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional import most_records
from fedaux_pl.scoring.feature_maps import FeatureMap, Whitened
from fedaux_pl.scoring.privacy import Privacy
from fedaux_pl.scoring.scorers import ClassCounts, ClassStatistics, Residuals, Scorer
from fedaux_pl.scoring.scoring import Scoring
from fedaux_pl.scoring.step import Step

Plan = Mapping[str, Step]
"""The steps of a method by name, in their order; empty if its clients release nothing."""

_LEAST_DIMENSIONS = 16
_MOST_DIMENSIONS = 512
_SECOND_RELEASE_NOISE = 0.004  # up to which it pays, relative to the mean size of a class
_COUNT_NOISE = 0.05  # of the class counts of a client, relative to the mean size of a client
_LEAST_COUNT_SHARE = 0.02  # of the counts in the budget
_LARGEST_COUNT_SHARE = 0.2
_COUNT_SHARE_AT_SITES = 0.1


@dataclass(frozen=True)
class PublicNumbers:
    """What is public about the data of all clients."""

    sizes: Mapping[str, Sequence[int]]  # |D_i| of the clients of each architecture
    classes: int  # their number

    @property
    def records(self) -> float:
        """The mean number of records that share an architecture."""
        return sum(map(sum, self.sizes.values())) / len(self.sizes)

    @property
    def client_size(self) -> float:
        """The mean number of records of a client."""
        return self.records * len(self.sizes) / sum(map(len, self.sizes.values()))

    def noises(self, privacy: Privacy) -> int:
        """Return how many noises a sum over an architecture has at least: 1 in a secure sum."""
        return 1 if privacy.secure else min(map(len, self.sizes.values()))


def first_step(plan: Plan) -> Step:
    """Return the first step of a plan that is not empty."""
    return next(iter(plan.values()))


def plan(scoring: Scoring, numbers: PublicNumbers | None, counts: bool = False) -> Plan:
    """Return the steps in which clients release, with all that the options leave open chosen.

    ``numbers`` are None if they are not known before the release, as with real sites: then no
    option may be open. ``counts``: whether the server needs the class counts of each client.

    Examples:
        >>> from fedaux_pl import FedClassMeans
        >>> numbers = PublicNumbers({"resnet8": [2500] * 20}, classes=10)
        >>> steps = plan(FedClassMeans().scoring, numbers)
        >>> steps["statistics"].scoring.feature_map
        Whitened(dimensions=64, whitening=0.5)
    """
    scorer = scoring.scorer
    privacy = scoring.privacy
    secure = privacy.secure
    if secure and not isinstance(scorer, ClassStatistics):
        raise ConfigurationError(
            f"privacy.secure is set, but {type(scorer).__name__} needs the vector of each client: "
            "set privacy.secure to null, or scoring to StatisticsScoring"
        )
    if secure and numbers is not None:
        check_records(scorer, max(map(sum, numbers.sizes.values())))
    scoring = replace(scoring, feature_map=_choose_map(scoring, numbers))
    if not isinstance(scorer, ClassStatistics):
        return {"scores": Step(scoring)}
    releases = scorer.releases or choose_releases(privacy, _known(numbers))
    count_share = 0.0
    if secure and counts:
        if numbers is None and secure.count_share is None:
            secure = replace(secure, count_share=_COUNT_SHARE_AT_SITES)
            scoring = replace(scoring, privacy=replace(privacy, secure=secure))
        count_share = secure.count_share or choose_count_share(privacy, _known(numbers))
    share = (1 - count_share) / releases
    scoring = replace(scoring, scorer=replace(scorer, releases=releases))
    summed = secure is not None
    steps = [Step(scoring, "statistics", share, summed)]
    if count_share:
        rest = 1 - releases * share  # count_share but for rounding
        steps.append(Step(replace(scoring, scorer=ClassCounts()), "counts", rest))
    if releases == 2:
        steps.append(Step(replace(scoring, scorer=Residuals()), "gradient", share, summed))
    return {step.name: step for step in steps}


def _choose_map(scoring: Scoring, numbers: PublicNumbers | None) -> FeatureMap:
    feature_map = scoring.feature_map
    if not isinstance(feature_map, Whitened):
        return feature_map
    dimensions = feature_map.dimensions
    if dimensions is None:
        dimensions = choose_dimensions(scoring.scorer, scoring.privacy, _known(numbers))
    whitening = feature_map.whitening
    if whitening is None:
        is_per_client = not isinstance(scoring.scorer, ClassStatistics)
        whitening = 0.75 if is_per_client and dimensions >= 64 else 0.5
    return replace(feature_map, dimensions=dimensions, whitening=whitening)


def check_records(scorer: Scorer, count: int) -> None:
    """Raise a ConfigurationError if a secure sum over this many records could leave 64 bits."""
    if not isinstance(scorer, ClassStatistics):
        return
    most = most_records(scorer.second_moment)
    if count > most:
        raise ConfigurationError(
            f"the clients of a secure sum have {count:,} records together; expected at most "
            f"{most:,}: leave out clients, or set privacy.secure to null"
        )


def _known(numbers: PublicNumbers | None) -> PublicNumbers:
    if numbers is None:
        raise ConfigurationError(
            "real sites tell the numbers of their records with the release, so they cannot plan "
            "it: set scoring.dimensions (of FedCOF: dimensions) and, with class statistics, "
            "scoring.releases (1 or 2)"
        )
    return numbers


def choose_dimensions(scorer: Scorer, privacy: Privacy, numbers: PublicNumbers) -> int:
    """Return the number of dimensions of rows, a power of 2 between 16 and 512.

    It is near n / (C m J^(1/4)) for class statistics of n records and C classes, where J noises of
    m times the sensitivity are added up, and near |D_i| / m for a vector of each client.
    """
    multiplier = privacy.cost(1.0).sigma
    if multiplier == 0:
        return _MOST_DIMENSIONS
    if isinstance(scorer, ClassStatistics):
        noise = numbers.classes * multiplier * numbers.noises(privacy) ** 0.25
        ratio = numbers.records / noise
    else:
        ratio = numbers.client_size / multiplier
    power = 2.0 ** round(math.log2(ratio))
    return int(min(max(power, _LEAST_DIMENSIONS), _MOST_DIMENSIONS))


def choose_releases(privacy: Privacy, numbers: PublicNumbers) -> int:
    """Return 2 if the noise is small enough for a second release to pay."""
    noise = privacy.cost(1.0).sigma * math.sqrt(numbers.noises(privacy))
    relative_noise = noise * numbers.classes / numbers.records
    return 2 if relative_noise <= _SECOND_RELEASE_NOISE else 1


def choose_count_share(privacy: Privacy, numbers: PublicNumbers) -> float:
    """Return the share of the budget with which counts have noise of 5 % of a client's size."""
    noise = math.sqrt(2) * privacy.cost(1.0).sigma / numbers.client_size
    share = (noise / _COUNT_NOISE) ** 2
    return min(max(share, _LEAST_COUNT_SHARE), _LARGEST_COUNT_SHARE)
