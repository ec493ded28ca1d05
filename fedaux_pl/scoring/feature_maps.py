"""Feature maps: how the server fits a ``PublicMap`` to the features h_0(x) of public data."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedaux_pl.errors import check_setting
from fedaux_pl.scoring.public_map import PublicMap

_NEGLIGIBLE_VARIANCE = 1e-9
"""A direction with less than this fraction of the largest variance is a rounding error."""
_ROWS_AT_ONCE = 8192
"""How many rows are multiplied at once, which limits the memory of a covariance."""


class FeatureMap(ABC):
    """How the server fits a public map.

    The features are those of the auxiliary data D_aux, which consist of the negatives D^- and the
    distillation data D_distill.
    """

    uses_auxiliary: ClassVar[bool] = True
    """Whether ``fit`` uses the features. If not, releases do not depend on D_aux."""
    adjective: ClassVar[str] = "mapped"
    """What the log calls the features after the map, as in "the mean of its ... features"."""

    @abstractmethod
    def fit(self, features: Tensor) -> PublicMap:
        """Fit the map to public features, shape (N, d). ``Scoring`` then sets its norm bound."""


@dataclass(frozen=True)
class Identity(FeatureMap):
    """Uses the features as h_0 returns them, as in the paper."""

    uses_auxiliary = False
    adjective = ""

    def fit(self, features: Tensor) -> PublicMap:
        """Return the identity."""
        return PublicMap()


@dataclass(frozen=True)
class Centered(FeatureMap):
    """Subtracts the mean of the public features."""

    adjective = "centered"

    def fit(self, features: Tensor) -> PublicMap:
        """Compute the mean of the public features."""
        return PublicMap(center=_to_finite_double(features).mean(dim=0).cpu())


@dataclass(frozen=True)
class Whitened(FeatureMap):
    """Projects features onto the first principal components of the public features.

    The components are scaled so that their variances become equal, or more equal than before.

    Attributes:
        dimensions: The number of components. There are fewer if the public features vary in fewer
            directions. null chooses the number by the noise.
        whitening: A component of variance v gets the variance v^(1 - whitening). At 1 all
            components count equally. Below 1 the components of large variance count more; these are
            less noisy. null chooses it by the number of dimensions.

    Examples:
        >>> features = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
        >>> public_map = Whitened(dimensions=4, whitening=1.0).fit(features)
        >>> public_map.project(features).var(dim=0, correction=0)
        tensor([1.0000, 1.0000, 1.0000, 1.0000], dtype=torch.float64)
    """

    adjective: ClassVar[str] = "whitened"

    dimensions: int | None = None
    whitening: float | None = None

    def __post_init__(self) -> None:
        dimensions = self.dimensions
        is_valid = dimensions is None or dimensions >= 1
        check_setting("dimensions", dimensions, is_valid, "be at least 1")
        whitening = self.whitening
        is_valid = whitening is None or 0 <= whitening <= 1
        check_setting("whitening", whitening, is_valid, "lie in [0, 1]")

    def fit(self, features: Tensor) -> PublicMap:
        """Compute the public mean and the scaled eigenvectors of the public covariance."""
        features = _to_finite_double(features)
        center = features.mean(dim=0)
        variances, vectors = _principal_components(features, center)
        num_varying = int((variances > _NEGLIGIBLE_VARIANCE * variances[0]).sum())
        count = min(self.dimensions or num_varying, num_varying)
        if not variances[0] > 0 or count == 0:
            raise ValueError("the public features do not vary: there is nothing to whiten")
        vectors = vectors[:, :count]
        # The sign of an eigenvector is arbitrary: make its largest entry positive.
        largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
        whitening = 0.5 if self.whitening is None else self.whitening
        directions = vectors * largest.sign() / variances[:count].pow(whitening / 2)
        return PublicMap(center.cpu(), directions.contiguous())


def _principal_components(features: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
    """Return the variances and the directions (as columns) of features, largest variance first."""
    covariance = torch.zeros(2 * center.shape, dtype=torch.float64, device=center.device)
    for rows in torch.split(features, _ROWS_AT_ONCE):
        centered = rows - center
        covariance += centered.T @ centered
    variances, vectors = torch.linalg.eigh(covariance.cpu() / len(features))
    return variances.flip(0), vectors.flip(1)


def _to_finite_double(features: Tensor) -> Tensor:
    """Return features as float64; raise a ValueError if they are not finite."""
    features = features.detach().double()
    if not math.isfinite(float(features.sum())):
        raise ValueError("public features hold NaN or infinity: no map can be fitted to them")
    return features
