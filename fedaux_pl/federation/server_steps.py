"""What the server makes of the clients' averages, and what it sends besides its models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fedaux_pl.algorithms import Aggregate, Algorithm, Answer, ServerState, Update
from fedaux_pl.federation.averaging import average_payloads, trained_parameters
from fedaux_pl.federation.context import Context
from fedaux_pl.functional.averaging import State


@dataclass(frozen=True)
class ServerSteps:
    """Takes the method's server steps.

    Attributes:
        context: The data and the tools of the run.
        algorithm: The method.
        models: A model of each architecture, whose trained parameters require a gradient.
        architectures: The architecture of each client.
        states: What the method keeps for its next step, for each architecture.
    """

    context: Context
    algorithm: Algorithm
    models: Mapping[str, nn.Module]
    architectures: Sequence[str]
    states: dict[str, ServerState]

    def payloads(self) -> dict[str, State]:
        """What the server sends to the clients of each architecture besides its model."""
        return {
            name: self.algorithm.server_payload(self.states.get(name, {})) for name in self.models
        }

    def take(
        self,
        theta: Mapping[str, State],
        averages: Mapping[str, State],
        updates: Sequence[Update],
        answers: Sequence[Answer],
    ) -> dict[str, State]:
        """Takes the step of every architecture with a client in the round.

        Args:
            theta: The server's models before the round.
            averages: The averages of the clients' models.
            updates: The updates of this process's clients.
            answers: The answers of the clients of all processes.

        Returns:
            The averages with the parameters of the step, the same in every process.

        Raises:
            FloatingPointError: If a step gives NaN or infinity.
        """
        payloads: dict[str, State] = {}
        if self.algorithm.has_payload:
            payloads = average_payloads(updates, answers, self.context.processes)
        stepped = dict(averages)
        for name in dict.fromkeys(answer.architecture for answer in answers):
            aggregate = Aggregate(
                theta=trained_parameters(self.models[name], theta[name]),
                average=trained_parameters(self.models[name], averages[name]),
                payload=payloads.get(name, {}),
                fraction=self._fraction(name, answers),
                state=self.states.get(name, {}),
            )
            parameters, self.states[name] = self.algorithm.server_step(aggregate)
            if parameters is not aggregate.average:
                self._check_finite(parameters)
                stepped[name] = {**averages[name], **parameters}
        return stepped

    def _fraction(self, architecture: str, answers: Sequence[Answer]) -> float:
        """The samples of the round's clients of an architecture, of those of all its clients."""
        sizes = zip(self.architectures, self.context.data.client_sizes, strict=True)
        everyone = sum(size for name, size in sizes if name == architecture)
        return sum(a.size for a in answers if a.architecture == architecture) / everyone

    def _check_finite(self, parameters: State) -> None:
        finite = torch.stack([tensor.isfinite().all() for tensor in parameters.values()])
        if not bool(finite.all()):  # one transfer from the device
            raise FloatingPointError(
                f"the server step of {type(self.algorithm).__name__} gave NaN or infinity: lower "
                "its server_lr (--model.algorithm.server_lr)"
            )
