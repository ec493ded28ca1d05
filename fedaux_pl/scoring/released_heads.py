"""Released heads as tensors, and as sentences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedaux_pl.functional import gaussian_epsilon
from fedaux_pl.scoring.costs import Release
from fedaux_pl.scoring.noise import round_to_grid
from fedaux_pl.scoring.privacy import Privacy
from fedaux_pl.scoring.public_map import PublicMap
from fedaux_pl.scoring.released_head import ReleasedHead
from fedaux_pl.scoring.scoring import Scoring
from fedaux_pl.scoring.step import Step

_NOT_ROUNDED = (
    "version 0.6.0 or an earlier one did not round it, and its last bits tell what the noise was "
    "added to"
)


def pack(heads: Sequence[ReleasedHead]) -> dict[str, Tensor]:
    """Convert released heads to tensors; the size of a weight may differ between architectures.

    The public map is stored with the weights: if it were fitted again on another machine, rounding
    could rotate its directions. The clients of one architecture share its tensors, also in a file.
    """
    numbers = [
        [h.public_map.bound, h.release.sigma, h.release.sensitivity, h.release.simulated]
        for h in heads
    ]
    packed = {"numbers": torch.tensor(numbers, dtype=torch.float64)}
    clients = [head.client for head in heads]
    if clients != list(range(len(heads))):  # some sites have released nothing yet
        packed["clients"] = torch.tensor(clients)
    for head in heads:
        packed[f"weight/{head.client}"] = head.weight.cpu()
        if head.members:
            packed[f"members/{head.client}"] = torch.tensor(head.members)
        for name, tensor in head.public_map.tensors().items():
            packed[f"{name}/{head.client}"] = tensor
    return packed


def unpack(tensors: Mapping[str, Tensor], step: Step) -> list[ReleasedHead]:
    """Convert tensors to released heads, with the step in which they were released."""
    heads = []
    unit = step.scoring.norm_bound == "unit"
    maps: dict[tuple[float, int, int], PublicMap] = {}  # most clients share one
    numbers = tensors["numbers"].tolist()
    clients = tensors["clients"].tolist() if "clients" in tensors else range(len(numbers))
    for client, (bound, sigma, sensitivity, simulated) in zip(clients, numbers, strict=True):
        weight = tensors[f"weight/{client}"]
        center = tensors.get(f"center/{client}")
        directions = tensors.get(f"directions/{client}")
        map_key = (bound, id(center), id(directions))
        if map_key not in maps:
            maps[map_key] = PublicMap(center, directions, unit, bound)
        members = tuple(map(int, tensors.get(f"members/{client}", ())))
        cost = step.cost(sensitivity, bool(simulated), summands=len(members) or 1)
        release = replace(cost, sigma=sigma)
        is_rounded = bool(members) or torch.equal(round_to_grid(weight, sigma), weight)
        if release.is_private and not is_rounded:
            release = replace(release, flaw=_NOT_ROUNDED)
        heads.append(ReleasedHead(client, weight, maps[map_key], release, members))
    return heads


def describe_privacy(heads: Sequence[ReleasedHead], privacy: Privacy | None = None) -> list[str]:
    """Return one sentence for each kind of release, and one for all kinds together.

    ``privacy`` is that of all kinds together.
    """
    releases = most_noise(heads)
    lines = [_describe(release) for release in releases]
    is_flawed = any(release.flaw or release.mechanism == "none" for release in releases)
    if len({release.what for release in releases}) > 1 and privacy is not None and not is_flawed:
        simulated = any(release.simulated for release in releases)
        noise = "with secret noise, " if simulated else ""
        would = "would " if simulated else ""
        lines.append(
            f"{noise}the releases of each client {would}together cost (epsilon "
            f"{privacy.epsilon:g}, delta {privacy.delta:g}){conditions_of(privacy)}, by exact "
            "composition"
        )
    return lines


def describe_all(heads: Sequence[ReleasedHead], scoring: Scoring, besides: str = "") -> list[str]:
    """Return the sentences about clients that send releases, no model, and what is ``besides``."""
    kinds = list(dict.fromkeys(head.release.what for head in heads)) or [scoring.scorer.what]
    sent = f"one release of {' and one of '.join(kinds)}{_describe_total(heads, scoring)}"
    rest = f"; {besides}" if besides else ""
    return [
        *describe_privacy(heads, scoring.privacy),
        f"all that leaves a client: {sent}; and the number of its records, which counts as public"
        f"{rest}. No model update and no loss is sent",
    ]


def _describe_total(heads: Sequence[ReleasedHead], scoring: Scoring) -> str:
    privacy = scoring.privacy
    if privacy.epsilon is None or any(head.release.flaw for head in heads):
        return ", WITHOUT any guarantee"
    simulated = any(head.release.simulated for head in heads)
    is_private = "with secret noise would be" if simulated else "is"
    text = f", which {is_private} (epsilon {privacy.epsilon:g}, delta {privacy.delta:g})-private"
    text += conditions_of(privacy)
    shares = scoring.scorer.shares
    if not shares:
        return text
    sigma = privacy.cost(1.0).sigma
    delta = privacy.delta / len(shares)
    epsilons = [gaussian_epsilon(delta, sigma / math.sqrt(share)) for share in shares.values()]
    listed = " + ".join(
        f"{epsilon:.3g} for {name}" for name, epsilon in zip(shares, epsilons, strict=True)
    )
    return (
        f"{text} in total, by exact composition (adding up its parts would state epsilon {listed} "
        f"= {sum(epsilons):.3g} at the same delta)"
    )


def conditions_of(privacy: Privacy) -> str:
    """Return the words that follow the guarantee of a secure sum."""
    return " under the conditions of the sum" if privacy.secure else ""


def most_noise(heads: Sequence[ReleasedHead]) -> list[Release]:
    """Return one release of each kind: that of the client with the largest sigma."""
    kinds: dict[Release, Release] = {}
    for release in (head.release for head in heads):
        kind = replace(release, sigma=0.0, sensitivity=0.0)
        if kind not in kinds or release.sigma > kinds[kind].sigma:
            kinds[kind] = release
    return list(kinds.values())


def _describe(release: Release) -> str:
    is_sum = release.summands > 1
    subject = f"each client's release ({release.what})"
    if is_sum:
        subject = f"the sum over {release.summands} clients of {release.what}"
    if release.mechanism == "none":
        return f"NOT private: {subject} has NO noise"
    guarantee = f"(epsilon {release.epsilon:g}, delta {release.delta:g})-private"
    if release.flaw:
        return f"NOT private: {subject} claims to be {guarantee}, but is not: {release.flaw}"
    text = f"{subject} is {guarantee}"
    if release.simulated:
        text = f"with secret noise, {subject} would be {guarantee}"
    if is_sum:
        text += (
            f" if at least {release.summands - release.colluders} of them add their noise and show "
            "the server neither it nor their masks, and (epsilon "
            f"{release.epsilon_alone:.4g}, delta {release.delta:g})-private whatever the others do"
        )
    text += (
        f": {release.mechanism} Gaussian mechanism, noise of standard deviation {release.sigma:.4g}"
        f" at sensitivity {release.sensitivity:.4g} (the largest of all clients)"
    )
    if release.simulated:
        secret = "" if is_sum else ": run real sites in a deployment (docs/sites.md)"
        origin = "Here the noise comes from the seed of the run and protects nothing"
        return f"simulated: {text}. {origin}{secret}"
    if not is_sum:
        return text
    return (
        f"{text}; also against a server that breaks the protocol: the keys of all clients are "
        "pinned"
    )
