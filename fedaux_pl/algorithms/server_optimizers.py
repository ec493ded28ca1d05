"""FedAVG with another step of the server than to the average: FedAvgM and FedAdam."""

from dataclasses import dataclass

import torch

from fedaux_pl.algorithms.aggregate import Aggregate, ServerState
from fedaux_pl.algorithms.base import Algorithm
from fedaux_pl.errors import check_setting, is_fraction, is_positive
from fedaux_pl.functional.averaging import State


@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """The server takes a step with momentum towards the clients' average (Hsu et al. 2019).

        v <- beta v + (theta - average),    theta <- theta - server_lr v

    Args:
        server_lr: The step size; 1 with beta 0 is FedAVG.
        beta: The momentum, in [0, 1). The paper's 0.9 makes steps of up to 10 times the average's
            and needs many rounds, or a smaller server_lr.
        pretrained: Whether models start from h_0, learned on the auxiliary data (the paper's +P).

    Examples:
        >>> FedAvgM(beta=0.9).settings()
        {'method': 'FedAvgM', 'pretrained': False, 'server_lr': 1.0, 'beta': 0.9}
    """

    server_lr: float = 1.0
    beta: float = 0.5
    pretrained: bool = False

    def __post_init__(self) -> None:
        is_valid = is_positive(self.server_lr)
        check_setting("server_lr", self.server_lr, is_valid, "be a positive number")
        check_setting("beta", self.beta, is_fraction(self.beta), "lie in [0, 1)")

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


@dataclass(frozen=True)
class FedAdam(Algorithm):
    """The server takes a step of Adam along Delta = average - theta (Reddi et al. 2021).

        m <- beta1 m + (1 - beta1) Delta,    v <- beta2 v + (1 - beta2) Delta^2,
        theta <- theta + server_lr m / (sqrt(v) + tau)

    This is the paper's Algorithm 2, without bias correction. At first m is 0 and v is tau^2.

    Args:
        server_lr: The step size.
        beta1: The decay of m, in [0, 1).
        beta2: The decay of v, in [0, 1).
        tau: The adaptivity; parameters that change less than tau take smaller steps.
        pretrained: Whether models start from h_0, learned on the auxiliary data (the paper's +P).
    """

    server_lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    pretrained: bool = False

    def __post_init__(self) -> None:
        for name, value in (("server_lr", self.server_lr), ("tau", self.tau)):
            check_setting(name, value, is_positive(value), "be a positive number")
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            check_setting(name, value, is_fraction(value), "lie in [0, 1)")

    def server_step(self, aggregate: Aggregate) -> tuple[State, ServerState]:
        """The step of Adam, and the new m and v."""
        m = dict(aggregate.kept("m"))
        v = dict(aggregate.kept("v", initial=self.tau**2))
        theta = {}
        for key, x in aggregate.theta.items():
            delta = aggregate.average[key] - x
            m[key] = self.beta1 * m[key] + (1 - self.beta1) * delta
            v[key] = self.beta2 * v[key] + (1 - self.beta2) * delta.square()
            theta[key] = x + self.server_lr * m[key] / (v[key].sqrt() + self.tau)
        return theta, {"m": m, "v": v}
