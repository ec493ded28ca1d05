"""Public feature maps: how h_0(x) becomes a row, by statistics of public data alone.

The server fits a map to the features of D_aux (D^- and D_distill together) and sends it to the
clients with h_0. A row depends on one record and on public data, so replacing one record of a
client changes at most one row; the norm of every row is at most 1.
"""

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedaux_pl.errors import check_setting
from fedaux_pl.functional import LinearClassifier, bounded_rows

# Directions with less than this fraction of the largest variance are rounding errors.
_NEGLIGIBLE = 1e-9
_CHUNK = 8192


@dataclass(frozen=True)
class PublicMap:
    """row(x) = clip((h_0(x) - center) @ directions, bound) / bound.

    Examples:
        >>> PublicMap(center=torch.tensor([1.0, 0.0]), unit=True).rows(torch.tensor([[4.0, 4.0]]))
        tensor([[0.6000, 0.8000]], dtype=torch.float64)
    """

    center: Tensor | None = None  # shape (d,), float64 on the CPU; None for 0
    directions: Tensor | None = None  # shape (d, k), likewise; None for the identity
    unit: bool = False  # whether every row but 0 is scaled to norm 1 before it is clipped
    bound: float = 1.0  # the norm to which rows are clipped

    def project(self, features: Tensor) -> Tensor:
        """Map features (N, d) to float64 of shape (N, k), without clipping."""
        x = features.detach().double()
        if self.center is not None:
            x = x - self.center.to(x.device)
        if self.directions is not None:
            x = x @ self.directions.to(x.device)
        if self.unit:
            x = torch.nn.functional.normalize(x, dim=1, eps=torch.finfo(x.dtype).tiny)
        return x

    def row_length(self, h0: nn.Module) -> int:
        """Return k, the length of the rows of the features of h_0."""
        if self.directions is not None:
            return self.directions.shape[1]
        return int(h0.feature_dim)  # type: ignore[arg-type]

    def rows(self, features: Tensor) -> Tensor:
        """Map features (N, d) to rows of norm at most 1, float64 of shape (N, k)."""
        return bounded_rows(self.project(features), self.bound)

    def linear_head(self, classifier: LinearClassifier, features: Tensor) -> LinearClassifier:
        """Return the classifier of features that one of rows is, up to their clipping.

        In place of the norm of each row stands one factor, which fits ``features``, (N, d), best.
        """
        projected = replace(self, unit=False).project(features)
        factor = (self.rows(features) * projected).sum() / projected.square().sum()
        weight = float(factor.nan_to_num()) * classifier.weight
        if self.directions is not None:
            weight = weight @ self.directions.T.to(weight)
        bias = classifier.bias
        if self.center is not None:
            bias = bias - weight @ self.center.to(weight)
        return LinearClassifier(weight, bias)

    def private_rows(self, features: Tensor) -> Tensor:
        """As ``rows``; 0 for a record whose features are not finite, and a warning to the client.

        An error would tell the server about one record, without noise: whoever chooses h_0 and the
        map can let any record overflow.
        """
        x = self.project(features)
        is_finite = x.norm(dim=1, keepdim=True).isfinite()
        if not bool(is_finite.all()):
            warnings.warn(
                f"{int((~is_finite).sum())} of {len(x)} private records have features that are not "
                "finite: they take part in the release as 0",
                stacklevel=2,
            )
        return bounded_rows(torch.where(is_finite, x, 0.0), self.bound)

    def largest_norm(self, features: Tensor) -> float:
        """The largest norm of the projected features."""
        return float(self.project(features).norm(dim=1).max())

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are sent to a client, by the name of their field."""
        named = {"center": self.center, "directions": self.directions}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


class FeatureMap(ABC):
    """How a ``PublicMap`` is fitted to public features."""

    uses_auxiliary: ClassVar[bool] = True
    """Whether ``fit`` uses the features; if not, D_aux is no part of the key of a release."""
    adjective: ClassVar[str] = "mapped"
    """What the features are called after the map, for the log: "the mean of its ... features"."""

    @abstractmethod
    def fit(self, features: Tensor) -> PublicMap:
        """Fit the map to public features, shape (N, d); ``Scoring`` sets its norm bound."""


@dataclass(frozen=True)
class Identity(FeatureMap):
    """Features as h_0 gives them, as in the paper."""

    uses_auxiliary = False
    adjective = ""

    def fit(self, features: Tensor) -> PublicMap:
        """Return the identity."""
        return PublicMap()


@dataclass(frozen=True)
class Centered(FeatureMap):
    """Features minus their public mean."""

    adjective = "centered"

    def fit(self, features: Tensor) -> PublicMap:
        """Compute the public mean."""
        return PublicMap(center=_checked(features).mean(dim=0).cpu())


@dataclass(frozen=True)
class Whitened(FeatureMap):
    """The first principal components of public features, their variances made (more) equal.

    Attributes:
        dimensions: The number of components; fewer if public features vary in fewer directions.
            null to choose it by the noise.
        whitening: A component of variance v gets variance v^(1 - whitening). At 1 all components
            count equally; below 1 those of large variance, which are less noisy, count more. null
            to choose it by the dimensions.

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
        count = self.dimensions
        check_setting("dimensions", count, count is None or count >= 1, "be at least 1")
        whitening = self.whitening
        is_valid = whitening is None or 0 <= whitening <= 1
        check_setting("whitening", whitening, is_valid, "lie in [0, 1]")

    def fit(self, features: Tensor) -> PublicMap:
        """Compute the public mean and the scaled eigenvectors of the public covariance."""
        features = _checked(features)
        center = features.mean(dim=0)
        covariance = torch.zeros(2 * center.shape, dtype=torch.float64, device=center.device)
        for rows in torch.split(features, _CHUNK):
            centered = rows - center
            covariance += centered.T @ centered
        variances, vectors = torch.linalg.eigh(covariance.cpu() / len(features))
        variances = variances.flip(0)
        vectors = vectors.flip(1)
        count = int((variances > _NEGLIGIBLE * variances[0]).sum())
        count = min(self.dimensions or count, count)
        if not variances[0] > 0 or count == 0:
            raise ValueError("the public features do not vary: there is nothing to whiten")
        vectors = vectors[:, :count]
        # The sign of an eigenvector is arbitrary: make its largest number positive.
        largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
        whitening = 0.5 if self.whitening is None else self.whitening
        directions = vectors * largest.sign() / variances[:count].pow(whitening / 2)
        return PublicMap(center.cpu(), directions.contiguous())


def _checked(features: Tensor) -> Tensor:
    features = features.detach().double()
    if not math.isfinite(float(features.sum())):
        raise ValueError("public features hold NaN or infinity: no map can be fitted to them")
    return features
