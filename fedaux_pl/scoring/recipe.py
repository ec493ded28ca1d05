"""A scoring recipe: the options from which a ``Scoring`` is created."""

from abc import ABC, abstractmethod

from fedaux_pl.scoring.privacy import Privacy
from fedaux_pl.scoring.scoring import Scoring


class ScoringRecipe(ABC):
    """What the option ``scoring`` takes: a frozen dataclass whose fields are the user's options.

    Subclass it to score with a scorer, a feature map or a calibration of your own.

    Examples:
        >>> from dataclasses import dataclass
        >>> from fedaux_pl import FedAUX
        >>> from fedaux_pl.scoring import Centered, Mean
        >>> @dataclass(frozen=True)
        ... class CenteredMean(ScoringRecipe):
        ...     def create(self, privacy):
        ...         return Scoring(Mean(), Centered(), privacy=privacy)
        >>> FedAUX(scoring=CenteredMean()).scoring.feature_map
        Centered()
    """

    @abstractmethod
    def create(self, privacy: Privacy) -> Scoring:
        """Create the scoring in which everything that a client releases has this privacy."""
