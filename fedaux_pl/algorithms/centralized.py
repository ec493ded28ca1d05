"""Centralized training: one model on all private data, a reference line of the paper's figures."""

from dataclasses import dataclass

from fedaux_pl.algorithms.base import Algorithm, RunOptions
from fedaux_pl.errors import ConfigurationError


@dataclass(frozen=True)
class Centralized(Algorithm):
    """Trains one model on all private data: FedAVG with a single client that holds everything.

    A round is ``local.epochs`` epochs of ordinary training. The optimizer continues from round to
    round, as in a training without rounds. ``data.alpha`` and ``participation`` have no effect,
    because the only client holds all samples and always takes part.

    Args:
        pretrained: Whether the model starts from h_0, learned on the auxiliary data.
    """

    keeps_optimizer = True

    pretrained: bool = False

    def check(self, options: RunOptions) -> None:
        """Raise a ConfigurationError unless there is one client of one architecture."""
        clients = options.clients
        if sum(clients.values()) != 1:
            raise ConfigurationError(
                f"Centralized trains one model on all data, but clients is {dict(clients)}: set it "
                "to one client of one architecture "
                f"(--model.clients '{{{next(iter(clients))}: 1}}')"
            )
