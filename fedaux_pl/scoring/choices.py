"""How options that the user leaves open are chosen by public numbers and by the noise.

The more noise a release has, the fewer numbers it should consist of.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedaux_pl.scoring.privacy import Privacy
from fedaux_pl.scoring.scorers import ClassStatistics, Scorer

_FEWEST_DIMENSIONS = 16
_MOST_DIMENSIONS = 512
_LARGEST_NOISE_OF_TWO_RELEASES = 0.004
"""The most noise with which a second release pays, relative to the mean number of records of a
class."""
_NOISE_OF_COUNTS = 0.05
"""The noise that the class counts of a client should have, relative to its number of records."""
_SMALLEST_COUNT_SHARE = 0.02
_LARGEST_COUNT_SHARE = 0.2
COUNT_SHARE_AT_SITES = 0.1
"""The share of the class counts if the numbers of records are not known. Ledger keys contain it."""


@dataclass(frozen=True)
class PublicNumbers:
    """The numbers that are public about the data of all clients."""

    sizes: Mapping[str, Sequence[int]]  # |D_i| of each client, by architecture
    classes: int  # the number of classes, C

    @property
    def records_per_architecture(self) -> float:
        """The mean number of records that the clients of one architecture hold together."""
        return sum(map(sum, self.sizes.values())) / len(self.sizes)

    @property
    def records_per_client(self) -> float:
        """The mean number of records of a client."""
        num_clients = sum(map(len, self.sizes.values()))
        return self.records_per_architecture * len(self.sizes) / num_clients

    def noise_terms(self, privacy: Privacy) -> int:
        """Return how often the noise of one release is added in the sum over an architecture.

        In a secure sum all clients together add it once. Otherwise each client adds it; the number
        is then the smallest number of clients of an architecture.
        """
        return 1 if privacy.secure else min(map(len, self.sizes.values()))


def choose_dimensions(scorer: Scorer, privacy: Privacy, numbers: PublicNumbers) -> int:
    """Choose the number of dimensions of rows: a power of 2 between 16 and 512.

    With class statistics it is near n / (C m J^(1/4)), for n records of an architecture, C classes
    and J noise terms whose standard deviation is m times the sensitivity. With a vector of each
    client it is near |D_i| / m.
    """
    multiplier = privacy.cost(sensitivity=1.0).sigma  # m
    if multiplier == 0:
        return _MOST_DIMENSIONS
    if isinstance(scorer, ClassStatistics):
        noise = numbers.classes * multiplier * numbers.noise_terms(privacy) ** 0.25
        ratio = numbers.records_per_architecture / noise
    else:
        ratio = numbers.records_per_client / multiplier
    power = 2.0 ** round(math.log2(ratio))
    return int(min(max(power, _FEWEST_DIMENSIONS), _MOST_DIMENSIONS))


def choose_whitening(scorer: Scorer, dimensions: int) -> float:
    """Choose how far the variances of the dimensions are made equal."""
    is_vector_per_client = not isinstance(scorer, ClassStatistics)
    return 0.75 if is_vector_per_client and dimensions >= 64 else 0.5


def choose_releases(privacy: Privacy, numbers: PublicNumbers) -> int:
    """Choose two releases if there is little noise, else one."""
    noise = privacy.cost(sensitivity=1.0).sigma * math.sqrt(numbers.noise_terms(privacy))
    relative_noise = noise * numbers.classes / numbers.records_per_architecture
    return 2 if relative_noise <= _LARGEST_NOISE_OF_TWO_RELEASES else 1


def choose_count_share(privacy: Privacy, numbers: PublicNumbers) -> float:
    """Choose the share of the budget that gives class counts noise of 5 % of a client's records.

    The share lies between 0.02 and 0.2.
    """
    # sqrt(2) is the sensitivity of the counts, and noise falls with the square root of the share
    noise = math.sqrt(2) * privacy.cost(sensitivity=1.0).sigma / numbers.records_per_client
    share = (noise / _NOISE_OF_COUNTS) ** 2
    return min(max(share, _SMALLEST_COUNT_SHARE), _LARGEST_COUNT_SHARE)
