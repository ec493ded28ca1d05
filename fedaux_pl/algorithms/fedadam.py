"""FedAdam (Reddi et al. 2021, Algorithm 2): the server's optimizer is Adam."""

from fedaux_pl.algorithms.base import Aggregate, Algorithm, ServerState
from fedaux_pl.errors import check_setting, is_fraction, is_positive
from fedaux_pl.functional.averaging import State


class FedAdam(Algorithm):
    """The server takes a step of Adam, without bias correction, along Delta = average - theta.

        m <- beta1 m + (1 - beta1) Delta,    v <- beta2 v + (1 - beta2) Delta^2,
        theta <- theta + server_lr m / (sqrt(v) + tau)

    At first m is 0 and v is tau^2.

    Args:
        server_lr: The step size.
        beta1: The decay of m, in [0, 1).
        beta2: The decay of v, in [0, 1).
        tau: The adaptivity; parameters that change less than tau take smaller steps.
    """

    def __init__(
        self,
        server_lr: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        pretrained: bool = False,
    ) -> None:
        super().__init__(pretrained)
        for name, value in (("server_lr", server_lr), ("tau", tau)):
            check_setting(name, value, is_positive(value), "be a positive number")
        for name, value in (("beta1", beta1), ("beta2", beta2)):
            check_setting(name, value, is_fraction(value), "lie in [0, 1)")
        self.server_lr = server_lr
        self.beta1 = beta1
        self.beta2 = beta2
        self.tau = tau

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
