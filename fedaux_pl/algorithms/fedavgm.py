"""FedAvgM (Hsu et al. 2019): FedAVG with momentum at the server."""

import torch

from fedaux_pl.algorithms.base import Aggregate, Algorithm, ServerState
from fedaux_pl.errors import check_setting, is_fraction, is_positive
from fedaux_pl.functional.averaging import State


class FedAvgM(Algorithm):
    """The server takes a step with momentum towards the clients' average.

        v <- beta v + (theta - average),    theta <- theta - server_lr v

    Args:
        server_lr: The step size; 1 with beta 0 is FedAVG.
        beta: The momentum, in [0, 1). The paper's 0.9 makes steps of up to 10 times the average's
            and needs many rounds, or a smaller server_lr.

    Examples:
        >>> FedAvgM(beta=0.9).settings()
        {'method': 'FedAvgM', 'pretrained': False, 'server_lr': 1.0, 'beta': 0.9}
    """

    def __init__(self, server_lr: float = 1.0, beta: float = 0.5, pretrained: bool = False) -> None:
        super().__init__(pretrained)
        check_setting("server_lr", server_lr, is_positive(server_lr), "be a positive number")
        check_setting("beta", beta, is_fraction(beta), "lie in [0, 1)")
        self.server_lr = server_lr
        self.beta = beta

    def server_step(self, aggregate: Aggregate) -> tuple[State, ServerState]:
        """The step with momentum, and the new v."""
        theta = {}
        velocity = {}
        for key, old in aggregate.kept("v").items():
            x = aggregate.theta[key]
            average = aggregate.average[key]
            velocity[key] = self.beta * old + (x - average)
            # theta - server_lr v in an order without rounding errors where this is the average
            step = torch.lerp(x, average, self.server_lr)
            theta[key] = step - self.server_lr * self.beta * old
        return theta, {"v": velocity}
