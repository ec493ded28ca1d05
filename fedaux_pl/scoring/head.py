"""What leaves a client before the first round."""

from dataclasses import dataclass

from torch import Tensor

from fedaux_pl.functional import Release
from fedaux_pl.scoring.maps import PublicMap


@dataclass(frozen=True)
class ReleasedHead:
    """What a client sends about its data: a vector with noise, and nothing before it.

    Attributes:
        client: The client's id.
        weight: w_i, float64 of shape (k,).
        public: How features become rows. Public; but for the flawed ``norm_bound: private``, with
            which the bound is the client's.
        release: The record of the release.
    """

    client: int
    weight: Tensor
    public: PublicMap
    release: Release

    def logits(self, features: Tensor) -> Tensor:
        """<w_i, row(x)> for features h_0(x) of shape (N, d), float64 of shape (N,)."""
        rows = self.public.rows(features)
        return self.weight.to(rows.device) @ rows.T
