"""FedCOF (Goswami et al. 2024): covariances from the class means of the clients alone."""

from collections.abc import Sequence

from torch import Tensor

from fedaux_pl.algorithms.base import Released
from fedaux_pl.algorithms.class_teacher import fit_classifiers, label_parts
from fedaux_pl.algorithms.one_release import OneRelease
from fedaux_pl.errors import check_setting, is_positive
from fedaux_pl.functional import LinearClassifier, classifier_of_means
from fedaux_pl.functional.class_statistics import known_counts
from fedaux_pl.scoring import ClassSums, Privacy, ReleasedHead, Scoring, Whitened, stack_heads

_TEMPERATURE = 0.1  # of the softmax of cosines


class FedCOF(OneRelease):
    """Distills from a classifier that is made of the clients' class means and class counts.

    Clients send no second moment: how their means of a class differ tells its covariance, see
    ``classifier_of_means``. This needs many clients that hold the class, and the means of each
    client: a secure sum would hide how they differ. FedClassMeans sends the second moment, so that
    its covariance is exact without noise, whoever holds a class.

    Means whose counts are below twice their noise are left out, as in ``known_counts``.

    Args:
        shrinkage: gamma of the paper, which is added to the variances, times the length of a row.
        dimensions: The number of principal components of public features that rows have; null to
            choose it by the noise.
        whitening: How far the variances of the components are made equal, from 0 to 1; null to
            choose it by the dimensions.
        privacy: The privacy of all that a client releases.
    """

    def __init__(
        self,
        *,
        shrinkage: float = 1.0,
        dimensions: int | None = None,
        whitening: float | None = None,
        privacy: Privacy = Privacy(),  # noqa: B008
    ) -> None:
        super().__init__(Scoring(ClassSums(), Whitened(dimensions, whitening), privacy=privacy))
        check_setting("shrinkage", shrinkage, is_positive(shrinkage), "be a positive number")
        self.shrinkage = shrinkage

    def classifiers(self, released: Released) -> dict[str, LinearClassifier]:
        """That of the means, its outputs divided by 0.1."""

        def fit(_name: str, heads: Sequence[ReleasedHead]) -> LinearClassifier:
            vectors, sigmas = stack_heads(heads)
            table = vectors.view(len(heads), released.num_classes, -1)
            counts = known_counts(table[..., -1], sigmas)
            sums = table[..., :-1] * (counts > 0)[..., None]
            fitted = classifier_of_means(sums, counts, self.shrinkage)
            return fitted.cooled(_TEMPERATURE)

        return fit_classifiers(released, fit)

    def label(self, released: Released) -> dict[str, Tensor]:
        """softmax(<w_c, row> / 0.1)."""
        return label_parts(released, self.classifiers(released))
