"""The plan of what clients release, by public numbers: dimensions, releases, and their budgets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional import most_records
from fedaux_pl.scoring.class_scorers import ClassCounts, ClassStatistics, Residuals
from fedaux_pl.scoring.feature_maps import Whitened
from fedaux_pl.scoring.release import Part, Privacy
from fedaux_pl.scoring.scorers import Scorer
from fedaux_pl.scoring.scoring import Scoring

_LEAST, _LARGEST = 16, 512  # dimensions
_COUNT_NOISE = 0.05  # of the class counts of a client, relative to the mean size of a client
_COUNT_SHARES = 0.02, 0.2  # the least and the largest share of the counts in the budget


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
        """Return how many noises are added up in a sum over the clients of an architecture."""
        return 1 if privacy.sums == "secure" else min(map(len, self.sizes.values()))


def plan(scoring: Scoring, numbers: PublicNumbers | None, counts: bool = False) -> Scoring:
    """Choose what the options of a scoring leave open, and the release's part of the budget.

    ``numbers`` are None if they are not known before the release, as with real sites: then no
    option may be open. ``counts``: whether the server needs the class counts of each client.

    Examples:
        >>> from fedaux_pl import FedClassMeans
        >>> numbers = PublicNumbers({"resnet8": [2500] * 20}, classes=10)
        >>> plan(FedClassMeans().scoring, numbers).feature_map
        Whitened(dimensions=64, whitening=0.5)
    """
    scorer, feature_map, privacy = scoring.scorer, scoring.feature_map, scoring.privacy
    is_secure = privacy.sums == "secure"
    if is_secure and not isinstance(scorer, ClassStatistics):
        raise ConfigurationError(
            f"privacy.sums is secure, but {type(scorer).__name__} needs the vector of each client: "
            "set privacy.sums to local, or scorer to ClassStatistics"
        )
    if is_secure and numbers is not None:
        check_records(scorer, max(map(sum, numbers.sizes.values())))
    if isinstance(feature_map, Whitened) and feature_map.dimensions is None:
        dimensions = choose_dimensions(scorer, privacy, _known(numbers))
        feature_map = replace(feature_map, dimensions=dimensions)
    if isinstance(scorer, ClassStatistics) and scorer.releases is None:
        scorer = replace(scorer, releases=choose_releases(privacy, _known(numbers)))
    if isinstance(feature_map, Whitened) and feature_map.whitening is None:
        # more for a vector of each client in many dimensions
        is_low = isinstance(scorer, ClassStatistics) or (feature_map.dimensions or _LARGEST) < 64
        feature_map = replace(feature_map, whitening=0.5 if is_low else 0.75)
    part = Part()
    if isinstance(scorer, ClassStatistics):
        others, attempts = 0.0, privacy.attempts if is_secure else 1
        if is_secure and counts:
            others = privacy.count_share or count_share(privacy, _known(numbers))
        part = Part((1 - others) / (scorer.releases or 1) / attempts, is_secure)
    return replace(scoring, scorer=scorer, feature_map=feature_map, part=part)


def check_records(scorer: Scorer, count: int) -> None:
    """Raise a ConfigurationError if a secure sum over this many records could leave 64 bits."""
    if not isinstance(scorer, ClassStatistics):
        return
    most = most_records(scorer.second_moment)
    if count > most:
        raise ConfigurationError(
            f"the clients of a secure sum have {count:,} records together; expected at most "
            f"{most:,} with second_moment {scorer.second_moment:g}: raise it ({most_records(1):,} "
            "records with 1), leave out clients, or set privacy.sums to local"
        )


def _known(numbers: PublicNumbers | None) -> PublicNumbers:
    if numbers is None:
        raise ConfigurationError(
            "real sites tell the numbers of their records with the release, so they cannot plan "
            "it: set dimensions of feature_map, releases of the scorer (1 or 2) and, in FedAUX "
            "with secure sums, privacy.count_share (such as 0.1)"
        )
    return numbers


def further(scoring: Scoring, tensors: Mapping[str, Tensor]) -> Scoring:
    """Return a further release of a planned scoring of class statistics.

    ``tensors`` are the classifier of ``Residuals``, which clients get; none for ``ClassCounts``.
    """
    if tensors:
        return replace(scoring, scorer=Residuals(**tensors))
    return replace(scoring, scorer=ClassCounts(), part=Part(_rest(scoring)))


def has_counts(scoring: Scoring) -> bool:
    """Return whether a planned scoring has a part of the budget for class counts."""
    return scoring.part.secure and _rest(scoring) > 1e-9  # rounding


def has_second(scoring: Scoring) -> bool:
    """Return whether a planned scoring has a second release, of ``Residuals``."""
    return isinstance(scoring.scorer, ClassStatistics) and scoring.scorer.releases == 2


def _rest(scoring: Scoring) -> float:
    """The share of the budget that secure sums leave."""
    assert isinstance(scoring.scorer, ClassStatistics)  # noqa: S101 - for mypy
    return 1 - (scoring.scorer.releases or 1) * scoring.privacy.attempts * scoring.part.share


def choose_dimensions(scorer: Scorer, privacy: Privacy, numbers: PublicNumbers) -> int:
    """Return the number of dimensions of rows, a power of 2 between 16 and 512.

    It is near n / (C m J^(1/4)) for class statistics of n records and C classes, where J noises of
    m times the sensitivity are added up, and near |D_i| / m for a vector of each client.
    """
    if (multiplier := privacy.record(1.0).sigma) == 0:
        return _LARGEST
    if isinstance(scorer, ClassStatistics):
        noise = numbers.classes * multiplier * numbers.noises(privacy) ** 0.25
        ratio = numbers.records / noise
    else:
        ratio = numbers.client_size / multiplier
    return int(min(max(2.0 ** round(math.log2(ratio)), _LEAST), _LARGEST))


def choose_releases(privacy: Privacy, numbers: PublicNumbers) -> int:
    """Return 2 if the noise is small enough for a second release to pay."""
    noise = privacy.record(1.0).sigma * math.sqrt(numbers.noises(privacy))
    return 2 if noise * numbers.classes / numbers.records <= 0.004 else 1


def count_share(privacy: Privacy, numbers: PublicNumbers) -> float:
    """Return the share of the budget with which counts have noise of 5 % of a client's size."""
    noise = math.sqrt(2) * privacy.record(1.0).sigma / numbers.client_size
    least, largest = _COUNT_SHARES
    return min(max((noise / _COUNT_NOISE) ** 2, least), largest)
