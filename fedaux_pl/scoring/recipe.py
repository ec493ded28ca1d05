"""The base class of scoring recipes."""

from abc import ABC, abstractmethod

from fedaux_pl.scoring.privacy import Privacy
from fedaux_pl.scoring.scoring import Scoring


class ScoringRecipe(ABC):
    """The user's options of a scoring, from which a ``Scoring`` is created.

    The option ``scoring`` of a method takes a recipe: a frozen dataclass whose fields are the
    options. Subclass it to score with a scorer, a feature map or a calibration of your own.

    Examples:
        >>> from dataclasses import dataclass
        >>> from fedaux_pl import FedAUX
        >>> from fedaux_pl.scoring import Centered, Mean
        >>> @dataclass(frozen=True)
        ... class CenteredMean(ScoringRecipe):
        ...     def create(self, privacy):
        ...         return Scoring(Mean(), Centered(), privacy=privacy)
        >>> FedAUX(scoring=CenteredMean()).release.scoring.feature_map
        Centered()
    """

    @abstractmethod
    def create(self, privacy: Privacy) -> Scoring:
        """Create the scoring. ``privacy`` applies to everything that a client releases."""
