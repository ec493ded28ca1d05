"""The soft labels of an ensemble of teachers, and logits in one byte each for them.

A_mean (FedAUX, eq. 2; Lin et al. 2020) and A_s (FedAUX, eq. 3) aggregate the clients' logits
before the softmax.
"""

import torch
from torch import Tensor

from fedaux_pl.errors import check_setting

MAX_SHARPNESS = 20.0

# The codes 0 to 255 of a sample's scale are powers of 2^(1/4): from 2^-40 to 2^23.75.
_SCALES = torch.pow(2.0, (torch.arange(256, dtype=torch.float64) - 160) / 4).float()
_LEVELS = 255


def soft_labels(logits: Tensor, scores: Tensor | None = None) -> Tensor:
    """Aggregate the logits of K teachers into class probabilities of each sample.

    Without scores this is A_mean(x) = softmax(sum_i f_i(x) / K), with scores it is
    A_s(x) = softmax(sum_i s_i(x) f_i(x) / sum_i s_i(x)). Logits have the shape (K, N, C), scores
    (K, N); these are non-negative and not all 0 for any sample.

    Examples:
        >>> logits = torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]])  # 2 teachers, 1 sample, 2 classes
        >>> soft_labels(logits)
        tensor([[0.5000, 0.5000]])
        >>> soft_labels(logits, scores=torch.tensor([[3.0], [1.0]]))
        tensor([[0.7311, 0.2689]])
    """
    shape = tuple(logits.shape)
    expected = "have the shape (teachers, samples, classes) with at least one teacher"
    check_setting("logits", shape, len(shape) == 3 and shape[0] > 0, expected)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if scores is None:
        return logits.mean(dim=0).softmax(dim=-1)
    scores = scores.to(logits.dtype)
    total = scores.sum(dim=0)
    if bool((scores < 0).any()) or not bool((total > 0).all()):
        raise ValueError(
            f"scores: got {float(scores.min())} and a sum of {float(total.min())}; expected at "
            "least 0, with a positive sum for each sample: add a small xi"
        )
    mean = torch.einsum("kn,knc->nc", scores, logits) / total[:, None]
    return mean.softmax(dim=-1)


def standardized_labels(logits: Tensor, reference: Tensor, sharpness: float) -> Tensor:
    """Compute softmax(sharpness z) of the logits of each class, standardized over public data.

    Noise and unequal class sizes make some classes win too often. After standardization all
    classes have the same mean and variance over the public data. ``logits`` are f(x) on the data
    to label, shape (N, C), ``reference`` those on D_distill, shape (M, C); ``sharpness``, above 0
    and at most 20, says how far labels are from uniform.

    Examples:
        >>> reference = torch.tensor([[1.0, 90.0], [3.0, 110.0]])
        >>> standardized_labels(torch.tensor([[3.0, 100.0]]), reference, sharpness=1.0)
        tensor([[0.7311, 0.2689]])
    """
    expected = f"be above 0 and at most {MAX_SHARPNESS:g}"
    check_setting("sharpness", sharpness, 0 < sharpness <= MAX_SHARPNESS, expected)
    std = reference.std(dim=0, correction=0)
    scale = torch.where(std > 0, std, 1.0)
    z = (logits - reference.mean(dim=0)) / scale
    return (sharpness * z).softmax(dim=1)


class SoftLabelSum:
    """Soft labels computed teacher by teacher: sums of s_i(x) f_i(x) and s_i(x).

    The result is that of ``soft_labels``, but only one teacher's logits are in memory at a time.

    Examples:
        >>> labels = SoftLabelSum()
        >>> labels.add(torch.tensor([[2.0, 0.0]]), scores=torch.tensor([3.0]))
        >>> labels.add(torch.tensor([[0.0, 2.0]]), scores=torch.tensor([1.0]))
        >>> labels.result()
        tensor([[0.7311, 0.2689]])
    """

    def __init__(self) -> None:
        self._weighted_logits: Tensor | float = 0.0
        self._weights: Tensor | float = 0.0

    def add(self, logits: Tensor, scores: Tensor | float = 1.0) -> None:
        """Add a teacher's logits f_i(x), shape (N, C); s_i(x) has shape (N,) or is a number."""
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        weights = torch.as_tensor(scores).to(wide).expand(len(wide))
        self._weighted_logits = self._weighted_logits + weights[:, None] * wide
        self._weights = self._weights + weights

    def result(self) -> Tensor:
        """Compute the soft labels of all added teachers, shape (N, C)."""
        return self.logits().softmax(dim=-1)

    def logits(self) -> Tensor:
        """Compute sum_i s_i(x) f_i(x) / sum_i s_i(x), shape (N, C)."""
        if not isinstance(self._weights, Tensor):
            raise ValueError("there are no teachers: add at least one")
        return self._weighted_logits / self._weights[:, None]


def pack_logits(logits: Tensor) -> Tensor:
    """Round logits f(x), shape (N, C), to bytes, shape (N, C + 1).

    Soft labels do not change if a constant is added to all logits of a sample. So only the distance
    to the largest logit is stored, in multiples of a scale that the last column holds. The scale is
    at most 2^(1/4) / 255 of the distance between the largest and the smallest logit, and a logit is
    wrong by at most half of it. Distances beyond 3.6e9 are cut off.

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
    smallest = distances.amax(dim=1, keepdim=True) / _LEVELS
    codes = torch.searchsorted(scales, smallest).clamp(max=len(scales) - 1)
    levels = (distances / scales[codes]).round().clamp(max=_LEVELS)
    return torch.cat([levels, codes], dim=1).to(torch.uint8)


def unpack_logits(packed: Tensor) -> Tensor:
    """The logits of ``pack_logits`` less the largest of each sample, shape (N, C), float32."""
    scales = _SCALES.to(packed.device)[packed[:, -1:].long()]
    return -scales * packed[:, :-1]
