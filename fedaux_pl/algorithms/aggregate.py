"""What a server step works on: the server's model, and the average of the clients' models."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from fedaux_pl.functional.averaging import State

ServerState = Mapping[str, State]
"""Tensors that a server step keeps for the next round, by the method's names for them."""


@dataclass(frozen=True)
class Aggregate:
    """The averages of a round over the clients of one architecture.

    ``theta`` and ``average`` hold only the trained parameters. Buffers always take the average, and
    an h that is not trained stays as it is.

    Examples:
        >>> weights = {"weight": torch.ones(2)}
        >>> Aggregate(theta=weights, average=weights).kept("momentum")
        {'weight': tensor([0., 0.])}
    """

    theta: State  # theta^P, the server's model before the round
    average: State  # the average of the clients' models, weighted by |D_i|
    payload: State = field(default_factory=dict)  # the average of what clients send besides
    fraction: float = 1.0  # sum_i |D_i| over the round's clients / sum_i |D_i| over all clients
    state: ServerState = field(default_factory=dict)  # what the last ``server_step`` has kept

    def kept(self, name: str, initial: float = 0.0) -> State:
        """Return what the last step kept under a name; before the first step, ``initial``.

        The tensors have the names and shapes of the parameters.
        """
        if name in self.state:
            return self.state[name]
        return {key: torch.full_like(tensor, initial) for key, tensor in self.theta.items()}
