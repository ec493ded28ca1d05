"""All settings of FedAUX's scoring, and the parts that they choose."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from fedaux_pl.functional import shrink_to_mean
from fedaux_pl.functional.privacy import Mechanism
from fedaux_pl.modules.scoring import PRIVATE_BOUND
from fedaux_pl.scoring.base import Budget, Scorer
from fedaux_pl.scoring.calibration import CALIBRATIONS, Calibration
from fedaux_pl.scoring.head import ReleasedHead
from fedaux_pl.scoring.logistic import Logistic
from fedaux_pl.scoring.maps import FEATURE_MAPS, FeatureMap, PublicMap
from fedaux_pl.scoring.mean import Mean

NormBound = float | Literal["negatives", "unit", "private"]
SCORERS: dict[str, type[Scorer]] = {"logistic": Logistic, "mean": Mean}
T = TypeVar("T")


@dataclass(frozen=True)
class Scoring:
    """The settings of certainty scoring, all on one level; ``FedAUX`` says what they mean.

    Those that the chosen scoring, feature map or calibration has no field for have no effect.
    """

    regularization: float = 0.1
    epsilon: float | None = 0.1
    delta: float = 1e-5
    xi: float = 1e-8
    mechanism: Mechanism = "analytic"
    norm_bound: NormBound = "negatives"
    normalized: bool = True
    tolerance: float = 1e-10
    scoring: str = "logistic"
    feature_map: str = "none"
    dimensions: int = 64
    whitening: float = 1.0
    calibration: str = "none"
    sharpness: float = 5.0
    shrink: bool = False

    def __post_init__(self) -> None:
        bound = self.norm_bound
        if bound not in ("negatives", "unit", "private") and not (
            isinstance(bound, int | float) and 0 < bound < float("inf")
        ):
            raise ValueError(
                "norm_bound must be 'negatives', 'unit', 'private' or a positive number, but is "
                f"{bound!r}"
            )
        if self.shrink and bound == "private":
            raise ValueError(
                "shrink compares vectors of clients, which norm_bound 'private' scales for each of "
                "them otherwise: set shrink to false, or choose a public norm_bound"
            )
        _ = self.budget, self.scorer, self.map, self.calibrator  # a wrong setting fails here

    @property
    def budget(self) -> Budget:
        """What a client's release may cost."""
        return self._create(Budget)

    @property
    def scorer(self) -> Scorer:
        """What clients release."""
        return self._create(_chosen("scoring", self.scoring, SCORERS))

    @property
    def map(self) -> FeatureMap:
        """How the public feature map is fitted."""
        return self._create(_chosen("feature_map", self.feature_map, FEATURE_MAPS))

    @property
    def calibrator(self) -> Calibration:
        """How the server turns logits into scores."""
        return self._create(_chosen("calibration", self.calibration, CALIBRATIONS))

    def _create(self, kind: type[T]) -> T:
        """An object with those of these settings that it has fields for."""
        names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
        return kind(**{name: getattr(self, name) for name in names})

    @property
    def flaw(self) -> str:
        """Why a release does not cost what it says; empty where it does."""
        reasons = [PRIVATE_BOUND] if self.norm_bound == "private" else []
        return "; ".join([*reasons, *filter(None, [self.scorer.flaw])])

    def release_settings(self) -> dict[str, Any]:
        """What determines a release, as plain values.

        What the server does with it afterwards is left out: to try another calibration nobody has
        to be asked again, which would cost again.
        """
        plain: dict[str, Any] = {
            name: getattr(self, name) for name in ("scoring", "feature_map", "norm_bound")
        }
        for part in (self.budget, self.scorer, self.map):
            plain |= dataclasses.asdict(part)  # type: ignore[arg-type]
        return plain

    def fit_map(self, features: Tensor, negatives: Tensor) -> PublicMap:
        """The public map, by the server: features of D_aux, shape (N, d), and those of D^-."""
        public = dataclasses.replace(self.map.fit(features), unit=self.norm_bound == "unit")
        if self.norm_bound == "unit":
            return public
        if isinstance(self.norm_bound, str):
            bound = float(public.mapped(negatives).norm(dim=1).max())
            if not 0 < bound < float("inf"):
                raise ValueError(f"the largest norm among the negatives is {bound}: no bound")
        else:
            bound = float(self.norm_bound)
        return dataclasses.replace(public, bound=bound)

    def release(
        self,
        client: int,
        positives: Tensor,
        negatives: Tensor,
        public: PublicMap,
        noise_seed: int | None,
    ) -> ReleasedHead:
        """Algorithm 1, P2 and P3 on the client's side: all that ever leaves it of its scoring.

        Args:
            client: Its id.
            positives: h_0(x) on D_i, shape (|D_i|, d).
            negatives: h_0(x) on D^-, shape (|D^-|, d).
            public: What the server sent with h_0.
            noise_seed: None takes the noise from the operating system.
        """
        own = public.mapped(positives)
        if self.norm_bound == "private":  # the paper's, a flaw that is recorded
            longest = float(own.norm(dim=1).max())
            public = dataclasses.replace(public, bound=max(public.bound, longest))
        scorer = self.scorer
        others = negatives if scorer.uses_negatives else negatives[:0]
        vector = scorer.vector(own, public.mapped(others), public.bound)
        sensitivity = scorer.sensitivity(len(own), len(others))
        weight, record = self.budget.release(vector, sensitivity, noise_seed)
        record = dataclasses.replace(record, flaw=self.flaw, what=scorer.what)
        return ReleasedHead(client, weight, public, record)

    def denoised(self, heads: Sequence[ReleasedHead]) -> list[ReleasedHead]:
        """What the server takes the clients of one architecture to have said, given all of them."""
        if not self.shrink or not heads:
            return list(heads)
        vectors = torch.stack([head.weight for head in heads])
        sigmas = vectors.new_tensor([head.release.sigma for head in heads])
        guesses = shrink_to_mean(vectors, sigmas)
        return [
            dataclasses.replace(head, weight=guess)
            for head, guess in zip(heads, guesses, strict=True)
        ]


def _chosen(option: str, name: str, known: Mapping[str, type[T]]) -> type[T]:
    if name not in known:
        raise ValueError(f"{option} must be one of {', '.join(known)}, but is {name!r}")
    return known[name]
