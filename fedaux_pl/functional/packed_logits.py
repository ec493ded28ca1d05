"""Logits in one byte each, for soft labels."""

import torch
from torch import Tensor

# The codes 0 to 255 of a sample's scale are powers of 2^(1/4): from 2^-40 to 2^23.75.
_SCALES = torch.pow(2.0, (torch.arange(256, dtype=torch.float64) - 160) / 4).float()
_LEVELS = 255


def pack_logits(logits: Tensor) -> Tensor:
    """Round logits f(x), shape (N, C), to bytes, shape (N, C + 1).

    Soft labels do not change if a constant is added to all logits of a sample. So only the distance
    to the largest logit is stored, in multiples of a scale that the last column holds. The scale is
    at most 2^(1/4) / 255 of the distance between the largest and the smallest logit, and a logit is
    wrong by at most half of it.

    Args:
        logits: Finite logits of any floating point type. Distances beyond 3.6e9 are cut off.

    Examples:
        >>> packed = pack_logits(torch.tensor([[3.0, 1.0, -2.0]]))
        >>> packed.shape, packed.dtype
        (torch.Size([1, 4]), torch.uint8)
        >>> unpack_logits(packed)
        tensor([[-0.0000, -2.0108, -4.9939]])
    """
    wide = logits.detach().float()
    distances = wide.amax(dim=1, keepdim=True) - wide
    scales = _SCALES.to(logits.device)
    smallest = distances.amax(dim=1) / _LEVELS
    codes = torch.searchsorted(scales, smallest).clamp(max=len(scales) - 1)
    levels = (distances / scales[codes][:, None]).round().clamp(max=_LEVELS)
    return torch.cat([levels, codes[:, None]], dim=1).to(torch.uint8)


def unpack_logits(packed: Tensor) -> Tensor:
    """The logits of ``pack_logits`` less the largest of each sample, shape (N, C), float32.

    They are NaN on the samples that ``spread_packed`` has marked.
    """
    scales = _SCALES.to(packed.device)[packed[:, -1].long()]
    marked = packed[:, :-1].amin(dim=1, keepdim=True) == _LEVELS
    return (-scales[:, None] * packed[:, :-1]).masked_fill(marked, torch.nan)


def spread_packed(packed: Tensor, chosen: Tensor) -> Tensor:
    """Return packed logits of the chosen ones of N samples as those of all, shape (N, C + 1).

    A sample that is not chosen is marked by the largest value in every column, which no packed
    logits have: the distance of the largest logit is 0.

    Args:
        packed: Shape (M, C + 1), see ``pack_logits``.
        chosen: Bool, shape (N,), M times true.

    Examples:
        >>> packed = pack_logits(torch.tensor([[3.0, 1.0]]))
        >>> unpack_logits(spread_packed(packed, torch.tensor([False, True])))
        tensor([[    nan,     nan],
                [-0.0000, -1.9975]])
    """
    full = packed.new_full((len(chosen), packed.shape[1]), _LEVELS)
    full[chosen] = packed
    return full
