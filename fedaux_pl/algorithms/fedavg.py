"""FedAVG (McMahan et al. 2017): the average of the clients' weights."""

from fedaux_pl.algorithms.base import Algorithm


class FedAvg(Algorithm):
    """Averages the weights of the selected clients by |D_i|.

    Examples:
        >>> FedAvg(pretrained=True).name
        'FedAvg+P'
    """
