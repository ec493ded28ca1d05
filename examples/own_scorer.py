"""Your own scorer: what a client releases about its data, with the proof of its sensitivity.

python examples/own_scorer.py

From the command line, in this folder:
fedaux-pl fit --config quickstart --model.algorithm.scoring own_scorer.SignScoring
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedaux_pl import Privacy, Scorer, ScoringRecipe
from fedaux_pl.scoring import Scoring, Standardized, Step, Whitened


@dataclass(frozen=True)
class MeanSign(Scorer):
    """Releases the mean of sign(row) / sqrt(k): every direction counts the same.

    Sensitivity: 2 / n for n = |D_i|. Proof: sign(row) has k entries of at most 1 in absolute value,
    so |sign(row)| / sqrt(k) <= 1. Replacing one row moves the mean by the difference of two such
    vectors over n, whose norm is at most 2 / n.
    """

    what = "the mean of the signs of its feature rows"

    def vector(
        self, rows: Tensor, labels: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute the vector before noise, shape (k,)."""
        return rows.sign().mean(dim=0) / rows.shape[1] ** 0.5

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """2 / |D_i|."""
        return 2 / num_positives


@dataclass(frozen=True)
class SignScoring(ScoringRecipe):
    """Scores by MeanSign of whitened features; its fields are the options on the command line."""

    dimensions: int | None = None  # chosen by the noise
    sharpness: float = 3.0

    def create(self, privacy: Privacy) -> Scoring:
        """Create the scoring."""
        feature_map = Whitened(self.dimensions)
        return Scoring(MeanSign(), feature_map, Standardized(self.sharpness), privacy=privacy)


def main() -> Tensor:
    """Scores public samples for two clients whose data differ; returns scores of shape (2, N)."""
    torch.manual_seed(0)
    direction = torch.randn(16)
    public = torch.randn(1000, 16)  # features h_0(x) of D_aux
    clients = [torch.randn(500, 16) + direction, torch.randn(500, 16) - direction]

    scoring = SignScoring().create(Privacy(epsilon=1.0))
    public_map = scoring.fit_map(public, negatives=public)
    heads = [
        Step(scoring).release(client, features, public[:0], public_map, noise_seed=None)
        for client, features in enumerate(clients)
    ]
    logits = [head.logits(public) for head in heads]
    scores = torch.stack([scoring.calibration.scores(one, reference=one) for one in logits])
    correct = (scores[0] > scores[1]) == (public @ direction > 0)
    print(f"accuracy: the right client has the larger weight on {correct.float().mean():.1%}")
    return scores


if __name__ == "__main__":
    scores = main()
    print(f"weight of client 0 on the first public samples: {(scores[0] / scores.sum(0))[:5]}")
