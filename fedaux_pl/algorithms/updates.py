"""What clients send to the server in a round, and what their training was."""

from dataclasses import dataclass, field

from torch import Tensor

from fedaux_pl.functional.averaging import State


@dataclass(frozen=True)
class Answer:
    """What every process knows of a client that has answered in a round: all but its weights."""

    client: int
    architecture: str
    size: int  # |D_i|
    loss: float  # the mean training loss, for the log


@dataclass(frozen=True)
class Update(Answer):
    """A client's answer in a round, with the weights of its model."""

    state: dict[str, Tensor]  # theta_i, parameters and buffers
    payload: State = field(default_factory=dict)  # what it sends besides; empty in most methods

    @property
    def answer(self) -> Answer:
        """The update without its weights."""
        return Answer(self.client, self.architecture, self.size, self.loss)


@dataclass(frozen=True)
class LocalResult:
    """A client's training in a round, from which ``Algorithm.client_payload`` computes."""

    start: State  # theta^P, the trained parameters that the server has sent
    end: State  # theta_i, the same parameters after the training
    steps: int  # K, the number of optimizer steps, with the learning rate ``lr``
    lr: float
    received: State = field(default_factory=dict)  # what the server has sent besides its model
    kept: State = field(default_factory=dict)  # what the client kept in its last round, if any
