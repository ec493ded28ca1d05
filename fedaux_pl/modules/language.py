"""Self-supervised pre-training of h_0 on text: a language model on D_aux (FedAUX, 3.3).

The paper speaks of next-token prediction and cites BERT, whose task is masked-language modelling
(Devlin et al. 2019). TinyBERT and its kin are built for the latter, which lets every token see the
whole text, as it does when the features are used: so ``masked`` is the default here, and ``next``
is there for those who want the paper's words.
"""

from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaux_pl.functional.masking import Masked, hide_tokens
from fedaux_pl.modules.backbone import resolve_model, unsaved
from fedaux_pl.modules.optimizers import OptimizerName
from fedaux_pl.modules.selfsupervised import Batch, SelfSupervised

Objective = Literal["masked", "next"]

_NEEDED = ("states", "trimmed", "token_embedding", "vocabulary", "pad_id", "mask_id")


class LanguageModelling(SelfSupervised):
    """Learns features h of text by guessing tokens from those around them, or before them.

    Training batches are token ids (N, L), alone or first in a tuple. Guesses are read off the
    states by a small network and the encoder's own token vectors, as in BERT; that network is
    drawn anew, also where the encoder's weights are given. No step waits for the device, and no
    shape depends on values, so that a step can be captured in a CUDA graph.

    Args:
        model: The name of an encoder, or such a module (see ``fedaux_pl.models.Encoder``), whose
            head is not used. A module is not saved with the hyper-parameters: give it again to
            ``load_from_checkpoint``.
        objective: ``masked`` hides tokens and guesses them; ``next`` guesses each from those
            before it.
        mask_rate: The share of a text's tokens that is hidden, of ``masked`` alone.
        optimizer: ``adam``, ``adamw`` or ``sgd``.
        lr: The learning rate.
        momentum: Of sgd alone.
        weight_decay: At least 0.
        knn_k: The number of neighbours of the kNN accuracy.
        model_options: Further arguments of ``create_model``, such as ``source``.
    """

    def __init__(
        self,
        model: str | nn.Module = "tinybert",
        objective: Objective = "masked",
        mask_rate: float = 0.15,
        optimizer: OptimizerName = "adam",
        lr: float = 1e-4,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        knn_k: int = 200,
        model_options: dict[str, Any] | None = None,
    ) -> None:
        if objective not in get_args(Objective):
            raise ValueError(f"objective must be 'masked' or 'next', but is {objective!r}")
        if not 0 < mask_rate < 1:
            raise ValueError(f"mask_rate must lie strictly between 0 and 1, but is {mask_rate}")
        super().__init__(resolve_model(model, 1, model_options), knn_k)
        if lacking := [name for name in _NEEDED if not hasattr(self.backbone, name)]:
            raise TypeError(
                f"{type(self.backbone).__name__} lacks {', '.join(lacking)}: language modelling "
                "needs an encoder of text (see fedaux_pl.models.Encoder)"
            )
        if objective == "masked":
            _check_mask(self.backbone)
        self.save_hyperparameters(ignore=unsaved(model))
        self.objective = objective
        self.mask_rate = mask_rate
        vocabulary, width = self._vectors.shape
        self.transform = nn.Sequential(
            nn.Linear(int(self.backbone.feature_dim), width),  # type: ignore[arg-type]
            nn.GELU(),
            nn.LayerNorm(width),
        )
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.set_optimizer(optimizer, lr, momentum, weight_decay)

    @property
    def _vectors(self) -> Tensor:
        vectors = self.backbone.token_embedding
        assert isinstance(vectors, Tensor)  # noqa: S101 - for mypy
        return vectors

    def guesses(self, states: Tensor) -> Tensor:
        """What a state says about its token: logits over the vocabulary."""
        return F.linear(self.transform(states), self._vectors, self.bias)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The mean cross-entropy of the guesses."""
        backbone: Any = self.backbone
        ids: Tensor = backbone.trimmed(batch if isinstance(batch, Tensor) else batch[0])
        loss = self._masked(ids) if self.objective == "masked" else self._next(ids)
        self.log_training(loss, len(ids))
        return loss

    def _masked(self, ids: Tensor) -> Tensor:
        backbone: Any = self.backbone
        hidden = hide_tokens(
            ids, self.mask_rate, backbone.pad_id, backbone.mask_id, backbone.vocabulary
        )
        return self.masked_loss(hidden)

    def masked_loss(self, hidden: Masked) -> Tensor:
        """The loss for tokens that are hidden already."""
        backbone: Any = self.backbone
        states: Tensor = backbone.states(hidden.ids)
        # Only where a token is hidden: over all positions the logits would take gigabytes.
        where = hidden.positions[:, :, None].expand(-1, -1, states.shape[-1])
        return _mean(self.guesses(states.gather(1, where)), hidden.targets, hidden.weights)

    def _next(self, ids: Tensor) -> Tensor:
        backbone: Any = self.backbone
        states: Tensor = backbone.states(ids, causal=True)
        targets = ids[:, 1:].long()
        return _mean(self.guesses(states[:, :-1]), targets, (targets != backbone.pad_id).float())


def _mean(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean of the cross-entropy; 0 where nothing has weight."""
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum().clamp(min=1)


def _check_mask(encoder: Any) -> None:
    """Refuses an encoder of which nobody says, or says wrongly, which token hides another."""
    mask, words = encoder.mask_id, encoder.vocabulary
    if mask is None:
        raise ValueError(
            "nobody says which token hides another: set mask_id of the model, give it a source "
            "whose tokenizer has a mask token, or choose objective 'next'"
        )
    if mask >= words:
        raise ValueError(
            f"mask_id={mask} is no token of the encoder's vocabulary, 0 ... {words - 1}; give "
            "model and tokenizer the same source"
        )
