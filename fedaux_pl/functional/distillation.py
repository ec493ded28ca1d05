"""Ensemble distillation: the soft labels of the teachers and the loss of the student.

A_mean (FedAUX, eq. 2; Lin et al. 2020) and A_s (FedAUX, eq. 3) aggregate the clients' logits
before the softmax; the student minimises D_KL(A, softmax(f(x))) (FedAUX, eq. 1).
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def soft_labels(logits: Tensor, scores: Tensor | None = None) -> Tensor:
    """Aggregates the logits of K teachers into one distribution over the classes a sample.

    Without scores this is A_mean = softmax(sum_i f_i(x) / K), with scores
    A_s = softmax(sum_i s_i(x) f_i(x) / sum_i s_i(x)).

    Args:
        logits: f_i(x), shape (K, N, C).
        scores: s_i(x), shape (K, N), non-negative and not all 0 for any sample; or None.

    Returns:
        Probabilities of shape (N, C), in float32 or the logits' dtype if that is wider.
    """
    if logits.ndim != 3:
        raise ValueError(
            f"logits must be (teachers, samples, classes), but are {tuple(logits.shape)}"
        )
    if logits.shape[0] == 0:
        raise ValueError("there are no teachers: logits have shape " + str(tuple(logits.shape)))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if scores is None:
        return logits.mean(dim=0).softmax(dim=-1)
    if scores.shape != logits.shape[:2]:
        raise ValueError(
            f"scores must be (teachers, samples) = {tuple(logits.shape[:2])}, "
            f"but are {tuple(scores.shape)}"
        )
    if bool((scores < 0).any()):
        raise ValueError(f"scores must not be negative, but the smallest is {scores.min().item()}")
    scores = scores.to(logits.dtype)
    total = scores.sum(dim=0)
    if not bool((total > 0).all()):
        raise ValueError(
            f"the scores of sample {int((~(total > 0)).nonzero()[0])} do not sum to a positive "
            "number: add a small xi to them"
        )
    return (torch.einsum("kn,knc->nc", scores, logits) / total[:, None]).softmax(dim=-1)


class SoftLabelSum:
    """A_mean or A_s teacher by teacher: sum_i s_i f_i and sum_i s_i, for any number of teachers.

    Adding K teachers and asking for the result is ``soft_labels`` of their K logits, without ever
    holding more than one of them.
    """

    def __init__(self) -> None:
        self._weighted: Tensor | None = None
        self._weight: Tensor | None = None
        self._teachers = 0

    def add(self, logits: Tensor, scores: Tensor | None = None) -> None:
        """Adds f_i(x), shape (N, C), with s_i(x), shape (N,), or with weight 1."""
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        weight = torch.ones_like(wide[:, 0]) if scores is None else scores.to(wide)
        weighted = weight[:, None] * wide
        self._weighted = weighted if self._weighted is None else self._weighted + weighted
        self._weight = weight if self._weight is None else self._weight + weight
        self._teachers += 1

    def join(self, total: Callable[[Sequence[Tensor]], list[Tensor]], like: Tensor) -> None:
        """Adds the teachers of other processes.

        Args:
            total: Sums tensors over all processes.
            like: Of the shape and on the device of a teacher's logits, where there may be none.
        """
        nobody = torch.zeros_like(like, dtype=torch.promote_types(like.dtype, torch.float32))
        weighted = nobody if self._weighted is None else self._weighted
        weight = nobody.new_zeros(len(nobody)) if self._weight is None else self._weight
        count = nobody.new_tensor(self._teachers)
        self._weighted, self._weight, count = total([weighted, weight, count])
        self._teachers = int(count)

    def result(self) -> Tensor:
        """The soft labels of the teachers so far, shape (N, C)."""
        if self._weighted is None or self._weight is None or not self._teachers:
            raise ValueError("there are no teachers: add at least one")
        return (self._weighted / self._weight[:, None]).softmax(dim=-1)


def distillation_loss(student_logits: Tensor, targets: Tensor) -> Tensor:
    """Computes D_KL(targets, softmax(student_logits)), the mean over the batch.

    Args:
        student_logits: f(x, theta), shape (N, C).
        targets: Probabilities of the teachers, shape (N, C), rows summing to 1.

    Returns:
        A scalar, 0 exactly where student and teachers agree.
    """
    if student_logits.shape != targets.shape or student_logits.ndim != 2:
        raise ValueError(
            "student logits and targets must both be (samples, classes), but are "
            f"{tuple(student_logits.shape)} and {tuple(targets.shape)}"
        )
    return F.kl_div(student_logits.log_softmax(dim=-1), targets, reduction="batchmean")
