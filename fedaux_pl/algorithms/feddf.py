"""FedDF (Lin et al. 2020): distillation from the mean of the clients' logits."""

from dataclasses import dataclass

from torch import Tensor

from fedaux_pl.algorithms.base import Algorithm
from fedaux_pl.algorithms.teachers import Teacher, Teachers
from fedaux_pl.functional import SoftLabelSum


@dataclass(frozen=True)
class FedDF(Algorithm):
    """Distills the average from the mean of the clients' logits: A_mean (FedAUX, eq. 2).

    Args:
        pretrained: Whether models start from h_0, learned on the auxiliary data (the paper's +P).
        remember: Whether absent clients continue to teach with their last logits. The 1,000 clients
            that took part most recently are remembered. The published method corresponds to false.

    Examples:
        >>> FedDF(pretrained=True, remember=True).name
        'FedDF+P with memory'
    """

    distills = True

    pretrained: bool = False
    remember: bool = False

    def weight(self, teacher: Teacher) -> Tensor | float:
        """A_mean: every teacher counts the same."""
        return 1.0

    def soft_labels(self, teachers: Teachers) -> Tensor:
        """softmax(sum_i s_i(x) f_i(x) / sum_i s_i(x)) over the teachers i, with weights s_i(x)."""
        total = SoftLabelSum()
        for teacher in teachers:
            total.add(teacher.logits, self.weight(teacher))
        return total.result()
