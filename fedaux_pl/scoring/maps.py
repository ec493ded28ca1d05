"""Public feature maps: how h_0(x) becomes a row, by statistics of public data alone.

The server fits a map to the features of D_aux (D^- and D_distill together) and sends it to the
clients with h_0. It is a function of one record and of public data, so that replacing one record
of a client changes one row; rows have a norm of at most 1 whatever the record. Features after ReLU
and pooling share one large direction, which leaves little of the norm to what tells classes apart:
centring takes it out, whitening gives every direction that is kept the same variance.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedaux_pl.functional import bounded_rows

# Directions whose variance is below this share of the largest are rounding, not features.
_NEGLIGIBLE = 1e-9
_CHUNK = 8192


@dataclass(frozen=True)
class PublicMap:
    """row(x) = clip((h_0(x) - centre) @ directions, bound) / bound.

    Attributes:
        centre: Shape (d,), float64 on the CPU; None for 0.
        directions: Shape (d, k), float64 on the CPU; None for the identity.
        unit: Whether rows are scaled to norm 1, however long they are.
        bound: What rows are clipped to.
    """

    centre: Tensor | None = None
    directions: Tensor | None = None
    unit: bool = False
    bound: float = 1.0

    def mapped(self, features: Tensor) -> Tensor:
        """Features (N, d) as float64 of shape (N, k), before they are clipped."""
        x = features.detach().double()
        if self.centre is not None:
            x = x - self.centre.to(x.device)
        if self.directions is not None:
            x = x @ self.directions.to(x.device)
        if self.unit:
            x = torch.nn.functional.normalize(x, dim=1, eps=torch.finfo(x.dtype).tiny)
        return x

    def rows(self, features: Tensor) -> Tensor:
        """Rows of norm at most 1, float64 of shape (N, k)."""
        return bounded_rows(self.mapped(features), self.bound)

    def tensors(self) -> dict[str, Tensor]:
        """What is sent to a client, by name."""
        named = {"centre": self.centre, "directions": self.directions}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], unit: bool, bound: float) -> "PublicMap":
        """The map that has these tensors."""
        return cls(tensors.get("centre"), tensors.get("directions"), unit, bound)


class FeatureMap(Protocol):
    """How a public map is fitted; a frozen dataclass whose fields are options of ``Scoring``."""

    fitted: ClassVar[bool]
    """Whether public features are looked at."""

    def fit(self, features: Tensor) -> PublicMap:
        """The map that public features, shape (N, d), give; without a bound yet."""


@dataclass(frozen=True)
class Unmapped:
    """Features as h_0 gives them, as in the paper."""

    fitted: ClassVar[bool] = False

    def fit(self, features: Tensor) -> PublicMap:
        """The identity."""
        return PublicMap()


@dataclass(frozen=True)
class Centred:
    """Features less their public mean."""

    fitted: ClassVar[bool] = True

    def fit(self, features: Tensor) -> PublicMap:
        """The public mean."""
        return PublicMap(centre=_public(features).mean(dim=0).cpu())


@dataclass(frozen=True)
class Whitened:
    """The first principal components of public features, each of variance 1 on them.

    Attributes:
        dimensions: The most components; fewer where public features vary in fewer directions.
        whitening: A component of variance v is given variance v^(1 - whitening): at 1 all of them
            count alike, below 1 those that vary most, which are the less noisy ones, count more.
    """

    fitted: ClassVar[bool] = True
    dimensions: int
    whitening: float = 1.0

    def __post_init__(self) -> None:
        if self.dimensions < 1:
            raise ValueError(f"dimensions must be at least 1, but is {self.dimensions}")
        if not 0 <= self.whitening <= 1:
            raise ValueError(f"whitening must lie in [0, 1], but is {self.whitening}")

    def fit(self, features: Tensor) -> PublicMap:
        """The public mean, and the eigenvectors of the public covariance over its roots."""
        features = _public(features)
        centre = features.mean(dim=0)
        covariance = torch.zeros(2 * centre.shape, dtype=torch.float64, device=centre.device)
        for part in torch.split(features, _CHUNK):
            covariance += (part - centre).T @ (part - centre)
        variances, vectors = torch.linalg.eigh(covariance.cpu() / len(features))
        variances, vectors = variances.flip(0), vectors.flip(1)
        kept = min(self.dimensions, int((variances > _NEGLIGIBLE * variances[0]).sum()))
        if not variances[0] > 0 or kept == 0:
            raise ValueError("the public features do not vary: there is nothing to whiten")
        vectors = vectors[:, :kept]
        # An eigenvector has no sign: let its largest entry be positive, on every machine.
        largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
        directions = vectors * largest.sign() / variances[:kept].pow(self.whitening / 2)
        return PublicMap(centre.cpu(), directions.contiguous())


FEATURE_MAPS: dict[str, type[FeatureMap]] = {
    "none": Unmapped,
    "centred": Centred,
    "whitened": Whitened,
}


def _public(features: Tensor) -> Tensor:
    if features.ndim != 2 or len(features) == 0:
        raise ValueError(
            "public features must be (samples, d) with at least one sample, but are "
            f"{tuple(features.shape)}"
        )
    features = features.detach().double()
    if not math.isfinite(float(features.sum())):
        raise ValueError("public features hold NaN or infinity: no map can be fitted to them")
    return features
