"""The private data of a federation: who holds which sample, validation and test data."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedaux_pl.data.client_split import group_by_client, hold_out
from fedaux_pl.data.fingerprints import keyed_fingerprint
from fedaux_pl.data.input_checks import check_same_kind
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.errors import DataError
from fedaux_pl.functional import dirichlet_partition


@dataclass(frozen=True)
class PrivateData:
    """The private data, with the positions of each client's samples in the training data.

    Args:
        train: The training data of all clients, held-out validation samples included.
        test: The test data.
        validation: The validation data; None for none.
        clients: The positions of the samples of D_i for each client.
    """

    train: Examples
    test: Examples
    validation: Examples | None = None
    clients: tuple[Tensor, ...] = ()

    @classmethod
    def load(cls, source: Source, held_out: float) -> "PrivateData":
        """Loads and checks the data of a source; no client has samples yet.

        Args:
            source: The source.
            held_out: The share of every client's data that ``split`` will hold out.

        Raises:
            DataError: If labels are missing, parts do not fit together, all samples are of one
                class, or validation data are given and held out as well.
        """
        name, train = type(source).__name__, source.train()
        data = cls(train, source.test(), source.validation())
        parts = {"training": train, "test": data.test, "validation": data.validation}
        for part, examples in parts.items():
            if examples is None:
                continue
            if examples.labels is None:
                raise DataError(
                    f"{name} has no labels for its {part} data: the private data must be labeled"
                )
            check_same_kind(train.inputs, examples.inputs, f"private training and {part} data")
        if len(torch.unique(train.targets)) < 2:
            raise DataError(
                f"the private training data must have at least 2 classes, but all {len(train)} "
                f"samples are of class {train.classes[int(train.targets[0])]!r}: check the labels"
            )
        if data.validation is not None and held_out:
            raise DataError(
                f"{name} gives {len(data.validation)} validation samples, but validation = "
                f"{held_out} asks the clients to hold out more: set validation to 0, or give no "
                "validation data"
            )
        return data

    def split(
        self, num_clients: int, alpha: float, held_out: float, seeds: tuple[int, int]
    ) -> "PrivateData":
        """Assigns the samples to clients: those that the data name, or by a Dirichlet split.

        Args:
            num_clients: n of a Dirichlet split.
            alpha: The concentration of a Dirichlet split.
            held_out: The share of every client's samples that becomes validation data.
            seeds: The seeds of the Dirichlet split and of the held-out samples.
        """
        train, validation = self.train, self.validation
        if train.clients is None:
            parts = dirichlet_partition(train.targets, num_clients, alpha, seeds[0])
        else:
            parts = group_by_client(train.clients, len(train.client_names))
        if held_out:
            parts, held = hold_out(parts, held_out, seeds[1])
            validation = Examples(train.inputs[held], train.targets[held], train.classes)
        return replace(self, validation=validation, clients=tuple(parts))

    def shorten(self, at_most: int) -> "PrivateData":
        """The first samples of every client and of the validation and test data."""

        def first(examples: Examples) -> Examples:
            inputs, targets = examples.inputs[:at_most], examples.targets[:at_most]
            return Examples(inputs, targets, examples.classes)

        clients = tuple(positions[:at_most] for positions in self.clients)
        validation = None if self.validation is None else first(self.validation)
        return PrivateData(self.train, first(self.test), validation, clients)

    def fingerprints(self, key: bytes) -> dict[str, str]:
        """Keyed hashes of the training data with given clients, of test and of validation data."""
        given = [] if self.train.clients is None else [self.train.clients]
        tensors = {
            "private": [self.train.inputs, self.train.targets, *given],
            "test": [self.test.inputs, self.test.targets],
        }
        if self.validation is not None:
            tensors["validation"] = [self.validation.inputs, self.validation.targets]
        return {name: keyed_fingerprint(key, *own) for name, own in tensors.items()}

    @property
    def client_names(self) -> list[str]:
        """The name of each client; "client 0", "client 1" ... if the data name none."""
        numbered = [f"client {index}" for index in range(len(self.clients))]
        return list(self.train.client_names) or numbered

    @property
    def inputs(self) -> list[Tensor]:
        """The inputs of training, test and validation data."""
        parts = [self.train, self.test, self.validation]
        return [part.inputs for part in parts if part is not None]

    def to(self, device: torch.device | str) -> "PrivateData":
        """A copy on another device; positions stay on the CPU."""
        validation = None if self.validation is None else self.validation.to(device)
        train, test = self.train.to(device), self.test.to(device)
        return PrivateData(train, test, validation, self.clients)
