"""The table of guarantees that a run prints: what leaves a client, and what it costs."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedaux_pl.scoring.costs import Release, noisiest_of_each_kind
from fedaux_pl.scoring.feature_maps import FeatureMap
from fedaux_pl.scoring.privacy import Privacy
from fedaux_pl.scoring.released_head import ReleasedHead
from fedaux_pl.scoring.scoring import Scoring

NOT_PRIVATE = "NOT private"
SIMULATED = f"{NOT_PRIVATE} (simulated noise)"
UNLIMITED = "unlimited"
UPDATES_IN_THE_CLEAR = (
    "model updates have no privacy guarantee; if everything that leaves a client must be private, "
    "use FedClassMeans"
)
"""The sentence of every run whose clients send models."""
COSTS_AGAIN = "every run costs "
"""The beginning of the sentence of ``describe_again``."""


@dataclass(frozen=True)
class Guarantee:
    """What one kind of message reveals about the client that sends it: a row of the table.

    Attributes:
        sent: When the client sends the message, and what it contains.
        guarantee: Whether the message is private.
        cost: Its (epsilon, delta), and the condition under which they hold.
    """

    sent: str
    guarantee: str = NOT_PRIVATE
    cost: str = UNLIMITED


def tabulate_releases(
    heads: Sequence[ReleasedHead],
    scoring: Scoring,
    feature_map: FeatureMap,
) -> list[Guarantee]:
    """Return a row for each kind of release, and a row for all kinds together.

    ``feature_map`` is the map of the plan, in which no option is open.
    """
    if not heads:
        return [Guarantee(f"once: {scoring.scorer.what}", "nothing is released yet", "none so far")]
    releases = noisiest_of_each_kind([head.release for head in heads])
    rows = []
    for release in releases:
        sent = describe_sent(release.what, feature_map, heads)
        rows.append(_tabulate_release(release, sent))
    is_flawed = any(release.flaw or release.mechanism == "none" for release in releases)
    if len(releases) > 1 and not is_flawed:
        rows.append(_tabulate_total(releases, scoring.privacy))
    return rows


def describe_again(privacy: Privacy) -> str:
    """Return the sentence of a run with secret noise whose clients run in one process."""
    return (
        f"{COSTS_AGAIN}(epsilon {privacy.epsilon:g}, delta {privacy.delta:g}) again, and nothing "
        "adds runs up: real sites do (docs/sites.md)"
    )


def describe_sent(what: str, feature_map: FeatureMap, heads: Sequence[ReleasedHead]) -> str:
    """Describe a release, with the kind and the number of dimensions of its features.

    Examples:
        >>> from fedaux_pl.scoring import Whitened
        >>> describe_sent("the mean of its feature rows", Whitened(), heads=[])
        'the mean of its whitened features'
    """
    sent = what.replace("feature rows", f"{feature_map.adjective} features".strip())
    if sent == what:
        return what
    directions = (head.public_map.directions for head in heads)
    dimensions = sorted({each.shape[1] for each in directions if each is not None})
    if not dimensions:
        return sent
    return f"{sent} ({' or '.join(map(str, dimensions))} dimensions)"


def _tabulate_release(release: Release, sent: str) -> Guarantee:
    """Return the row of one kind of release."""
    if release.summands > 1:
        sent += f", in a sum over {release.summands} clients"
    sent = f"once: {sent}"
    if release.mechanism == "none":
        return Guarantee(sent, f"{NOT_PRIVATE} (no noise)")
    if release.flaw:
        return Guarantee(sent, f"{NOT_PRIVATE}: {release.flaw}")
    cost = f"({release.epsilon:g}, {release.delta:g}){_condition(release)}"
    if release.summands > 1:
        cost += f", ({release.epsilon_alone:.4g}, {release.delta:g}) in any case"
    return _with_secret_noise(sent, cost, release)


def _tabulate_total(releases: Sequence[Release], privacy: Privacy) -> Guarantee:
    """Return the row of all releases of a client together."""
    largest_sum = max(releases, key=lambda release: release.summands)
    cost = f"({privacy.epsilon:g}, {privacy.delta:g}){_condition(largest_sum)}"
    return _with_secret_noise("all releases of a client together", cost, largest_sum)


def _condition(release: Release) -> str:
    """Return the condition under which the cost of a secure sum holds; empty without a sum."""
    if release.summands == 1:
        return ""
    honest = release.summands - release.colluders
    return f" if {honest} of {release.summands} clients are honest"


def _with_secret_noise(sent: str, cost: str, release: Release) -> Guarantee:
    """Return a row whose cost holds only if the noise of the release is secret."""
    if release.simulated:
        return Guarantee(sent, SIMULATED, f"with secret noise {cost}")
    return Guarantee(sent, "private", cost)
