"""The sentences in which a run states how private its releases are."""

import math
from collections.abc import Sequence

from fedaux_pl.functional import gaussian_epsilon
from fedaux_pl.scoring.costs import Release, noisiest_of_each_kind
from fedaux_pl.scoring.privacy import Privacy
from fedaux_pl.scoring.released_head import ReleasedHead
from fedaux_pl.scoring.scoring import Scoring


def describe_privacy(heads: Sequence[ReleasedHead], privacy: Privacy | None = None) -> list[str]:
    """Return one sentence for each kind of release, and one for all kinds together.

    ``privacy`` is the privacy of all kinds together; without it, the last sentence is left out.
    """
    releases = noisiest_of_each_kind([head.release for head in heads])
    sentences = [_describe_release(release) for release in releases]
    is_flawed = any(release.flaw or release.mechanism == "none" for release in releases)
    num_kinds = len({release.what for release in releases})
    if num_kinds > 1 and privacy is not None and not is_flawed:
        is_simulated = any(release.simulated for release in releases)
        sentences.append(_describe_composition(privacy, is_simulated))
    return sentences


def describe_all(heads: Sequence[ReleasedHead], scoring: Scoring, besides: str = "") -> list[str]:
    """Return the sentences of a method whose clients send releases and no model.

    ``besides`` names what clients send in addition.
    """
    kinds = list(dict.fromkeys(head.release.what for head in heads)) or [scoring.scorer.what]
    sent = f"one release of {' and one of '.join(kinds)}{_describe_total(heads, scoring)}"
    addition = f"; {besides}" if besides else ""
    return [
        *describe_privacy(heads, scoring.privacy),
        f"all that leaves a client: {sent}; and the number of its records, which counts as public"
        f"{addition}. No model update and no loss is sent",
    ]


def _describe_release(release: Release) -> str:
    """Return the sentence about one kind of release."""
    is_sum = release.summands > 1
    subject = f"each client's release ({release.what})"
    if is_sum:
        subject = f"the sum over {release.summands} clients of {release.what}"
    if release.mechanism == "none":
        return f"NOT private: {subject} has NO noise"
    guarantee = f"(epsilon {release.epsilon:g}, delta {release.delta:g})-private"
    if release.flaw:
        return f"NOT private: {subject} claims to be {guarantee}, but is not: {release.flaw}"
    sentence = f"{subject} is {guarantee}"
    if release.simulated:
        sentence = f"with secret noise, {subject} would be {guarantee}"
    if is_sum:
        sentence += (
            f" if at least {release.summands - release.colluders} of them add their noise and "
            "reveal neither the noise nor their masks to the server, and (epsilon "
            f"{release.epsilon_alone:.4g}, delta {release.delta:g})-private whatever the other "
            "clients do"
        )
    sentence += (
        f": {release.mechanism} Gaussian mechanism, noise of standard deviation {release.sigma:.4g}"
        f" at sensitivity {release.sensitivity:.4g} (the largest of all clients)"
    )
    if release.simulated:
        remedy = "" if is_sum else ": run real sites in a deployment (docs/sites.md)"
        origin = "Here the noise comes from the seed of the run and protects nothing"
        return f"simulated: {sentence}. {origin}{remedy}"
    if is_sum:
        sentence += (
            "; this holds also against a server that breaks the protocol, because the keys of all "
            "clients are pinned"
        )
    return sentence


def _describe_composition(privacy: Privacy, is_simulated: bool) -> str:
    """Return the sentence about all kinds of releases together."""
    noise = "with secret noise, " if is_simulated else ""
    would = "would " if is_simulated else ""
    return (
        f"{noise}the releases of each client {would}together cost (epsilon {privacy.epsilon:g}, "
        f"delta {privacy.delta:g}){_conditions_of(privacy)}, by exact composition"
    )


def _describe_total(heads: Sequence[ReleasedHead], scoring: Scoring) -> str:
    """Return the words about the guarantee of everything that a client releases."""
    privacy = scoring.privacy
    if privacy.epsilon is None or any(head.release.flaw for head in heads):
        return ", WITHOUT any guarantee"
    is_simulated = any(head.release.simulated for head in heads)
    verb = "with secret noise would be" if is_simulated else "is"
    total = f", which {verb} (epsilon {privacy.epsilon:g}, delta {privacy.delta:g})-private"
    total += _conditions_of(privacy)
    shares = scoring.scorer.shares
    if not shares:
        return total
    # Basic composition of the parts, with equal deltas, as the FedAUXfdp paper states it.
    sigma = privacy.cost(sensitivity=1.0).sigma
    delta = privacy.delta / len(shares)
    epsilons = {
        name: gaussian_epsilon(delta, sigma / math.sqrt(share)) for name, share in shares.items()
    }
    summands = " + ".join(f"{epsilon:.3g} for {name}" for name, epsilon in epsilons.items())
    return (
        f"{total} in total, by exact composition (adding up its parts would state epsilon "
        f"{summands} = {sum(epsilons.values()):.3g} at the same delta)"
    )


def _conditions_of(privacy: Privacy) -> str:
    """Return the words that follow a guarantee which rests on a secure sum."""
    return " under the conditions of the sum" if privacy.secure else ""
