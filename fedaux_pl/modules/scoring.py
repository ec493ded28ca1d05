"""The scoring head of one client, and what of it may leave the client (FedAUX, 3.4 and 3.5).

Preparation P2: fit a logistic regression that tells D_i from D^- in the features of h_0.
Preparation P3: release it with noise that makes the release (epsilon, delta)-private, and turn
the released weight into scores on D_distill.

What the guarantee covers is the released weight and all that is computed from it and public data.
It does not cover the fit itself: its metrics are for the client's own eyes, and the weight before
noise is kept out of checkpoints.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torchmetrics.classification import BinaryAUROC

from fedaux_pl.errors import PrivacyError
from fedaux_pl.functional import (
    bounded_rows,
    certainty_scores,
    fit_scoring_head,
    fit_scoring_heads,
    gaussian_release,
    release_without_noise,
    scoring_sensitivity,
    spent,
)
from fedaux_pl.functional.privacy import Mechanism
from fedaux_pl.functional.release import Release
from fedaux_pl.modules.backbone import resolve_model, unsaved, without_head

PRIVATE_BOUND = "the norm bound is the largest of private data"
UNNORMALISED = "the sensitivity is that of another objective (unnormalised lambda)"


class ScoringHead(pl.LightningModule):
    """Fits, sanitises and applies the scoring head of one client.

    Training batches are (inputs, membership), membership being 1 for the client's own samples D_i
    and 0 for the public negatives D^-; inputs are images if a model is given and features if not.
    One epoch collects the features, at whose end the head is solved exactly; the fit then stops.
    ``release`` adds noise, once, and ``scores`` (or ``predict``) applies what was released.

    Rows are clipped to a bound that must not depend on private data and divided by it, so that
    every one has a norm of at most 1, which Theorem 1 assumes.

    Args:
        model: h_0: the name of an architecture, or a module with ``features``, ``head`` and
            ``feature_dim``; None if batches hold features already. A module is not saved with
            the hyper-parameters: give it again to ``load_from_checkpoint``.
        regularization: lambda of the objective.
        norm_bound: The bound on the norm of a feature vector: a number that is public,
            ``negatives`` for the largest norm among D^-, or ``private`` for the paper's largest
            norm among D_i and D^-, which is itself a release of private data: for comparison
            only, releases are recorded as flawed.
        normalized: Whether lambda weighs against the mean of the loss, as in the paper's equation.
            False weighs it against the sum, as the authors' code does; one record then moves the
            head N times as far as the noise is made for: for comparison only, releases are
            recorded as flawed.
        xi: The least score.
        tolerance: The norm of the objective's gradient at which a fit is finished. It is part of
            the sensitivity, and a fit that does not reach it cannot be released.
        max_iter: The most iterations of the solver.
        model_options: Further arguments of ``create_model``, such as ``in_channels``.
    """

    def __init__(
        self,
        model: str | nn.Module | None = None,
        regularization: float = 0.1,
        norm_bound: float | Literal["negatives", "private"] = "negatives",
        normalized: bool = True,
        xi: float = 1e-8,
        tolerance: float = 1e-10,
        max_iter: int = 1000,
        model_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        scoring_sensitivity(regularization, 1, tolerance)  # a wrong setting fails here
        if norm_bound not in ("negatives", "private") and not (
            isinstance(norm_bound, int | float) and 0 < norm_bound < math.inf
        ):
            raise ValueError(
                "norm_bound must be 'negatives', 'private' or a positive number, but is "
                f"{norm_bound!r}"
            )
        self.save_hyperparameters(ignore=unsaved(model))
        self.backbone = None
        if model is not None:
            self.backbone = without_head(resolve_model(model, 1, model_options))
        self.regularization = regularization
        self.norm_bound = norm_bound
        self.normalized = normalized
        self.xi = xi
        self.tolerance = tolerance
        self.max_iter = max_iter
        self.ledger: list[Release] = []
        self.bound: float | None = None
        self.weight: Tensor | None = None
        self._fitted: Tensor | None = None  # before noise: never in a checkpoint
        self._gradient_norm = math.inf
        self._num_samples = 0
        self._collected: list[tuple[Tensor, Tensor]] = []
        self.train_auroc = BinaryAUROC()
        self.val_auroc = BinaryAUROC()

    # --- the fit -------------------------------------------------------------------------------

    def fit_features(self, positives: Tensor, negatives: Tensor) -> None:
        """Fits the head to features h_0(x) of D_i, shape (|D_i|, d), and of D^-, (|D^-|, d)."""
        if isinstance(self.norm_bound, str):
            bound = float(negatives.double().norm(dim=1).max())
            if self.norm_bound == "private":
                bound = max(bound, float(positives.double().norm(dim=1).max()))
            if not 0 < bound < math.inf:
                raise ValueError(f"the largest norm among the negatives is {bound}: no bound")
        else:
            bound = float(self.norm_bound)
        self.bound = bound
        self._num_samples = len(positives) + len(negatives)
        strength = self.regularization / (1 if self.normalized else self._num_samples)
        rows = self._rows(positives), self._rows(negatives)
        if negatives.is_cuda:
            weights, norms = fit_scoring_heads(
                [rows[0]], rows[1], strength, self.max_iter, self.tolerance
            )
            self._fitted, self._gradient_norm = weights[0].cpu(), float(norms[0])
        else:
            self._fitted, self._gradient_norm = fit_scoring_head(
                *rows, strength, self.max_iter, self.tolerance
            )

    @property
    def flaw(self) -> str:
        """Why a release of this head does not cost what it says; empty where it does."""
        reasons = []
        if self.norm_bound == "private":
            reasons.append(PRIVATE_BOUND)
        if not self.normalized:
            reasons.append(UNNORMALISED)
        return "; ".join(reasons)

    def _rows(self, features: Tensor) -> Tensor:
        """Features as the head sees them: clipped to the bound, at most of norm 1, float64."""
        if self.bound is None:
            raise PrivacyError("the scoring head is not fitted yet: fit it first")
        return bounded_rows(features, self.bound)

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """h_0(x) in float32, or x itself where there is no model."""
        if self.backbone is None:
            return x.float()
        features: Tensor = self.backbone.features(x)  # type: ignore[operator]
        return features.float()

    def train(self, mode: bool = True) -> "ScoringHead":
        """h_0 is fixed: it stays in evaluation mode."""
        super().train(mode)
        if self.backbone is not None:
            self.backbone.eval()
        return self

    def configure_optimizers(self) -> list[Any]:
        """None: the head is solved for, not descended to."""
        return []

    def on_train_start(self) -> None:
        """A head belongs to one client, whose data one process holds."""
        self.train()  # the Trainer leaves every module in the mode in which it finds it
        if self.trainer.world_size > 1:
            raise PrivacyError(
                f"a scoring head is fitted in one process, but there are {self.trainer.world_size}:"
                " use Trainer(devices=1) and give every process a client of its own"
            )

    def on_train_epoch_start(self) -> None:
        """Starts collecting anew."""
        self._collected = []

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Collects features and membership."""
        self._collected.append((self.features(batch[0]), batch[1].bool()))

    def on_train_epoch_end(self) -> None:
        """Solves for the head, logs how it went, and ends the fit: nothing is left to do."""
        features = torch.cat([rows for rows, _ in self._collected])
        member = torch.cat([flags for _, flags in self._collected])
        self._collected = []
        self.fit_features(features[member], features[~member])
        assert self._fitted is not None  # noqa: S101 - for mypy
        self.train_auroc.update(self._rows(features).cpu() @ self._fitted, member.cpu())
        self.log("train_auroc", self.train_auroc)
        self.log("gradient_norm", self._gradient_norm)
        self.trainer.should_stop = True

    # --- what leaves the client ----------------------------------------------------------------

    def release(
        self,
        epsilon: float,
        delta: float,
        mechanism: Mechanism = "analytic",
        compose: bool = False,
        noise_seed: int | None = None,
    ) -> Tensor:
        """Adds noise to the fitted head, so that what leaves is (epsilon, delta)-private.

        Args:
            epsilon: Greater than 0.
            delta: Between 0 and 1, both excluded.
            mechanism: How the noise is calibrated, see ``gaussian_sigma``.
            compose: A second release tells more about the same data: it is refused unless this is
                set, and then adds to what was spent.
            noise_seed: None takes every bit of the noise from the operating system. A seed makes
                a simulation repeatable; the guarantee then holds against nobody who knows or
                guesses it.

        Returns:
            The released weight, float64 of shape (d,), also kept for ``scores``.

        Raises:
            PrivacyError: If nothing is fitted, the fit did not reach its tolerance, or a release
                was made before.
        """
        fitted = self._releasable(compose)
        sensitivity = scoring_sensitivity(self.regularization, self._num_samples, self.tolerance)
        self.weight, record = gaussian_release(
            fitted, sensitivity, epsilon, delta, mechanism, noise_seed
        )
        self.ledger.append(replace(record, flaw=self.flaw))
        return self.weight

    def release_without_privacy(self, compose: bool = False) -> Tensor:
        """Releases the head as it was fitted: for comparison, with no guarantee at all."""
        self.weight, record = release_without_noise(self._releasable(compose))
        self.ledger.append(replace(record, flaw=self.flaw))
        return self.weight

    def _releasable(self, compose: bool) -> Tensor:
        if self._fitted is None:
            raise PrivacyError(
                "there is no fit to release: fit first (a checkpoint holds what was released, "
                "never the fit itself)"
            )
        if self._gradient_norm > self.tolerance:
            raise PrivacyError(
                f"the fit stopped at a gradient norm of {self._gradient_norm:.3g}, above the "
                f"tolerance of {self.tolerance:.3g} that its sensitivity counts with: raise "
                "max_iter or the tolerance and fit again"
            )
        if self.ledger and not compose:
            epsilon, delta = self.spent
            raise PrivacyError(
                f"this client has released its scoring head already, at ({epsilon:g}, {delta:g}): "
                "a second release costs more privacy, and compose=True says that you mean it"
            )
        return self._fitted

    @property
    def spent(self) -> tuple[float, float]:
        """(epsilon, delta) of all releases together, see ``fedaux_pl.functional.spent``."""
        return spent(self.ledger)

    # --- scores --------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        """s_i(x) by the released weight, shape (N,)."""
        if self.weight is None:
            raise PrivacyError("nothing was released yet: call release(epsilon, delta) first")
        rows = self._rows(self.features(x))
        return certainty_scores(rows, self.weight.to(rows.device), self.xi)

    def predict_step(self, batch: Tensor | Sequence[Tensor], batch_idx: int) -> Tensor:
        """s_i(x), shape (N,)."""
        scores: Tensor = self(batch if isinstance(batch, Tensor) else batch[0])
        return scores

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """How well the released scores tell members, 1, from others, 0."""
        if self.weight is not None:
            self.val_auroc.update(self(batch[0]), batch[1].long())
            self.log("val_auroc", self.val_auroc, on_step=False, on_epoch=True)

    # --- state dict ----------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        """What was released and what it cost, for the state dict; the fit itself stays out."""
        return {
            "weight": None if self.weight is None else self.weight.cpu(),
            "bound": self.bound if self.ledger else None,
            "ledger": [asdict(release) for release in self.ledger],
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restores what was released and what it cost."""
        self.weight, self.bound = state["weight"], state["bound"]
        self.ledger = [Release(**release) for release in state["ledger"]]
