"""The masked tokens of masked language modeling (Devlin et al. 2019, 3.1)."""

from typing import NamedTuple

import torch
from torch import Tensor

# fractions of the chosen tokens; the others keep their value
_MASKED = 0.8
_RANDOM = 0.1


class MaskedTokens(NamedTuple):
    """Token ids of which some are masked; K depends on L and the rate only."""

    ids: Tensor  # (N, L), the inputs of the encoder
    positions: Tensor  # (N, K), the chosen ones
    targets: Tensor  # (N, K), the tokens at these positions before masking
    weights: Tensor  # (N, K), 1 for a chosen position, 0 where a text has fewer than K of them


def mask_tokens(
    ids: Tensor,
    rate: float,
    pad_id: int,
    mask_id: int,
    vocabulary: int,
) -> MaskedTokens:
    """Choose a fraction of each text's tokens at random and mask most of them.

    Of the n tokens between the first and the last of a text, which are special tokens,
    max(1, round(rate n)) are chosen. Each chosen token is replaced by the mask token with
    probability 80 %, by a random token with probability 10 %, and unchanged otherwise. No shape
    depends on values, and nothing synchronizes with the device. ``ids``, shape (N, L), are padded
    at the end; ``vocabulary`` is their number.

    Examples:
        >>> ids = torch.tensor([[2, 7, 8, 9, 3, 0], [2, 7, 3, 0, 0, 0]])
        >>> masked = mask_tokens(ids, rate=0.5, pad_id=0, mask_id=4, vocabulary=10)
        >>> masked.weights  # two tokens of the first text, one of the second
        tensor([[1., 1.],
                [1., 0.]])
    """
    batch, length = ids.shape
    positions = torch.arange(length, device=ids.device)
    lengths = (ids != pad_id).sum(dim=1, keepdim=True)
    inner = (positions > 0) & (positions < lengths - 1)
    order = torch.rand(batch, length, device=ids.device).masked_fill(~inner, 2.0)
    most = max(1, round(rate * max(length - 2, 0)))
    chosen = order.topk(min(most, length), dim=1, largest=False).indices
    available = inner.sum(dim=1, keepdim=True)
    count = torch.minimum((available * rate).round().clamp(min=1), available)
    weights = torch.arange(chosen.shape[1], device=ids.device) < count
    targets = ids.gather(1, chosen)
    draw = torch.rand(chosen.shape, device=ids.device)
    random = torch.randint(vocabulary, chosen.shape, device=ids.device, dtype=ids.dtype)
    inputs = random.masked_fill(draw < _MASKED, mask_id)
    is_changed = weights & (draw < _MASKED + _RANDOM)
    masked_ids = ids.scatter(1, chosen, torch.where(is_changed, inputs, targets))
    return MaskedTokens(masked_ids, chosen, targets.long(), weights.float())
