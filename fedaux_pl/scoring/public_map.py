"""A public map: how a client turns the features of a record into a row of norm at most 1.

The server fits the map to public features and sends it to the clients together with h_0. A row
depends on one record and on public data only, so replacing one record of a client changes at most
one row.
"""

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedaux_pl.functional import LinearClassifier, bounded_rows


@dataclass(frozen=True)
class PublicMap:
    """row(x) = clip((h_0(x) - center) @ directions, bound) / bound.

    Examples:
        >>> PublicMap(center=torch.tensor([1.0, 0.0]), unit=True).rows(torch.tensor([[4.0, 4.0]]))
        tensor([[0.6000, 0.8000]], dtype=torch.float64)
    """

    center: Tensor | None = None  # float64 of shape (d,) on the CPU; None stands for 0
    directions: Tensor | None = None  # float64 of shape (d, k) on the CPU; None for the identity
    unit: bool = False  # whether each row, unless it is 0, is scaled to norm 1 before clipping
    bound: float = 1.0  # the norm to which rows are clipped

    def project(self, features: Tensor) -> Tensor:
        """Map features, shape (N, d), to vectors in float64, shape (N, k), without clipping."""
        x = features.detach().double()
        if self.center is not None:
            x = x - self.center.to(x.device)
        if self.directions is not None:
            x = x @ self.directions.to(x.device)
        if self.unit:
            x = torch.nn.functional.normalize(x, dim=1, eps=torch.finfo(x.dtype).tiny)
        return x

    def rows(self, features: Tensor) -> Tensor:
        """Map features, shape (N, d), to rows of norm at most 1, float64 of shape (N, k).

        Features that are not finite raise a ValueError.
        """
        return bounded_rows(self.project(features), self.bound)

    def private_rows(self, features: Tensor) -> Tensor:
        """Map the features of a client's records to rows of norm at most 1.

        A record whose features are not finite gets the row 0, and the client gets a warning. An
        error would reveal one record to the server, without any noise: whoever chooses h_0 and the
        map can make any record overflow.
        """
        x = self.project(features)
        is_finite = x.norm(dim=1, keepdim=True).isfinite()
        if not bool(is_finite.all()):
            warnings.warn(
                f"{int((~is_finite).sum())} of {len(x)} private records have features that are not "
                "finite: the release counts their rows as 0",
                stacklevel=2,
            )
        return bounded_rows(torch.where(is_finite, x, 0.0), self.bound)

    def row_length(self, h0: nn.Module) -> int:
        """Return k, the length of the rows that the map makes of the features of h_0."""
        if self.directions is not None:
            return self.directions.shape[1]
        return int(h0.feature_dim)  # type: ignore[arg-type]

    def largest_norm(self, features: Tensor) -> float:
        """Return the largest norm of the projected features."""
        return float(self.project(features).norm(dim=1).max())

    def linear_head(self, classifier: LinearClassifier, features: Tensor) -> LinearClassifier:
        """Turn a classifier of rows into a classifier of features.

        A linear classifier cannot scale each row to its own norm. One factor replaces these norms:
        the factor that fits ``features``, shape (N, d), best. Clipping is left out.
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

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that are sent to a client, named after their fields."""
        named = {"center": self.center, "directions": self.directions}
        return {name: tensor for name, tensor in named.items() if tensor is not None}
