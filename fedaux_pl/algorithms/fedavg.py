"""FedAVG (McMahan et al. 2017): average the clients' weights."""

from fedaux_pl.algorithms.base import Algorithm


class FedAvg(Algorithm):
    """Averages the weights of the selected clients by |D_i|, and that is all.

    Args:
        pretrained: Whether models start from features h_0 that were learned on the auxiliary data
            (FedAVG+P), or from random weights.
    """
