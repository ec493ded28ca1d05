"""The data that one process holds: all data in a simulation, a part of them with real sites."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.data.auxiliary_split import AuxiliaryData
from fedaux_pl.data.lazy_inputs import Inputs, select
from fedaux_pl.data.source import Examples
from fedaux_pl.errors import DataError
from fedaux_pl.functional import balanced_weights

Holding = Literal["public", "private"]
"""The data of a process with real sites: ``public`` at the server, ``private`` at a site."""
HELD_PARTS: dict[Holding | None, tuple[str, ...]] = {
    None: ("train", "test", "auxiliary"),
    "public": ("test", "auxiliary"),
    "private": ("train",),
}
"""The parts of the data that a process holds; None is a simulation, which holds all parts.

A process that holds the test data also holds the validation data of the source.
"""


@dataclass(frozen=True)
class HeldData:
    """The data that a process holds, split over the clients, and what is known about them.

    Args:
        training: The private training data of all clients, held-out samples included; None at the
            server of real sites.
        clients: For each client the ascending positions of its samples in ``training``, without
            the samples that it holds out; empty at the server of real sites.
        test: The test data; None at a real site.
        validation: The validation data, given by the source or held out by the clients, if any.
        auxiliary: The auxiliary data; None at a real site, and for methods without such data.
        num_shared: The number of auxiliary samples that are also private training samples.
        fingerprints: Hashes of the data by their names in settings: ``private``, ``test``,
            ``validation`` and ``auxiliary``.
    """

    training: Examples | None
    clients: tuple[Tensor, ...]
    test: Examples | None
    validation: Examples | None
    auxiliary: AuxiliaryData | None
    num_shared: int = 0
    fingerprints: dict[str, str] = field(default_factory=dict)

    @property
    def examples(self) -> dict[str, Examples]:
        """The training, test and validation data that are held, by their names as fields."""
        parts = {"training": self.training, "test": self.test, "validation": self.validation}
        return {name: examples for name, examples in parts.items() if examples is not None}

    @property
    def all_inputs(self) -> list[Inputs]:
        """The inputs of the training, test, validation and auxiliary data that are held."""
        inputs = [examples.inputs for examples in self.examples.values()]
        if self.auxiliary is not None:
            inputs.append(self.auxiliary.inputs)
        return inputs

    @property
    def client_names(self) -> list[str]:
        """The names of the clients in the data, or "client 0", "client 1" ... without names."""
        names = () if self.training is None else self.training.client_names
        if len(names) == len(self.clients):
            return list(names)
        # The data name no clients, or they are at a real site, which is one of several clients.
        return [f"client {index}" for index in range(len(self.clients))]

    @cached_property
    def sample_weights(self) -> Tensor:
        """For each training sample the weight that balances the classes of its client, (N,)."""
        targets = self.require_training().targets
        labels = targets.cpu()
        weights = torch.ones(len(labels))  # samples that are held out keep this weight
        for positions in self.clients:
            weights[positions] = balanced_weights(labels[positions])
        return weights.to(targets.device)

    def require_training(self) -> Examples:
        """Return the training data, or raise a DataError if they are at the sites."""
        if self.training is None:
            raise DataError("the server has no private data: they are at the sites")
        return self.training

    def require_test(self) -> Examples:
        """Return the test data, or raise a DataError if they are at the server."""
        if self.test is None:
            raise DataError("a site has no test data: they are at the server")
        return self.test

    def require_auxiliary(self) -> AuxiliaryData:
        """Return the auxiliary data, or raise a DataError if there are none."""
        if self.auxiliary is None:
            raise DataError("this federation has no auxiliary data: set data.auxiliary")
        return self.auxiliary

    def client(self, index: int) -> Examples:
        """Copy the training samples of one client."""
        training = self.require_training()
        positions = self.clients[index].to(training.inputs.device)
        inputs = select(training.inputs, positions)
        return Examples(inputs, training.targets[positions], training.classes)

    def class_counts(self) -> NDArray[np.int64]:
        """Count the samples of each class that each client holds, shape (n, C)."""
        training = self.require_training()
        labels = training.targets.cpu()
        num_classes = len(training.classes)
        counts = [torch.bincount(labels[rows], minlength=num_classes) for rows in self.clients]
        return torch.stack(counts).numpy()

    def first(self, count: int) -> "HeldData":
        """Keep the first samples of each client and of the test and validation data."""
        return replace(
            self,
            clients=tuple(positions[:count] for positions in self.clients),
            test=None if self.test is None else self.test.take(slice(count)),
            validation=None if self.validation is None else self.validation.take(slice(count)),
        )

    def to(self, device: torch.device | str) -> "HeldData":
        """Copy the data to another device; the positions of clients stay on the CPU."""
        on_device = {name: examples.to(device) for name, examples in self.examples.items()}
        return replace(
            self,
            training=on_device.get("training"),
            test=on_device.get("test"),
            validation=on_device.get("validation"),
            auxiliary=None if self.auxiliary is None else self.auxiliary.to(device),
        )
