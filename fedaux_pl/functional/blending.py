"""Models between the average and the distilled one, and the clients' votes for them.

    theta(lambda) = theta_avg + lambda (theta_dist - theta_avg)

A client's vote for a model is the sum of max(log p(y | x), -4) over the records that it holds out
or, if it holds out none, over its training records. A replaced record changes the vote of one model
by at most 4.
"""

from collections.abc import Sequence

from torch import Tensor

from fedaux_pl.functional.averaging import State

LEAST_LOG_LIKELIHOOD = -4.0


def blend_states(average: State, distilled: State, weight: float) -> State:
    """Return theta(lambda) with ``weight`` lambda; floating-point buffers are blended, too.

    Integers, such as BatchNorm's counter of batches, are those of the distilled model.

    Examples:
        >>> import torch
        >>> zero, four = {"weight": torch.tensor([0.0])}, {"weight": torch.tensor([4.0])}
        >>> blend_states(zero, four, 0.25)
        {'weight': tensor([1.])}
    """
    if weight == 1:
        return distilled
    blended = {}
    for key, tensor in distilled.items():
        blended[key] = tensor
        if tensor.is_floating_point():
            start = average[key].to(tensor.device)
            blended[key] = start if weight == 0 else start.lerp(tensor, weight)
    return blended


def clipped_log_likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of max(log p(y | x), -4) over N records, as float64.

    Examples:
        >>> import torch
        >>> clipped_log_likelihood(torch.tensor([[0.0, 0.0], [0.0, 9.0]]), torch.tensor([0, 0]))
        tensor(-4.6931, dtype=torch.float64)
    """
    log_likelihoods = logits.double().log_softmax(dim=1).gather(1, labels.long()[:, None])
    return log_likelihoods.clamp(LEAST_LOG_LIKELIHOOD, 0.0).nan_to_num(LEAST_LOG_LIKELIHOOD).sum()


def most_votes(votes: Sequence[float]) -> int:
    """Return the position of the largest number, the first of equal ones.

    Examples:
        >>> most_votes([-3.0, -1.0, -1.0])
        1
    """
    return max(range(len(votes)), key=votes.__getitem__)
