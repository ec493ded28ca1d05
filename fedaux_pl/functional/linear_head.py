"""A linear head that starts a student where its teacher is."""

import torch
from torch import Tensor

_LOWEST = 1e-6  # probabilities below count as this: their logarithms would decide the fit
_SMALLEST = 1e-12  # for features that are constant
_RIDGE = 1e-3  # of the mean variance of a feature


def fit_linear_head(features: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Fit g(h) = W h + b to the logarithms of probabilities, by ridge regression.

    Softmax ignores a constant added to all logits of a sample, so their mean is subtracted first.

    Args:
        features: h(x), shape (N, d).
        probabilities: Shape (N, C).

    Returns:
        W, shape (C, d), and b, shape (C,), float64.

    Examples:
        >>> features = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        >>> weight, bias = fit_linear_head(features, (features * 2).softmax(dim=1))
        >>> bool((weight - 2 * (torch.eye(3) - 1 / 3)).abs().max() < 0.01)
        True
    """
    x, logits = features.double(), probabilities.double().clamp(min=_LOWEST).log()
    logits = logits - logits.mean(dim=1, keepdim=True)
    center, level = x.mean(dim=0), logits.mean(dim=0)
    x = x - center
    gram = x.T @ x
    ridge = _RIDGE * gram.diagonal().mean().clamp(min=_SMALLEST)
    gram = gram + ridge * torch.eye(len(gram), dtype=x.dtype, device=x.device)
    weight = torch.linalg.solve(gram, x.T @ (logits - level)).T
    return weight, level - weight @ center
