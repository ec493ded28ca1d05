"""FedClassMeans: private releases of class statistics, no model update."""

from collections.abc import Mapping

from torch import Tensor

from fedaux_pl.algorithms.base import Released
from fedaux_pl.algorithms.class_teacher import classify_rows, label_parts, send_classifier
from fedaux_pl.algorithms.one_release import OneRelease
from fedaux_pl.functional import LinearClassifier
from fedaux_pl.scoring import ClassStatistics, FeatureMap, Privacy, Whitened


class FedClassMeans(OneRelease):
    """Distills from a linear classifier that is made of class statistics of all clients.

    h_0 stays as it is. Every client releases the class sums, class counts and second moment of its
    feature rows as one vector, with noise that makes it (epsilon, delta)-private if it is secret.
    The server pools them to a linear discriminant. If the noise is small enough, clients release
    the gradient of that classifier, too, and the server takes one Newton step. That and the number
    of its records are all that leaves a client.
    """

    def __init__(
        self,
        *,
        scorer: ClassStatistics = ClassStatistics(),  # noqa: B008
        feature_map: FeatureMap = Whitened(),  # noqa: B008
        privacy: Privacy = Privacy(),  # noqa: B008
    ) -> None:
        super().__init__(scorer, feature_map, privacy)

    def send(self, released: Released, architecture: str) -> Mapping[str, Tensor]:
        """The classifier of the class statistics."""
        return send_classifier(released, architecture)

    def classifiers(self, released: Released) -> dict[str, LinearClassifier]:
        """The discriminant, or one Newton step from it."""
        return classify_rows(released)

    def label(self, released: Released) -> dict[str, Tensor]:
        """p(c | x) of the classifier."""
        return label_parts(released, self.classifiers(released))
