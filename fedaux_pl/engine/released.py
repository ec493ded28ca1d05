"""What clients released: as tensors, for caches and checkpoints, and in words, for the log."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedaux_pl.functional import Release, spent
from fedaux_pl.scoring import PublicMap, ReleasedHead, Scoring


def pack(heads: Sequence[ReleasedHead]) -> dict[str, Tensor]:
    """Released heads as tensors; architectures may differ in the dimension of their weights.

    The public map is kept with the weights: fitted again, on another machine, it could differ in
    rounding and turn its directions. Clients of one architecture share its tensors, and so do
    their entries in a file.
    """
    numbers = [[h.public.bound, h.release.sigma, h.release.sensitivity] for h in heads]
    packed = {"numbers": torch.tensor(numbers, dtype=torch.float64)}
    for head in heads:
        packed[f"weight/{head.client}"] = head.weight.cpu()
        for name, tensor in head.public.tensors().items():
            packed[f"{name}/{head.client}"] = tensor
    return packed


def unpack(tensors: Mapping[str, Tensor], scoring: Scoring) -> list[ReleasedHead]:
    """Tensors as released heads, with the settings under which they were released."""
    cost = (math.inf, 0.0, "none")
    if scoring.epsilon is not None:
        cost = (scoring.epsilon, scoring.delta, scoring.mechanism)
    epsilon, delta, mechanism = cost
    flaw, what = scoring.flaw, scoring.scorer.what
    heads = []
    for client, (bound, sigma, sensitivity) in enumerate(tensors["numbers"].tolist()):
        own = {
            name.removesuffix(f"/{client}"): tensor
            for name, tensor in tensors.items()
            if name.endswith(f"/{client}")
        }
        release = Release(epsilon, delta, sigma, sensitivity, mechanism, flaw, what)
        public = PublicMap.restore(own, scoring.norm_bound == "unit", bound)
        heads.append(ReleasedHead(client, own["weight"], public, release))
    return heads


def describe_privacy(heads: Sequence[ReleasedHead], secret_noise: bool) -> list[str]:
    """What was released under which guarantee, and what was not, a sentence each."""
    lines = []
    by_client = defaultdict(list)
    for head in heads:
        by_client[head.client].append(head.release)
    if heads:
        for release in _most_noise(heads):
            lines.append(_describe(release))
            if release.flaw:
                lines.append(f"this guarantee does NOT hold: {release.flaw}")
        most = max(map(len, by_client.values()))
        if most > 1:
            epsilon, delta = max(spent(releases) for releases in by_client.values())
            lines.append(
                f"the {most} releases of a client together cost at most epsilon {epsilon:g} at "
                f"delta {delta:g}"
            )
        if not secret_noise and any(head.release.sigma > 0 for head in heads):
            lines.append(
                "the noise comes from the seed of the run, so that the simulation can be "
                "repeated: it hides nothing from those who know the seed (secret_noise: true)"
            )
    lines.append("the model updates that clients send in every round are NOT private")
    return lines


def _most_noise(heads: Sequence[ReleasedHead]) -> list[Release]:
    """One record for each kind of release: that of the client with the fewest samples."""
    kinds: dict[tuple[str, float, float, str], Release] = {}
    for release in (head.release for head in heads):
        kind = (release.what, release.epsilon, release.delta, release.flaw)
        if kind not in kinds or release.sigma > kinds[kind].sigma:
            kinds[kind] = release
    return list(kinds.values())


def _describe(release: Release) -> str:
    if release.mechanism == "none":
        return f"each client released {release.what} once, WITHOUT noise: not private"
    return (
        f"each client released {release.what} once: epsilon {release.epsilon:g}, delta "
        f"{release.delta:g}, {release.mechanism} Gaussian mechanism, noise of standard deviation "
        f"{release.sigma:.4g} at sensitivity {release.sensitivity:.4g} (with the fewest samples)"
    )
