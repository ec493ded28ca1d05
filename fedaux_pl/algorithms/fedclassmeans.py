"""FedClassMeans: private releases of class statistics, no model update."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from torch import Tensor

from fedaux_pl.algorithms.base import Released
from fedaux_pl.algorithms.class_teacher import (
    classify_rows,
    label_parts,
    regress_rows,
    send_classifier,
)
from fedaux_pl.algorithms.one_release import OneRelease
from fedaux_pl.errors import check_setting, is_positive
from fedaux_pl.functional import LinearClassifier
from fedaux_pl.scoring import Privacy, StatisticsScoring


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
        >>> FedClassMeans(classifier="ridge").scoring.scorer
        ClassStatistics(second_moment=0.15, releases=1)
    """

    def __init__(
        self,
        *,
        classifier: Literal["discriminant", "ridge"] = "discriminant",
        regularization: float = 0.01,
        scoring: StatisticsScoring = StatisticsScoring(),  # noqa: B008
        privacy: Privacy = Privacy(),  # noqa: B008
    ) -> None:
        is_known = classifier in ("discriminant", "ridge")
        check_setting("classifier", classifier, is_known, "be 'discriminant' or 'ridge'")
        is_valid = is_positive(regularization)
        check_setting("regularization", regularization, is_valid, "be a positive number")
        is_recipe = isinstance(scoring, StatisticsScoring)
        check_setting("scoring", scoring, is_recipe, "be a StatisticsScoring")
        if classifier == "ridge":
            releases = scoring.releases
            expected = "be 1 or null, because classifier ridge needs no second release"
            check_setting("scoring.releases", releases, releases != 2, expected)
            scoring = replace(scoring, releases=1)
        super().__init__(scoring.create(privacy))
        self.classifier = classifier
        self.regularization = regularization

    def send(self, released: Released, architecture: str) -> Mapping[str, Tensor]:
        """The discriminant, whose gradient clients then release."""
        return send_classifier(released, architecture)

    def classifiers(self, released: Released) -> dict[str, LinearClassifier]:
        """The ridge regression; or the discriminant, or one Newton step from it."""
        if self.classifier == "ridge":
            return regress_rows(released, self.regularization)
        return classify_rows(released)

    def label(self, released: Released) -> dict[str, Tensor]:
        """p(c | x) of the classifier."""
        return label_parts(released, self.classifiers(released))
