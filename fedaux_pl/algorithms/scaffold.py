"""SCAFFOLD (Karimireddy et al. 2020): control variates correct the drift of the clients."""

from dataclasses import dataclass

import torch

from fedaux_pl.algorithms.aggregate import Aggregate, ServerState
from fedaux_pl.algorithms.base import Algorithm, RunOptions
from fedaux_pl.algorithms.updates import LocalResult
from fedaux_pl.errors import ConfigurationError, check_setting, is_positive
from fedaux_pl.functional.averaging import State


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Clients add c - c_i to their gradients, the difference of the server's and their own mean.

    After K steps of SGD from x to y_i, a client has the new control variate (option II of the
    paper) c_i+ = c_i - c + (x - y_i) / (K lr), and sends its change with its weights. The server
    has the paper's equations, with weights |D_i| in place of equal ones:

        x <- x + server_lr (average - x),    c <- c + sum_i |D_i| (c_i+ - c_i) / |D|

    The sum is over the clients of the round, and |D| is the number of samples of all clients of the
    architecture: c is the mean of all c_i by |D_i|. Option II is exact for plain SGD alone.

    Args:
        server_lr: The step size of the server; 1 gives the average.
        pretrained: Whether models start from h_0, learned on the auxiliary data (the paper's +P).
    """

    server_lr: float = 1.0
    pretrained: bool = False

    def __post_init__(self) -> None:
        is_valid = is_positive(self.server_lr)
        check_setting("server_lr", self.server_lr, is_valid, "be a positive number")

    def check(self, options: RunOptions) -> None:
        """Raise a ConfigurationError unless clients take K steps of plain SGD."""
        plain = {"optimizer": "sgd", "momentum": 0, "weight_decay": 0, "clip_norm": None}
        for name, needed in plain.items():
            if options.local[name] != needed:
                value = "null" if needed is None else needed
                raise ConfigurationError(
                    f"Scaffold needs plain SGD at the clients, but local.{name} is "
                    f"{options.local[name]}: set it to {value} (--model.local.{name} {value})"
                )
        if options.precision == "16-mixed":
            raise ConfigurationError(
                "Scaffold counts the clients' steps, but trainer.precision 16-mixed skips some of "
                "them: set it to bf16-mixed or 32-true"
            )

    def server_payload(self, state: ServerState) -> State:
        """The server sends c."""
        return state.get("c", {})

    def correction(self, received: State, kept: State) -> State:
        """The client adds c - c_i to its gradients."""
        return {key: c - kept.get(key, 0) for key, c in received.items()}

    def client_payload(self, result: LocalResult) -> tuple[State, State]:
        """The client sends c_i+ - c_i and keeps c_i+."""
        scale = result.steps * result.lr
        change = {}
        kept = {}
        for key, x in result.start.items():
            change[key] = (x - result.end[key]) / scale - result.received.get(key, 0)
            kept[key] = result.kept.get(key, 0) + change[key]
        return change, kept

    def server_step(self, aggregate: Aggregate) -> tuple[State, ServerState]:
        """The server moves to x + server_lr (average - x) and keeps c."""
        theta = {}
        c = {}
        for key, old in aggregate.kept("c").items():
            theta[key] = torch.lerp(aggregate.theta[key], aggregate.average[key], self.server_lr)
            c[key] = old + aggregate.fraction * aggregate.payload[key]
        return theta, {"c": c}
