"""FedCOF (Goswami et al. 2024): covariances from the class means of the clients alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedaux_pl.algorithms.class_statistics import fit_classifiers, label_parts
from fedaux_pl.algorithms.client_release import ClientRelease, Evidence, Released
from fedaux_pl.algorithms.one_release import OneRelease
from fedaux_pl.errors import check_setting, is_positive
from fedaux_pl.functional import LinearClassifier, classifier_of_means
from fedaux_pl.functional.class_statistics import known_counts
from fedaux_pl.scoring import ClassSums, Privacy, ReleasedHead, Scoring, Whitened, stack_heads

_TEMPERATURE = 0.1  # of the softmax of cosines


@dataclass(frozen=True, kw_only=True)
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

    shrinkage: float = 1.0
    dimensions: int | None = None
    whitening: float | None = None
    privacy: Privacy = Privacy()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        is_valid = is_positive(self.shrinkage)
        check_setting("shrinkage", self.shrinkage, is_valid, "be a positive number")
        self.release  # noqa: B018 - checks the options of the feature map

    @cached_property
    def release(self) -> ClientRelease:
        """Class sums and class counts of each client."""
        feature_map = Whitened(self.dimensions, self.whitening)
        return ClassMeans(Scoring(ClassSums(), feature_map, privacy=self.privacy), self.shrinkage)

    def settings(self) -> dict[str, Any]:
        """Return the method and its options; those of the feature map stand in the release."""
        settings = super().settings()
        del settings["dimensions"], settings["whitening"]
        return settings


@dataclass(frozen=True)
class ClassMeans(ClientRelease):
    """The class means of every client, whose classifier is the teacher: softmax(<w_c, row> / 0.1).

    Args:
        shrinkage: gamma of the paper.
    """

    shrinkage: float = 1.0

    def evidence(self, released: Released) -> Evidence:
        """Compute the classifier of each architecture, and p(c | x) on each part of the data."""

        def fit(_name: str, heads: Sequence[ReleasedHead]) -> LinearClassifier:
            vectors, sigmas = stack_heads(heads)
            table = vectors.view(len(heads), released.num_classes, -1)
            counts = known_counts(table[..., -1], sigmas)
            sums = table[..., :-1] * (counts > 0)[..., None]
            fitted = classifier_of_means(sums, counts, self.shrinkage)
            return fitted.cooled(_TEMPERATURE)

        classifiers = fit_classifiers(released, fit)
        return Evidence(
            class_probabilities=label_parts(released, classifiers), classifiers=classifiers
        )
