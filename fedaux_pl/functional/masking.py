"""Which tokens are hidden in masked-language modelling (Devlin et al. 2019, 3.1)."""

from typing import NamedTuple

import torch
from torch import Tensor

_MASKED, _RANDOM = 0.8, 0.1  # of the hidden tokens; the rest stays as it is


class Masked(NamedTuple):
    """Token ids of which some are hidden.

    Attributes:
        ids: What the encoder sees, shape (N, L).
        positions: Where tokens were chosen, shape (N, K) for a K that depends on L alone.
        targets: The tokens that were there, shape (N, K).
        weights: 1 where the choice counts, 0 where a text has fewer to hide than K.
    """

    ids: Tensor
    positions: Tensor
    targets: Tensor
    weights: Tensor


def hide_tokens(ids: Tensor, rate: float, pad_id: int, mask_id: int, vocabulary: int) -> Masked:
    """Chooses a share of each text's tokens, and hides most of them.

    Of a text's n tokens between its first and its last, which frame it, round(rate n), but at
    least one, are chosen at random. Of these 80 % become the mask token, 10 % any token, and 10 %
    stay, each by its own draw. All shapes depend on those of ``ids`` alone, and nothing waits for
    the device.

    Args:
        ids: Token ids (N, L), padded at the end.
        rate: The share of the tokens that is chosen.
        pad_id: The padding's id.
        mask_id: The mask token's id.
        vocabulary: The number of ids to draw any token from.
    """
    batch, length = ids.shape
    positions = torch.arange(length, device=ids.device)
    sizes = (ids != pad_id).sum(dim=1, keepdim=True)
    inner = (positions > 0) & (positions < sizes - 1)
    order = torch.rand(batch, length, device=ids.device).masked_fill(~inner, 2.0)
    most = max(1, round(rate * max(length - 2, 0)))
    chosen = order.topk(min(most, length), dim=1, largest=False).indices
    inside = inner.sum(dim=1, keepdim=True)
    count = torch.minimum((inside * rate).round().clamp(min=1), inside)
    weights = torch.arange(chosen.shape[1], device=ids.device) < count
    targets = ids.gather(1, chosen)
    draw = torch.rand(chosen.shape, device=ids.device)
    anything = torch.randint(vocabulary, chosen.shape, device=ids.device, dtype=ids.dtype)
    shown = torch.where(draw < _MASKED, torch.full_like(targets, mask_id), anything)
    shown = torch.where(draw < _MASKED + _RANDOM, shown, targets)
    seen = ids.scatter(1, chosen, torch.where(weights, shown, targets))
    return Masked(seen, chosen, targets.long(), weights.float())
