"""How the server turns logits <w_i, row(x)> into scores s_i(x).

A function of released vectors and public data: post-processing, at no cost in privacy. A_s (eq. 3)
uses scores relative to each other, s_i(x) / sum_j s_j(x).
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

# exp(70) and exp(-70), summed over clients and multiplied with logits, are ordinary float32 numbers
_LIMIT = 70.0
_SHARPEST = 20.0
_ROUNDING = 1e-12  # a spread below this share of the logits, float64, is not theirs


class Calibration(Protocol):
    """From logits to scores; a frozen dataclass whose fields are options of ``Scoring``."""

    def scores(self, logits: Tensor, reference: Tensor) -> Tensor:
        """Positive scores of a client.

        Args:
            logits: <w_i, row(x)> on the data to score, shape (N,).
            reference: Those on D_distill, whatever is scored: test data must not calibrate.
        """


@dataclass(frozen=True)
class Sigmoid:
    """The paper's s_i(x) = 1 / (1 + exp(-<w_i, row(x)>)) + xi.

    Attributes:
        xi: The least score, at least 0.
    """

    xi: float

    def __post_init__(self) -> None:
        if not 0 <= self.xi < math.inf:
            raise ValueError(f"xi must be at least 0 and finite, but is {self.xi}")

    def scores(self, logits: Tensor, reference: Tensor) -> Tensor:
        """The sigmoid; D_distill plays no part."""
        return logits.sigmoid() + self.xi


@dataclass(frozen=True)
class Standardised:
    """s_i(x) = exp(sharpness z_i(x)), z_i being the logits standardised over D_distill.

    A client's logits have the scale of its vector and of the noise in it; standardised, they say by
    how much x stands out from the distillation data. A_s then is a softmax over clients.

    Attributes:
        sharpness: Above 0 and at most 20. Exponents are cut at -70 and 70, which keeps scores
            positive and finite in float32; at 20 this would cut logits 3.5 standard deviations out.
    """

    sharpness: float

    def __post_init__(self) -> None:
        if not 0 < self.sharpness <= _SHARPEST:
            raise ValueError(
                f"sharpness must be above 0 and at most {_SHARPEST:g}, but is {self.sharpness}"
            )

    def scores(self, logits: Tensor, reference: Tensor) -> Tensor:
        """exp(sharpness z); 1 for a client whose logits do not vary on D_distill."""
        scale = reference.std(correction=0)
        if scale <= _ROUNDING * reference.abs().max():
            return torch.ones_like(logits)
        z = (logits - reference.mean()) / scale
        return (self.sharpness * z).clamp(-_LIMIT, _LIMIT).exp()


CALIBRATIONS: dict[str, type[Calibration]] = {"none": Sigmoid, "standardise": Standardised}
