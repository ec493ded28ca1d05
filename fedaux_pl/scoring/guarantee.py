"""What leaves a client, its guarantee and its cost: the rows of the table that a run prints."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedaux_pl.scoring.costs import Release
from fedaux_pl.scoring.feature_maps import FeatureMap
from fedaux_pl.scoring.privacy import Privacy
from fedaux_pl.scoring.released_head import ReleasedHead
from fedaux_pl.scoring.released_heads import most_noise
from fedaux_pl.scoring.scoring import Scoring

NOT_PRIVATE = "NOT private"
SIMULATED = f"{NOT_PRIVATE} (simulated noise)"
UNLIMITED = "unlimited"
UPDATES_IN_THE_CLEAR = (
    "model updates have no privacy guarantee; if everything that leaves a client must be private, "
    "use FedClassMeans"
)
"""Every run says so whose clients send models."""
COSTS_AGAIN = "every run costs "
"""How the line of ``describe_again`` begins."""


@dataclass(frozen=True)
class Guarantee:
    """What one kind of message reveals about the client that sends it.

    Attributes:
        sent: When it is sent, and what it is.
        guarantee: Whether it is private.
        cost: (epsilon, delta), and on which condition.
    """

    sent: str
    guarantee: str = NOT_PRIVATE
    cost: str = UNLIMITED


def tabulate_releases(
    heads: Sequence[ReleasedHead],
    scoring: Scoring,
    feature_map: FeatureMap,
) -> list[Guarantee]:
    """Return a row for each kind of release, and one for all kinds together.

    ``feature_map`` is that of the plan, in which no option is open.
    """
    privacy = scoring.privacy
    if not heads:
        return [Guarantee(f"once: {scoring.scorer.what}", "nothing is released yet", "none so far")]
    releases = most_noise(heads)
    rows = []
    for release in releases:
        sent = describe_sent(release.what, feature_map, heads)
        rows.append(_tabulate(release, sent))
    is_flawed = any(release.flaw or release.mechanism == "none" for release in releases)
    if len(releases) > 1 and not is_flawed:
        rows.append(_tabulate_all(releases, privacy))
    return rows


def describe_again(privacy: Privacy) -> str:
    """Return the line of a run with secret noise whose clients run in one process."""
    return (
        f"{COSTS_AGAIN}(epsilon {privacy.epsilon:g}, delta {privacy.delta:g}) again, and nothing "
        "adds runs up: real sites do (docs/sites.md)"
    )


def describe_sent(what: str, feature_map: FeatureMap, heads: Sequence[ReleasedHead]) -> str:
    """Say what a client releases, with the kind and the dimensions of its features."""
    mapped = what.replace("feature rows", f"{feature_map.adjective} features".strip())
    if mapped == what:
        return what
    directions = (head.public_map.directions for head in heads)
    dimensions = sorted({each.shape[1] for each in directions if each is not None})
    if not dimensions:
        return mapped
    return f"{mapped} ({' or '.join(map(str, dimensions))} dimensions)"


def _tabulate(release: Release, sent: str) -> Guarantee:
    """Return the row of one kind of release."""
    if release.summands > 1:
        sent += f", in a sum over {release.summands} clients"
    sent = f"once: {sent}"
    if release.mechanism == "none":
        return Guarantee(sent, f"{NOT_PRIVATE} (no noise)")
    if release.flaw:
        return Guarantee(sent, f"{NOT_PRIVATE}: {release.flaw}")
    cost = f"({release.epsilon:g}, {release.delta:g})"
    if release.summands > 1:
        honest = release.summands - release.colluders
        cost += f" if {honest} of {release.summands} clients are honest"
        cost += f", ({release.epsilon_alone:.4g}, {release.delta:g}) in any case"
    return _guarantee(sent, cost, release)


def _tabulate_all(releases: Sequence[Release], privacy: Privacy) -> Guarantee:
    """Return the row of all releases of a client together."""
    cost = f"({privacy.epsilon:g}, {privacy.delta:g})"
    summed = max(releases, key=lambda release: release.summands)
    if summed.summands > 1:
        cost += f" if {summed.summands - summed.colluders} of {summed.summands} clients are honest"
    return _guarantee("all releases of a client together", cost, summed)


def _guarantee(sent: str, cost: str, release: Release) -> Guarantee:
    """Return a row whose cost holds if its noise is secret."""
    if release.simulated:
        return Guarantee(sent, SIMULATED, f"with secret noise {cost}")
    return Guarantee(sent, "private", cost)
