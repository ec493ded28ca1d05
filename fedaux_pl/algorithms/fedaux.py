"""FedAUX (Sattler et al. 2021): FedDF+P whose teachers are weighted by private certainty scores."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fedaux_pl.algorithms.base import Ensemble, Released
from fedaux_pl.algorithms.class_teacher import (
    class_holders,
    classify_rows,
    label_parts,
    send_classifier,
)
from fedaux_pl.algorithms.feddf import FedDF
from fedaux_pl.errors import check_setting
from fedaux_pl.scoring import (
    ClassStatistics,
    MeanScoring,
    Plan,
    Privacy,
    PublicMap,
    PublicNumbers,
    Scoring,
    ScoringRecipe,
    plan,
)

_LEAST = 1e-6  # of a probability, before its logarithm


class FedAUX(FedDF):
    """Distills the average from the clients' logits weighted by their certainty, A_s (eq. 3).

    Before the first round every client summarizes the features h_0 of its data in one vector, and
    releases it once, with noise that makes the release (epsilon, delta)-private if it is secret.
    The server scores with it. The guarantee does not cover the models sent in every round.

    Args:
        scoring: What a client releases, and how the server scores with it: ``MeanScoring`` (the
            mean of its whitened features), ``PaperScoring`` (the paper's regression that separates
            its data from the public negatives), or ``StatisticsScoring``, of which the server makes
            a classifier p(c | x): teacher i is weighted by p(client i | x), students start from the
            classifier, and it teaches for clients that do not. Or a ``ScoringRecipe`` of your own.
        privacy: The privacy of all that a client releases.
        remember: Whether clients that are absent continue to teach.

    Examples:
        >>> FedAUX().scoring.scorer
        Mean()
    """

    pretrained = True
    scoring: Scoring

    def __init__(
        self,
        *,
        scoring: ScoringRecipe = MeanScoring(),  # noqa: B008
        privacy: Privacy = Privacy(),  # noqa: B008
        remember: bool = True,
    ) -> None:
        super().__init__(pretrained=True, remember=remember)
        is_recipe = isinstance(scoring, ScoringRecipe)
        check_setting("scoring", scoring, is_recipe, "be a ScoringRecipe such as MeanScoring()")
        self.scoring = scoring.create(privacy)
        scorer = self.scoring.scorer
        if scorer.uses_labels and not self.uses_statistics:
            raise ValueError(
                "FedAUX needs a scorer without labels, such as Mean(), or ClassStatistics(), but "
                f"got {scorer!r}"
            )

    @property
    def uses_statistics(self) -> bool:
        """Whether scores are p(client | x), made of class statistics."""
        return isinstance(self.scoring.scorer, ClassStatistics)

    def plan(self, numbers: PublicNumbers | None) -> Plan:
        """Scores; with class statistics, each client's counts are needed, too."""
        return plan(self.scoring, numbers, counts=True)

    def send(self, released: Released, architecture: str) -> Mapping[str, Tensor]:
        """The classifier of the class statistics."""
        return send_classifier(released, architecture)

    def label(self, released: Released) -> dict[str, Tensor]:
        """p(c | x), with class statistics."""
        return label_parts(released, classify_rows(released)) if self.uses_statistics else {}

    def score(self, released: Released, labels: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """s_i(x): p(client i | x) with class statistics, else calibrated <w_i, row(x)>."""
        if not self.uses_statistics:
            return score_by_vectors(released)
        holders = class_holders(released)
        return {name: holders.to(rows) @ rows.T for name, rows in labels.items()}

    def teachers(self, ensemble: Ensemble) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Weigh each teacher by its certainty, A_s = softmax(sum_i s_i f_i / sum_i s_i) (eq. 3).

        With class statistics log p(c | x) speaks for all clients that do not teach.
        """
        scores = ensemble.scores
        assert scores is not None  # noqa: S101 - Algorithm 1 computes them
        for client, logits in ensemble.teachers(self.remember):
            yield logits, scores[client]
        if ensemble.labels is not None:
            others = torch.ones(len(scores), device=scores.device)
            others[[*ensemble.clients, *ensemble.absent_clients]] = 0
            yield ensemble.labels.clamp(min=_LEAST).log(), others @ scores


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
        shared: PublicMap | None = None  # by most heads of the architecture
        for head in scoring.shrink_heads(released.group(name)):
            if head.public_map is not shared:
                shared = head.public_map
                mapped = {part: shared.rows(rows[name]) for part, rows in parts.items()}
            logits = {part: head.weight.to(rows.device) @ rows.T for part, rows in mapped.items()}
            for part, values in logits.items():
                scores[part][head.client] = scoring.calibration.scores(values, logits["distill"])
    return scores
