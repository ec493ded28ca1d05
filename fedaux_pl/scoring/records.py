"""Released heads as tensors for caches and checkpoints, and as sentences for the log."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedaux_pl.scoring.feature_maps import PublicMap
from fedaux_pl.scoring.ledger import spent
from fedaux_pl.scoring.release import Release, ReleasedHead
from fedaux_pl.scoring.scoring import Scoring


def pack(heads: Sequence[ReleasedHead]) -> dict[str, Tensor]:
    """Converts released heads to tensors; the size of a weight may differ between architectures.

    The public map is stored with the weights: if it were fitted again on another machine, rounding
    could rotate its directions. The clients of one architecture share its tensors, also in a file.
    """
    numbers = [[h.public_map.bound, h.release.sigma, h.release.sensitivity] for h in heads]
    packed = {"numbers": torch.tensor(numbers, dtype=torch.float64)}
    for head in heads:
        packed[f"weight/{head.client}"] = head.weight.cpu()
        for name, tensor in head.public_map.tensors().items():
            packed[f"{name}/{head.client}"] = tensor
    return packed


def unpack(tensors: Mapping[str, Tensor], scoring: Scoring) -> list[ReleasedHead]:
    """Converts tensors to released heads, with the settings under which they were released."""
    heads = []
    for client, (bound, sigma, sensitivity) in enumerate(tensors["numbers"].tolist()):
        own = {
            name.removesuffix(f"/{client}"): tensor
            for name, tensor in tensors.items()
            if name.endswith(f"/{client}")
        }
        weight = own.pop("weight")
        public_map = PublicMap(**own, unit=scoring.norm_bound == "unit", bound=bound)
        release = replace(scoring.record(sensitivity), sigma=sigma)
        heads.append(ReleasedHead(client, weight, public_map, release))
    return heads


def describe_privacy(heads: Sequence[ReleasedHead], secret_noise: bool) -> list[str]:
    """Returns one sentence for each kind of release and its guarantee, and for what has none."""
    lines = []
    by_client = defaultdict(list)
    for head in heads:
        by_client[head.client].append(head.release)
    for release in _most_noise(heads):
        lines.append(_describe(release))
        if release.flaw:
            lines.append(f"this guarantee does NOT hold: {release.flaw}")
    most = max(map(len, by_client.values()), default=0)
    if most > 1:
        epsilon, delta = max(spent(releases) for releases in by_client.values())
        lines.append(
            f"the {most} releases of a client together cost at most epsilon {epsilon:g} at "
            f"delta {delta:g}"
        )
    if not secret_noise and any(head.release.sigma > 0 for head in heads):
        lines.append(
            "the noise comes from the seed of the run, so the simulation can be repeated: it hides "
            "nothing from anyone who knows or guesses the seed, or who sees the releases of two "
            "runs with the same seed (set secret_noise to true in a deployment)"
        )
    lines.append("the model updates that clients send in every round are NOT private")
    return lines


def _most_noise(heads: Sequence[ReleasedHead]) -> list[Release]:
    """One record per kind of release: that of the client with the largest sigma."""
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
        f"{release.sigma:.4g} at sensitivity {release.sensitivity:.4g} (the largest of all clients)"
    )
