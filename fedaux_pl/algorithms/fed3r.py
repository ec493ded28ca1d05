"""Fed3R (Fanì et al. 2024): ridge regression on frozen features from the sums of all clients."""

import math
from collections.abc import Sequence

from torch import Tensor

from fedaux_pl.algorithms.base import Released
from fedaux_pl.algorithms.class_teacher import fit_classifiers, label_parts
from fedaux_pl.algorithms.one_release import OneRelease
from fedaux_pl.errors import check_setting, is_positive
from fedaux_pl.functional import LinearClassifier, ridge_classifier, split_statistics
from fedaux_pl.scoring import ClassStatistics, FeatureMap, Privacy, ReleasedHead, Whitened
from fedaux_pl.scoring.release import stack_heads

_STATISTICS = ClassStatistics(releases=1)
_TEMPERATURE = 0.1  # of the softmax of the regression's outputs, which estimate 0 and 1


class Fed3R(OneRelease):
    """Distills from the ridge regression of one-hot labels on the feature rows of all clients.

    W = (X^T X + lambda I)^-1 X^T Y needs two sums over records, which FedClassMeans' release has:
    X^T X is its second moment, and X^T Y are its class sums. So the message, its privacy and secure
    sums are those of FedClassMeans with one release. Without noise the classifier is that of
    central training, however records are split. As in the paper there is no intercept.

    AFL (He et al. 2024) sends the same statistics and is the limit of a small lambda.

    Args:
        regularization: lambda, above 0; it is raised if there is noise, see ``ridge_classifier``.
    """

    def __init__(
        self,
        *,
        regularization: float = 0.01,
        feature_map: FeatureMap = Whitened(),  # noqa: B008
        privacy: Privacy = Privacy(),  # noqa: B008
    ) -> None:
        super().__init__(_STATISTICS, feature_map, privacy)
        is_valid = is_positive(regularization)
        check_setting("regularization", regularization, is_valid, "be a positive number")
        self.regularization = regularization

    def classifiers(self, released: Released) -> dict[str, LinearClassifier]:
        """The regression, its outputs divided by 0.1."""
        rho = _STATISTICS.second_moment

        def fit(_name: str, heads: Sequence[ReleasedHead]) -> LinearClassifier:
            vectors, sigmas = stack_heads(heads)
            sums, _, moment = split_statistics(vectors.sum(dim=0), released.num_classes, rho)
            noise = float(sigmas.norm()) / math.sqrt(rho)
            fitted = ridge_classifier(sums, moment, self.regularization, noise)
            return fitted.cooled(_TEMPERATURE)

        return fit_classifiers(released, fit)

    def label(self, released: Released) -> dict[str, Tensor]:
        """softmax(f / 0.1) of the outputs f of the regression."""
        return label_parts(released, self.classifiers(released))
