"""Self-supervised pre-training of h_0 on text: language modeling on D_aux (FedAUX, 3.3).

The paper names next-token prediction (``next`` here) but cites BERT, whose task is masked language
modeling (Devlin et al. 2019). The default is ``masked``: each token attends to the whole text, as
it does when the features are used.
"""

from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaux_pl.errors import check_setting
from fedaux_pl.functional.masking import MaskedTokens, mask_tokens
from fedaux_pl.modules.batch_checks import check_inputs, first_entry
from fedaux_pl.modules.optimizers import OptimizerSettings
from fedaux_pl.modules.self_supervised import Batch, SelfSupervised

Objective = Literal["masked", "next"]

_NEEDED = ("states", "trimmed", "token_embedding", "vocabulary", "pad_id", "mask_id")


class LanguageModeling(SelfSupervised):
    """Learn features h of text by predicting tokens from the tokens around or before them.

    Training batches are token ids (N, L), alone or first in a tuple. As in BERT, a small network
    and the encoder's token embedding map a state to logits over the vocabulary. That network
    starts from random weights, also if the encoder is pre-trained. A step neither synchronizes
    with the device nor has shapes that depend on values, so it can be captured in a CUDA graph.
    Validation and ``forward`` are those of ``SelfSupervised``. Logs ``train/loss`` and, with
    labeled validation batches, ``val/knn_accuracy``. Arguments that are not listed are those of
    ``SimCLR``.

    Args:
        model: The name of an encoder of text, or a module like ``fedaux_pl.models.Encoder``; its
            head is not used. A module is not saved with the hyper-parameters: pass it again to
            ``load_from_checkpoint``.
        objective: ``masked`` masks tokens and predicts them; ``next`` predicts each token from
            those before it.
        mask_rate: The fraction of a text's tokens that is masked, for ``masked`` only.

    Examples:
        >>> import torch
        >>> from fedaux_pl import LanguageModeling
        >>> config = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1}
        >>> config |= {"num_attention_heads": 2, "intermediate_size": 32}
        >>> module = LanguageModeling("encoder", model_options={"config": config, "mask_id": 4})
        >>> ids = torch.randint(5, 60, (8, 12))  # 8 texts of 12 tokens
        >>> module.training_step(ids, 0).shape
        torch.Size([])
        >>> module(ids).shape
        torch.Size([8, 16])
    """

    def __init__(
        self,
        model: str | nn.Module = "tinybert",
        objective: Objective = "masked",
        mask_rate: float = 0.15,
        optimizer: OptimizerSettings = OptimizerSettings(lr=1e-4),  # noqa: B008 - frozen
        knn_k: int = 200,
        model_options: dict[str, Any] | None = None,
    ) -> None:
        check_language_modeling(objective, mask_rate)
        super().__init__(model, knn_k, optimizer, model_options)
        _check_encoder(self.backbone, objective)
        self.objective = objective
        self.mask_rate = mask_rate
        vocabulary, width = self.backbone.token_embedding.shape
        self.transform = nn.Sequential(
            nn.Linear(self.backbone.feature_dim, width), nn.GELU(), nn.LayerNorm(width)
        )
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def token_logits(self, states: Tensor) -> Tensor:
        """Map states (..., d) to logits over the vocabulary."""
        return F.linear(self.transform(states), self.backbone.token_embedding, self.bias)

    def check_batch(self, batch: Batch) -> None:
        """Raise a ValueError unless the inputs are token ids that the encoder can read."""
        check_inputs(self.backbone, first_entry(batch))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the mean cross-entropy of the predicted tokens."""
        h = self.backbone
        ids: Tensor = h.trimmed(first_entry(batch))
        if self.objective == "masked":
            masked = mask_tokens(ids, self.mask_rate, h.pad_id, h.mask_id, h.vocabulary)
            loss = self.masked_loss(masked)
        else:
            loss = self.next_token_loss(ids)
        self.log_training(loss, len(ids))
        return loss

    def masked_loss(self, masked: MaskedTokens) -> Tensor:
        """Compute the loss of masked language modeling."""
        states: Tensor = self.backbone.states(masked.ids)
        # Only masked positions: the logits of all positions would take gigabytes.
        index = masked.positions[:, :, None].expand(-1, -1, states.shape[-1])
        logits = self.token_logits(states.gather(1, index))
        return _weighted_cross_entropy(logits, masked.targets, masked.weights)

    def next_token_loss(self, ids: Tensor) -> Tensor:
        """Compute the loss of next-token prediction."""
        states: Tensor = self.backbone.states(ids, causal=True)
        targets = ids[:, 1:].long()
        logits = self.token_logits(states[:, :-1])
        return _weighted_cross_entropy(logits, targets, (targets != self.backbone.pad_id).float())


def check_language_modeling(objective: Objective, mask_rate: float) -> None:
    """Raise a ValueError for a wrong option."""
    check_setting("objective", objective, objective in get_args(Objective), "be masked or next")
    check_setting("mask_rate", mask_rate, 0 < mask_rate < 1, "lie strictly between 0 and 1")


def _weighted_cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of the cross-entropy; 0 if all weights are 0."""
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum().clamp(min=1)


def _check_encoder(encoder: Any, objective: Objective) -> None:
    missing = [name for name in _NEEDED if not hasattr(encoder, name)]
    if missing:
        raise TypeError(
            f"{type(encoder).__name__} lacks {', '.join(missing)}: language modeling "
            "needs an encoder of text (see fedaux_pl.models.Encoder)"
        )
    if objective == "next":
        return
    mask = encoder.mask_id
    if mask is None:
        raise ValueError(
            "the encoder has no mask token: set mask_id of the model, give it a source whose "
            "tokenizer has a mask token, or choose objective 'next'"
        )
    if mask >= encoder.vocabulary:
        raise ValueError(
            f"mask_id={mask} is no token of the encoder's vocabulary, 0 ... "
            f"{encoder.vocabulary - 1}: give model and tokenizer the same source"
        )
