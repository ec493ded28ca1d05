"""The scoring head of one client as a LightningModule (FedAUX, 3.4 and 3.5; Algorithm 1, P2, P3).

The guarantee covers the released weight and everything computed from it and public data. It does
not cover the fit: the metrics that it logs are for the client only, and so is the weight before
noise. No state dict, checkpoint, copy or pickle has it unless ``release_without_privacy`` releases
it.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics.classification import BinaryAUROC
from torchmetrics.functional.classification import binary_auroc

from fedaux_pl.errors import PrivacyError, check_setting
from fedaux_pl.functional.privacy import Mechanism
from fedaux_pl.lightning import LightningModule
from fedaux_pl.models.layers import check_separate_records
from fedaux_pl.modules.batch_checks import check_inputs, first_entry, unpack_pair
from fedaux_pl.modules.model_argument import resolve_model, save_arguments, without_head
from fedaux_pl.scoring import (
    PaperScoring,
    Privacy,
    PublicMap,
    Release,
    ScoringRecipe,
    Step,
    spent,
)


class ScoringHead(LightningModule):
    """Fits, releases and applies the scoring head of one client.

    Training batches are (inputs, membership): membership is 1 for the client's own samples D_i and
    0 for the public negatives D^-; inputs are images if a model is given and features if not.
    One epoch collects the features; at its end the head is fitted, and the fit stops. ``release``
    adds noise, once; ``forward`` and ``predict`` apply the released weight. Logs ``train/auroc`` of
    the fit, and ``val/auroc``.

    The guarantee is for replacing one record. It assumes that a record of D_i occurs once in an
    epoch (no sampling with replacement), that h_0 maps each record by itself (BatchNorm by running
    statistics), and that the bound does not depend on private data. Rows are clipped to the bound
    and divided by it, so that their norm is at most 1 (Theorem 1).

    Args:
        model: h_0: the name of an architecture, or a module with ``features``, ``head`` and
            ``feature_dim``; None if batches hold features already. A module is not saved with
            the hyper-parameters: pass it again to ``load_from_checkpoint``.
        scoring: What the head is fitted by, as in ``FedAUX``, without class statistics. D^- are the
            public data of its feature map and calibration; vectors are not shrunk, because those
            of other clients are unknown. Another recipe than the default is not saved with the
            hyper-parameters, either.
        model_options: Further arguments of ``create_model``, such as ``in_channels``.

    Examples:
        >>> from fedaux_pl import MeanScoring
        >>> head = ScoringHead(scoring=MeanScoring())
        >>> head.fit_features(positives=torch.rand(40, 8) + 0.5, negatives=torch.rand(60, 8))
        >>> weight = head.release(epsilon=1.0, delta=1e-5)
        >>> head(torch.rand(5, 8)).shape, head.spent[1]
        (torch.Size([5]), 1e-05)
    """

    def __init__(
        self,
        model: str | nn.Module | None = None,
        scoring: ScoringRecipe = PaperScoring(),  # noqa: B008
        model_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        saved = {} if scoring == PaperScoring() else {"scoring": f"not saved: {scoring!r}"}
        save_arguments(self, model, ignore=["scoring"], **saved)
        self.automatic_optimization = False
        is_recipe = isinstance(scoring, ScoringRecipe)
        check_setting("scoring", scoring, is_recipe, "be a ScoringRecipe such as MeanScoring()")
        self.scoring = scoring.create(Privacy())  # which is replaced in each release
        self.scorer = self.scoring.scorer
        needs_labels = self.scorer.uses_labels
        check_setting("scoring", scoring, not needs_labels, "have a scorer that needs no labels")
        self.backbone: Any = None
        if model is not None:
            self.backbone = without_head(resolve_model(model, 1, model_options))
            check_separate_records(self.backbone)
        self.ledger: list[Release] = []
        self.weight: Tensor | None = None
        self.public_map: PublicMap | None = None  # of the released weight
        self.reference: Tensor | None = None  # its logits on D^-
        self._negatives: Tensor | None = None  # their rows
        self._fitted_map = PublicMap()
        self._fitted: Tensor | None = None  # before noise: see __getstate__
        self._sensitivity = math.inf
        self._collected: list[tuple[Tensor, Tensor]] = []
        self.val_auroc = BinaryAUROC()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the fit out of copies and pickles, such as ``torch.save(head)`` writes."""
        unfitted = {"_fitted": None, "_fitted_map": PublicMap(), "_negatives": None}
        return super().__getstate__() | unfitted | {"_collected": []}

    def fit_features(self, positives: Tensor, negatives: Tensor) -> None:
        """Fit the head to features h_0(x) of D_i, shape (|D_i|, d), and of D^-, (|D^-|, d)."""
        self._fit(positives, negatives)

    def _fit(self, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        """Fit the head and return the rows of norm at most 1 that it was fitted to."""
        for name, rows in (("samples of the client", positives), ("negatives", negatives)):
            if not len(rows):
                raise ValueError(
                    f"there are no {name}: the head separates a client's samples (membership 1) "
                    "from public negatives (membership 0), so give at least one of each"
                )
        self._fitted = None  # if this fit fails, an earlier one would get its sensitivity
        public_map = self.scoring.fit_map(negatives, negatives)
        self._fitted_map = self.scoring.client_map(public_map, positives)
        self._sensitivity = self.scoring.sensitivity(len(positives), len(negatives))
        rows = self._fitted_map.private_rows(positives)
        others = self._fitted_map.rows(negatives)
        self._fitted = self.scorer.vector(rows, negatives=others)
        self._negatives = others
        return rows, others

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """Compute h_0(x) in float32; without a model returns x itself."""
        if self.backbone is None:
            return x.float()
        check_inputs(self.backbone, x)
        features: Tensor = self.backbone.features(x)
        return features.float()

    def train(self, mode: bool = True) -> "ScoringHead":
        """Set the mode; h_0 is fixed and stays in evaluation mode."""
        super().train(mode)
        if self.backbone is not None:
            self.backbone.eval()
        return self

    def configure_optimizers(self) -> list[Any]:
        """Return no optimizer: a solver fits the head at the end of the epoch."""
        return []

    def on_train_start(self) -> None:
        """Check that there is one process."""
        self.train()  # the Trainer does not change the mode of modules
        if self.trainer.world_size > 1:
            raise PrivacyError(
                f"a scoring head is fitted in one process, but there are {self.trainer.world_size}:"
                " use Trainer(devices=1), and one process for each client"
            )

    def on_train_epoch_start(self) -> None:
        """Clear the collected features."""
        self._collected = []

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Collect features and membership."""
        inputs, member = unpack_pair(batch)
        if not bool(((member == 0) | (member == 1)).all()):
            raise ValueError(
                f"membership: got {member.min().item()} to {member.max().item()}; expected 1 for "
                "the client's samples and 0 for negatives: give no class labels"
            )
        # texts one by one: the longest of a batch changes how features of the others are rounded
        size = len(inputs) if getattr(self.backbone, "fixed_size_inputs", True) else 1
        rows = torch.cat([self.features(part) for part in torch.split(inputs, size)])
        self._collected.append((rows, member.bool()))

    def on_train_epoch_end(self) -> None:
        """Fit the head, log its AUROC, and stop the Trainer."""
        features = torch.cat([rows for rows, _ in self._collected])
        member = torch.cat([flags for _, flags in self._collected])
        self._collected = []
        rows, others = self._fit(features[member], features[~member])
        assert self._fitted is not None  # noqa: S101 - for mypy
        scores = torch.cat([rows, others]).cpu() @ self._fitted.cpu()
        self.log("train/auroc", binary_auroc(scores, torch.arange(len(scores)) < len(rows)))
        self.trainer.should_stop = True

    def release(
        self,
        epsilon: float,
        delta: float,
        mechanism: Mechanism = "analytic",
        compose: bool = False,
        noise_seed: int | None = None,
    ) -> Tensor:
        """Add noise to the fitted head, so that its release is (epsilon, delta)-private.

        Args:
            epsilon: Greater than 0.
            delta: Between 0 and 1, both excluded.
            mechanism: How the noise is calibrated, see ``gaussian_sigma``.
            compose: Whether to allow a second release, which reveals more about the same data and
                adds to ``spent``.
            noise_seed: None takes all noise from the operating system. A seed makes a simulation
                repeatable: the release guarantees nothing, and ``spent`` is infinite.

        Returns:
            The released weight, float64 of shape (d,), which ``forward`` applies.
        """
        if epsilon is None:
            raise PrivacyError("epsilon is None: call release_without_privacy to add no noise")
        return self._release(Privacy(epsilon, delta, mechanism), compose, noise_seed)

    def release_without_privacy(self, compose: bool = False) -> Tensor:
        """Release the fitted weight without noise and without any guarantee: for comparison."""
        return self._release(Privacy(epsilon=None), compose, None)

    def _release(self, privacy: Privacy, compose: bool, noise_seed: int | None) -> Tensor:
        if self._fitted is None or self._negatives is None:
            raise PrivacyError(
                "there is no fit to release: fit first (a checkpoint holds what was released, "
                "never the fit itself)"
            )
        if self.ledger and not compose:
            epsilon, delta = self.spent
            raise PrivacyError(
                f"this client has released its scoring head already, at ({epsilon:g}, {delta:g}): "
                "a second release costs more privacy; pass compose=True to make it anyway"
            )
        step = Step(replace(self.scoring, privacy=privacy))
        fitted = self._fitted
        head = step.add_noise(0, fitted, self._sensitivity, self._fitted_map, noise_seed)
        self.weight = head.weight
        self.public_map = head.public_map
        self.reference = self.weight @ self._negatives.cpu().T
        self.ledger.append(head.release)
        return self.weight

    @property
    def spent(self) -> tuple[float, float]:
        """The (epsilon, delta) of all releases together, see ``fedaux_pl.scoring.spent``."""
        return spent(self.ledger)

    def forward(self, x: Tensor) -> Tensor:
        """Compute s_i(x) with the released weight, shape (N,)."""
        if self.weight is None or self.public_map is None or self.reference is None:
            raise PrivacyError("nothing was released yet: call release(epsilon, delta) first")
        rows = self.public_map.rows(self.features(x))
        logits = self.weight.to(rows.device) @ rows.T
        return self.scoring.calibration.scores(logits, self.reference.to(rows.device))

    def predict_step(self, batch: Tensor | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Compute s_i(x), shape (N,)."""
        scores: Tensor = self(first_entry(batch))
        return scores

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Log the AUROC of the released scores as a classifier of membership."""
        if self.weight is not None:
            self.val_auroc.update(self(batch[0]), batch[1].long())
            self.log("val/auroc", self.val_auroc, on_step=False, on_epoch=True)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the released weight and its cost for the state dict; the fit is left out."""
        public_map = self.public_map
        return {
            "weight": self.weight,
            "reference": self.reference,
            "bound": None if public_map is None else public_map.bound,
            "map": {} if public_map is None else public_map.tensors(),
            "ledger": [asdict(release) for release in self.ledger],
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the released weight and its cost."""
        self.weight = state["weight"]
        bound = state["bound"]
        if bound is not None:
            unit = self.scoring.norm_bound == "unit"
            self.public_map = PublicMap(**state.get("map", {}), unit=unit, bound=bound)
            self.reference = state.get("reference", torch.zeros(1))  # a sigmoid needs none
        # Older states do not say where the noise came from: nothing is claimed for it.
        self.ledger = [Release(**{"simulated": True, **release}) for release in state["ledger"]]
