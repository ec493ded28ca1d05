"""FedAUX (Sattler et al. 2021): FedDF+P whose teachers are weighted by private certainty scores."""

from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from fedaux_pl.algorithms.certainty_vectors import CertaintyVectors
from fedaux_pl.algorithms.class_statistics import CertaintyOfClasses
from fedaux_pl.algorithms.client_release import ClientRelease
from fedaux_pl.algorithms.feddf import FedDF
from fedaux_pl.algorithms.teachers import Teacher
from fedaux_pl.errors import check_setting
from fedaux_pl.scoring import ClassStatistics, MeanScoring, Privacy, ScoringRecipe


@dataclass(frozen=True, kw_only=True)
class FedAUX(FedDF):
    """Distills the average from the clients' logits weighted by their certainty, A_s (eq. 3).

    The defaults differ from the paper, whose method is
    ``FedAUX(scoring=PaperScoring(variant="literal"), privacy=Privacy(mechanism="classical"),
    remember=False)``; ``literal`` follows its text, which is not private.

    Before the first round every client summarizes the features h_0 of its data in one vector, and
    releases it once, with noise. If the noise is secret, the release is (epsilon, delta)-private.
    The server computes the certainty scores from it. The guarantee does not cover the models that
    clients send in every round.

    Args:
        scoring: What a client releases, and how the server scores with it. ``MeanScoring``: the
            mean of its whitened features. ``PaperScoring``: the paper's logistic regression, which
            separates its data from the public negatives. ``StatisticsScoring``: class statistics,
            from which the server builds a classifier p(c | x). Then teacher i is weighted by
            p(client i | x), the classifier initializes the students, and it stands in for clients
            that do not teach. A ``ScoringRecipe`` of your own is allowed as well.
        privacy: The privacy of all that a client releases.
        remember: Whether absent clients continue to teach with their last logits.

    Examples:
        >>> FedAUX().release.scoring.scorer
        Mean()
    """

    scoring: ScoringRecipe = MeanScoring()  # noqa: RUF009 - frozen
    privacy: Privacy = Privacy()  # noqa: RUF009 - frozen
    remember: bool = True
    pretrained: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        is_recipe = isinstance(self.scoring, ScoringRecipe)
        expected = "be a ScoringRecipe such as MeanScoring()"
        check_setting("scoring", self.scoring, is_recipe, expected)
        scorer = self.release.scoring.scorer
        if scorer.uses_labels and not isinstance(scorer, ClassStatistics):
            raise ValueError(
                "FedAUX needs a scorer without labels, such as Mean(), or ClassStatistics(), but "
                f"got {scorer!r}"
            )

    @cached_property
    def release(self) -> ClientRelease:
        """One vector of each client, or its class statistics."""
        scoring = self.scoring.create(self.privacy)
        if isinstance(scoring.scorer, ClassStatistics):
            return CertaintyOfClasses(scoring)
        return CertaintyVectors(scoring)

    def weight(self, teacher: Teacher) -> Tensor:
        """A_s: a teacher counts by its certainty s_i(x)."""
        assert teacher.certainty is not None  # noqa: S101 - Algorithm 1 computes it
        return teacher.certainty
