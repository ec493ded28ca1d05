"""FedAUX's release: one vector w_i of each client, with which the server scores its certainty."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedaux_pl.algorithms.client_release import ClientRelease, Evidence, Released
from fedaux_pl.scoring import PublicMap


@dataclass(frozen=True)
class CertaintyVectors(ClientRelease):
    """Every client releases one vector w_i; s_i(x) are the calibrated logits <w_i, row(x)>."""

    def evidence(self, released: Released) -> Evidence:
        """Compute s_i(x) of every client on each part of the data."""
        return Evidence(certainty=score_by_vectors(released))


def score_by_vectors(released: Released) -> dict[str, Tensor]:
    """Return s_i(x) of every client on each part of the data, from <w_i, row(x)>, shapes (n, N)."""
    scoring = released.first.scoring
    parts = released.parts
    scores: dict[str, Tensor] = {}
    for part, rows in parts.items():
        example = next(iter(rows.values()))
        # filled row by row: stacking the rows of many clients would take twice the memory
        scores[part] = torch.zeros(len(released.architectures), len(example), device=example.device)
    for name in released.reference:
        shared: PublicMap | None = None  # most clients of an architecture use the same map
        for head in scoring.shrink_heads(released.group(name)):
            if head.public_map is not shared:
                shared = head.public_map
                mapped = {part: shared.rows(rows[name]) for part, rows in parts.items()}
            logits = {part: head.weight.to(rows.device) @ rows.T for part, rows in mapped.items()}
            for part, values in logits.items():
                scores[part][head.client] = scoring.calibration.scores(values, logits["distill"])
    return scores
