"""Calibrations: how the server turns logits <w_i, row(x)> into certainty scores s_i(x).

A calibration uses only released vectors and public data. It is post-processing, which costs no
privacy. A_s (equation 3) depends only on the relative scores s_i(x) / sum_j s_j(x).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedaux_pl.errors import check_setting
from fedaux_pl.functional.soft_labels import MAX_SHARPNESS

_MAX_EXPONENT = 70.0
"""exp(70) and exp(-70), summed over clients and multiplied by logits, stay in float32's range."""
_ROUNDING = 1e-12
"""If the relative spread of float64 logits is smaller, they are constant up to rounding errors."""


class Calibration(ABC):
    """How the server turns the logits of a client into scores."""

    shrinks: ClassVar[bool] = False
    """Whether the server first moves the released vectors towards their mean, as far as noise
    explains their differences (``functional.shrink_to_mean``)."""

    @abstractmethod
    def scores(self, logits: Tensor, reference: Tensor) -> Tensor:
        """Compute the positive scores of a client.

        Args:
            logits: <w_i, row(x)> on the data to score, shape (N,).
            reference: The client's logits on D_distill. They calibrate the scores even if test data
                are scored, because test data must not influence the calibration.
        """


@dataclass(frozen=True)
class Sigmoid(Calibration):
    """The paper's s_i(x) = 1 / (1 + exp(-<w_i, row(x)>)) + xi.

    Attributes:
        xi: A number that is added to every score, at least 0.

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
    Standardized logits do not depend on this scale: they say by how many standard deviations x lies
    above the mean of D_distill. The relative scores in A_s are then a softmax over clients. Before
    that, the server shrinks the released vectors towards their mean.

    Attributes:
        sharpness: How much more weight the more certain clients get, above 0 and at most 20.
            Exponents are clipped to [-70, 70], which keeps scores positive and finite in float32.
            At a sharpness of 20 this clips logits that are more than 3.5 standard deviations from
            the mean.

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
        """Compute exp(sharpness z). All scores are 1 if the reference is constant."""
        standard_deviation = reference.std(correction=0)
        if standard_deviation <= _ROUNDING * reference.abs().max():
            return torch.ones_like(logits)
        z = (logits - reference.mean()) / standard_deviation
        return (self.sharpness * z).clamp(-_MAX_EXPONENT, _MAX_EXPONENT).exp()
