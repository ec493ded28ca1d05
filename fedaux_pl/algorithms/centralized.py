"""Centralized training: one model on all private data, a reference line of the paper's figures."""

from collections.abc import Mapping

from fedaux_pl.algorithms.base import Algorithm
from fedaux_pl.errors import ConfigurationError


class Centralized(Algorithm):
    """Trains one model on all private data: FedAVG with a single client that holds everything.

    A round is ``local.epochs`` epochs of ordinary training. The optimizer goes on from round to
    round, as in a training without rounds. ``data.alpha`` and
    ``participation`` change nothing: the only client holds all samples and always takes part.
    """

    keeps_optimizer = True

    def check_architectures(self, clients: Mapping[str, int]) -> None:
        """Raise a ConfigurationError unless there is one client of one architecture."""
        if sum(clients.values()) != 1:
            raise ConfigurationError(
                f"Centralized trains one model on all data, but clients is {dict(clients)}: set it "
                "to one client of one architecture "
                f"(--model.clients '{{{next(iter(clients))}: 1}}')"
            )
