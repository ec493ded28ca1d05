"""FedAVG (McMahan et al. 2017): the average of the clients' weights."""

from dataclasses import dataclass

from fedaux_pl.algorithms.base import Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Averages the weights of the selected clients by |D_i|.

    Args:
        pretrained: Whether models start from h_0, learned on the auxiliary data (the paper's +P).

    Examples:
        >>> FedAvg(pretrained=True).name
        'FedAvg+P'
    """

    pretrained: bool = False
