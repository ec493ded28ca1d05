"""FedClassMeans: private releases of class statistics, no model update."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from fedaux_pl.algorithms.class_statistics import ClassTeacher
from fedaux_pl.algorithms.one_release import OneRelease
from fedaux_pl.errors import check_setting, is_positive
from fedaux_pl.scoring import Privacy, StatisticsScoring


@dataclass(frozen=True, kw_only=True)
class FedClassMeans(OneRelease):
    """Distills from a linear classifier that is made of class statistics of all clients.

    h_0 stays as it is. Every client releases the class sums, class counts and second moment of its
    feature rows as one vector, with noise that makes it (epsilon, delta)-private if it is secret.
    The server makes a classifier of their sum. That vector, a second one in some cases, and the
    number of its records are all that leaves a client.

    Args:
        classifier: What the server makes of the statistics. ``discriminant`` is a linear
            discriminant. If the noise is small enough, clients also release the gradient of that
            classifier, and the server takes one Newton step. ``ridge`` is the ridge regression of
            one-hot labels on rows (Fed3R, Fanì et al. 2024), from the same message and without a
            second one; AFL (He et al. 2024) is its limit for a small ``regularization``.
        regularization: lambda of the ridge regression, above 0; it is raised if there is noise.
        scoring: How features are mapped first, and in how many releases clients send statistics.
        privacy: The privacy of all that a client releases.

    Examples:
        >>> FedClassMeans(classifier="ridge").release.scoring.scorer
        ClassStatistics(second_moment=0.15, releases=1)
    """

    classifier: Literal["discriminant", "ridge"] = "discriminant"
    regularization: float = 0.01
    scoring: StatisticsScoring = StatisticsScoring()  # noqa: RUF009 - frozen
    privacy: Privacy = Privacy()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        is_known = self.classifier in ("discriminant", "ridge")
        check_setting("classifier", self.classifier, is_known, "be 'discriminant' or 'ridge'")
        regularization = self.regularization
        expected = "be a positive number"
        check_setting("regularization", regularization, is_positive(regularization), expected)
        is_recipe = isinstance(self.scoring, StatisticsScoring)
        check_setting("scoring", self.scoring, is_recipe, "be a StatisticsScoring")
        if self.classifier == "ridge":
            releases = self.scoring.releases
            expected = "be 1 or null, because classifier ridge needs no second release"
            check_setting("scoring.releases", releases, releases != 2, expected)

    @cached_property
    def release(self) -> ClassTeacher:
        """Class statistics; the ridge regression needs no second release."""
        recipe = replace(self.scoring, releases=1) if self.classifier == "ridge" else self.scoring
        return ClassTeacher(recipe.create(self.privacy), self.classifier, self.regularization)
