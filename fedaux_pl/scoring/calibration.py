"""Calibrations: how the server turns logits <w_i, row(x)> into scores s_i(x).

They use released vectors and public data only: post-processing, at no cost in privacy. A_s (eq. 3)
depends on s_i(x) / sum_j s_j(x) only.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedaux_pl.errors import check_setting
from fedaux_pl.functional.soft_labels import MAX_SHARPNESS

# exp(70) and exp(-70) summed over clients and multiplied by logits are in float32's range
_MAX_EXPONENT = 70.0
_ROUNDING = 1e-12  # float64 logits whose relative spread is below this are constant up to rounding


class Calibration(ABC):
    """How the server turns a client's logits into scores."""

    shrinks: ClassVar[bool] = False
    """Whether the released vectors are first moved towards their mean, as far as noise explains
    that they differ (``functional.shrink_to_mean``)."""

    @abstractmethod
    def scores(self, logits: Tensor, reference: Tensor) -> Tensor:
        """Compute the positive scores of a client.

        Args:
            logits: <w_i, row(x)> on the data to score, shape (N,).
            reference: The logits on D_distill, also when test data are scored: test data must
                not influence the calibration.
        """


@dataclass(frozen=True)
class Sigmoid(Calibration):
    """The paper's s_i(x) = 1 / (1 + exp(-<w_i, row(x)>)) + xi.

    Attributes:
        xi: Added to every score, at least 0.

    Examples:
        >>> Sigmoid(xi=0.25).scores(torch.zeros(1), reference=torch.zeros(1))
        tensor([0.7500])
    """

    xi: float = 1e-8

    def __post_init__(self) -> None:
        check_setting("xi", self.xi, 0 <= self.xi < math.inf, "be at least 0 and finite")

    def scores(self, logits: Tensor, reference: Tensor) -> Tensor:
        """Compute the sigmoid; the reference is not used."""
        return logits.sigmoid() + self.xi


@dataclass(frozen=True)
class Standardized(Calibration):
    """s_i(x) = exp(sharpness z_i(x)), where z_i are the logits standardized over D_distill.

    The scale of a client's logits depends on the norm of its vector and on the noise in it.
    Standardized logits tell by how many standard deviations x exceeds the mean of D_distill. The
    relative scores in A_s are then a softmax over clients. The server first shrinks the released
    vectors towards their mean, which is post-processing, too.

    Attributes:
        sharpness: How much more weight the more certain clients get, above 0 and at most 20.
            Exponents are clipped to [-70, 70], which keeps scores positive and finite in float32;
            at 20 this clips logits more than 3.5 standard deviations from the mean.

    Examples:
        >>> reference = torch.tensor([-1.0, 1.0])
        >>> Standardized(sharpness=2.0).scores(torch.tensor([0.0, 1.0]), reference)
        tensor([1.0000, 7.3891])
    """

    shrinks: ClassVar[bool] = True

    sharpness: float = 3.0

    def __post_init__(self) -> None:
        expected = f"be above 0 and at most {MAX_SHARPNESS:g}"
        check_setting("sharpness", self.sharpness, 0 < self.sharpness <= MAX_SHARPNESS, expected)

    def scores(self, logits: Tensor, reference: Tensor) -> Tensor:
        """Compute exp(sharpness z); 1 for a client whose logits are constant on D_distill."""
        scale = reference.std(correction=0)
        if scale <= _ROUNDING * reference.abs().max():
            return torch.ones_like(logits)
        z = (logits - reference.mean()) / scale
        return (self.sharpness * z).clamp(-_MAX_EXPONENT, _MAX_EXPONENT).exp()
