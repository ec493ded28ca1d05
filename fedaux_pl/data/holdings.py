"""The data of a federation: who holds which private sample, and the parts of the public data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedaux_pl.data.client_split import hold_out
from fedaux_pl.data.fingerprints import keyed_fingerprint
from fedaux_pl.data.foreign_files import shorten
from fedaux_pl.data.input_checks import check_finite, check_same_kind
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.errors import DataError
from fedaux_pl.functional import dirichlet_partition

Holding = Literal["public", "private"]
"""Which data a process of real sites holds: those of the server, or those of one site."""


@dataclass(frozen=True)
class PrivateData:
    """The private data, with the positions of each client's samples in the training data.

    Args:
        train: The training data of all clients, held-out validation samples included; None at the
            server of real sites.
        test: The test data; None at a site.
        validation: The validation data; None for none.
        clients: The positions of the samples of D_i for each client.
    """

    train: Examples | None
    test: Examples | None
    validation: Examples | None = None
    clients: tuple[Tensor, ...] = ()

    @classmethod
    def load(
        cls, source: Source, held_out: float, holds: Holding | None, classes: Sequence[str] | None
    ) -> "PrivateData":
        """Loads and checks the data of a source; no client has samples yet.

        Args:
            source: The source.
            held_out: The fraction of every client's data that ``split`` will hold out.
            holds: ``public`` never reads the training data, ``private`` nothing else; None for all.
            classes: The names of the classes in their order; None for those of the source.
        """
        name = type(source).__name__
        source.class_order = classes or ()
        train = None if holds == "public" else source.train()
        test, validation = (
            (None, None) if holds == "private" else (source.test(), source.validation())
        )
        loaded: dict[str, Examples] = {}
        for part, examples in (("training", train), ("test", test), ("validation", validation)):
            if examples is None:
                continue
            if examples.labels is None:
                raise DataError(
                    f"{name} has no labels for its {part} data: the private data must be labeled"
                )
            classes = classes or examples.classes
            loaded[part] = order_classes(examples, classes)
            first = next(iter(loaded))
            check_same_kind(
                loaded[first].inputs, examples.inputs, f"private {first} and {part} data"
            )
        data = cls(loaded.get("training"), loaded.get("test"), loaded.get("validation"))
        train = data.train
        if holds is None and train is not None and len(torch.unique(train.targets)) < 2:
            raise DataError(
                f"the private training data must have at least 2 classes, but all {len(train)} "
                f"samples are of class {train.classes[int(train.targets[0])]!r}: check the labels"
            )
        if data.validation is not None and held_out:
            raise DataError(
                f"{name} gives {len(data.validation)} validation samples, but validation_fraction "
                f"{held_out} asks the clients to hold out more: set it to 0, or give no "
                "validation data"
            )
        return data

    def split(
        self, num_clients: int, alpha: float, held_out: float, seeds: tuple[int, int]
    ) -> "PrivateData":
        """Assigns the samples to the clients that the data name, or by a Dirichlet split.

        ``seeds`` are those of the Dirichlet split and of the held-out validation samples.
        """
        train, validation = self.train, self.validation
        if train is None:
            return self
        if train.clients is None:
            parts = dirichlet_partition(train.targets, num_clients, alpha, seeds[0])
        else:
            owners = range(len(train.client_names))
            parts = [(train.clients == owner).nonzero().flatten() for owner in owners]
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
        test, validation = (part and first(part) for part in (self.test, self.validation))
        return PrivateData(self.train, test, validation, clients)

    def fingerprints(self, key: bytes) -> dict[str, str]:
        """Keyed hashes of the training data with given clients, of test and of validation data."""
        found = {}
        parts = {"private": self.train, "test": self.test, "validation": self.validation}
        for name, part in parts.items():
            if part is not None:
                owners = [] if part.clients is None or name != "private" else [part.clients]
                found[name] = keyed_fingerprint(key, part.inputs, part.targets, *owners)
        return found

    @property
    def client_names(self) -> list[str]:
        """The name of each client; "client 0", "client 1" ... if the data name none."""
        numbered = [f"client {index}" for index in range(len(self.clients))]
        names = list(self.train.client_names if self.train else ())
        return names if len(names) == len(numbered) else numbered  # others at a site: it is one

    @property
    def inputs(self) -> list[Tensor]:
        """The inputs of training, test and validation data."""
        parts = [self.train, self.test, self.validation]
        return [part.inputs for part in parts if part is not None]

    def to(self, device: torch.device | str) -> "PrivateData":
        """A copy on another device; positions stay on the CPU."""
        parts = (self.train, self.test, self.validation)
        train, test, validation = (part and part.to(device) for part in parts)
        return PrivateData(train, test, validation, self.clients)


def order_classes(examples: Examples, classes: Sequence[str]) -> Examples:
    """Numbers the labels by an agreed order of the classes, of which the data may lack some.

    Example:
        >>> own = Examples(torch.zeros(2, 1, 8, 8), torch.tensor([0, 1]), ("bird", "dog"))
        >>> order_classes(own, ["cat", "dog", "bird"]).labels
        tensor([2, 1])
    """
    if examples.classes == tuple(classes):
        return examples
    if unknown := [name for name in examples.classes if name not in classes]:
        raise DataError(
            f"the data have the class {unknown[0]!r}, but the classes are {shorten(classes)}: "
            "rename it, or set data.classes to the names of all classes"
        )
    order = torch.tensor([list(classes).index(name) for name in examples.classes])
    labels = order.to(examples.targets.device)[examples.targets]
    return replace(examples, labels=labels, classes=tuple(classes))


@dataclass(frozen=True)
class PublicData:
    """D_aux and its two disjoint parts D^- and D_distill, with their ascending rows in D_aux."""

    inputs: Tensor
    negatives: Tensor
    distill: Tensor
    negative_rows: Tensor
    distill_rows: Tensor

    @classmethod
    def split(cls, inputs: Tensor, fraction: float, seed: int) -> "PublicData":
        """Splits D_aux at random; a fraction of it becomes D^-.

        Example:
            >>> data = PublicData.split(torch.arange(10), fraction=0.2, seed=0)
            >>> len(data.negatives), len(data.distill)
            (2, 8)
        """
        check_finite(inputs)
        count = round(len(inputs) * fraction)
        if not 0 < count < len(inputs):
            raise DataError(
                f"{len(inputs)} auxiliary samples leave D^- or D_distill empty at negatives = "
                f"{fraction}: use more auxiliary data, or change negatives"
            )
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
        negative_rows, distill_rows = order[:count].sort().values, order[count:].sort().values
        return cls(inputs, inputs[negative_rows], inputs[distill_rows], negative_rows, distill_rows)

    def to(self, device: torch.device | str) -> "PublicData":
        """A copy on another device."""
        return PublicData(*(tensor.to(device) for tensor in vars(self).values()))
