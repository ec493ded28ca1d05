"""What a client may tell about its data: one vector, released once, with a guarantee.

A client maps its records to rows of norm at most 1 by a public map, record by record, computes one
vector from the rows, and adds Gaussian noise that fits the vector's sensitivity. Neighbouring data
sets differ in one record that is replaced, hence in one row; |D_i| is public. What the server makes
of the vector and of public data is post-processing and costs nothing more.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedaux_pl.functional import (
    Release,
    gaussian_release,
    gaussian_sigma,
    release_without_noise,
)
from fedaux_pl.functional.privacy import Mechanism


@dataclass(frozen=True)
class Budget:
    """What a release may cost.

    Attributes:
        epsilon: Greater than 0; None for no noise and no guarantee.
        delta: Between 0 and 1, both excluded.
        mechanism: How the noise is calibrated, see ``gaussian_sigma``.
    """

    epsilon: float | None
    delta: float
    mechanism: Mechanism

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            gaussian_sigma(self.epsilon, self.delta, 1.0, self.mechanism)  # a wrong one fails here

    def release(
        self, vector: Tensor, sensitivity: float, noise_seed: int | None
    ) -> tuple[Tensor, Release]:
        """The vector with the noise that this budget asks for, and the record of its release."""
        if self.epsilon is None:
            return release_without_noise(vector)
        return gaussian_release(
            vector, sensitivity, self.epsilon, self.delta, self.mechanism, noise_seed
        )


class Scorer(ABC):
    """How a client sums up its rows in one vector w_i, of which <w_i, row(x)> scores x.

    A subclass is a frozen dataclass whose fields are the options of ``Scoring`` that it uses; its
    docstring proves its ``sensitivity``.
    """

    uses_negatives: ClassVar[bool]
    """Whether clients need the features of D^-."""
    what: ClassVar[str]
    """What is released, in the words of the run's log: "each client released ..."."""

    @property
    def flaw(self) -> str:
        """Why the sensitivity does not hold with these options; empty where it does."""
        return ""

    @abstractmethod
    def vector(self, positives: Tensor, negatives: Tensor, bound: float) -> Tensor:
        """w_i before noise, shape (d,).

        Args:
            positives: The mapped features of D_i, shape (|D_i|, d); rows are these clipped to the
                bound and divided by it.
            negatives: Those of D^-, (|D^-|, d); empty unless ``uses_negatives``.
            bound: What rows are clipped to.
        """

    @abstractmethod
    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """How far the replacement of one row of D_i can move the vector, in the l2-norm."""
