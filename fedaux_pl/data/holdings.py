"""The data of a federation: who holds which private sample, and the parts of the public data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from fedaux_pl.data.fingerprints import count_shared, keyed_fingerprint
from fedaux_pl.data.input_checks import check_finite, check_same_kind, shorten
from fedaux_pl.data.lazy_inputs import Inputs, Memory, keep_in_host, select
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.errors import DataError, did_you_mean
from fedaux_pl.functional import derive_seed, dirichlet_partition

Holding = Literal["public", "private"]
"""Which data a process of real sites holds: those of the server, or those of one site."""


@dataclass(frozen=True)
class PrivateData:
    """The private data, with the positions of each client's samples in the training data."""

    train: Examples | None  # with held-out validation samples; None at the server of real sites
    test: Examples | None  # None at a site
    validation: Examples | None = None
    clients: tuple[Tensor, ...] = ()

    @classmethod
    def load(
        cls,
        source: Source,
        held_out: float,
        holds: Holding | None,
        classes: Sequence[str] | None,
        memory: Memory = "device",
    ) -> "PrivateData":
        """Load and check the data of a source; no client has samples yet.

        ``public`` of ``holds`` never reads the training data, ``private`` nothing else. The other
        arguments are those of the data module; ``split`` will hold out the fraction ``held_out``.
        """
        name = type(source).__name__
        source.class_order = classes or ()
        loaded: dict[str, Examples | None] = {}
        if holds != "public":
            loaded["training"] = source.train()
        if holds != "private":
            loaded |= {"test": source.test(), "validation": source.validation()}
        first, one = next(iter(loaded.items()))
        for part, examples in loaded.items():
            if examples is None:
                continue
            if examples.labels is None:
                raise DataError(
                    f"{name} has no labels for its {part} data: the private data must be labeled"
                )
            if one is not None:
                check_same_kind(one.inputs, examples.inputs, f"private {first} and {part} data")
            classes = classes or examples.classes
            if memory != "device":
                examples = replace(examples, inputs=keep_in_host(examples.inputs))
            loaded[part] = order_classes(examples, classes)
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
        self,
        num_clients: int,
        alpha: float,
        held_out: float,
        seeds: tuple[int, int],
        is_site: bool = False,
    ) -> "PrivateData":
        """Assign the samples to the clients that the data name, or by a Dirichlet split.

        ``seeds`` are those of the Dirichlet split and of the held-out validation samples.
        """
        train, validation = self.train, self.validation
        if train is None:
            return self
        if is_site:
            # whichever client the server says that this site is, its data are the same
            parts = [torch.arange(len(train))] * num_clients
        elif train.clients is None:
            parts = dirichlet_partition(train.targets, num_clients, alpha, seeds[0])
        else:
            owners = range(len(train.client_names))
            parts = [(train.clients == owner).nonzero().flatten() for owner in owners]
            if empty := [i for i, part in enumerate(parts) if not len(part)]:
                name = train.client_names[empty[0]]
                raise DataError(f"client {name!r} has no training sample: remove its name")
        if held_out:
            parts, held = hold_out(parts, held_out, seeds[1])
            validation = train.take(held)
        return replace(self, validation=validation, clients=tuple(parts))

    def name_clients(self, names: Sequence[str]) -> "PrivateData":
        """Number the clients of test and validation data by the names of those that train.

        Without such names (a Dirichlet split) the data keep their own.
        """
        names = tuple(self.train.client_names if self.train else names)
        test, validation = (
            part and _number_clients(part, names, what)
            for part, what in ((self.test, "test"), (self.validation, "validation"))
        )
        return replace(self, test=test, validation=validation)

    def shorten(self, at_most: int) -> "PrivateData":
        """Keep the first samples of every client and of the validation and test data."""
        first, clients = slice(at_most), tuple(positions[:at_most] for positions in self.clients)
        test, validation = (part and part.take(first) for part in (self.test, self.validation))
        return PrivateData(self.train, test, validation, clients)

    def fingerprints(self, key: bytes) -> dict[str, str]:
        """Hash the training data with given clients, the test and the validation data."""
        found = {}
        parts = {"private": self.train, "test": self.test, "validation": self.validation}
        for name, part in parts.items():
            if part is not None:
                owners = [] if part.clients is None or name != "private" else [part.clients]
                found[name] = keyed_fingerprint(key, part.inputs, part.targets, *owners)
        return found

    def check_public(self, inputs: Inputs, key: bytes) -> int:
        """Check that auxiliary inputs are of the same kind; count those that are private, too."""
        check_same_kind(self.inputs[0], inputs, "private and auxiliary data")
        count = 0 if self.train is None else count_shared(self.train.inputs, inputs, key)
        if count:
            rank_zero_warn(
                f"{count} of {len(inputs)} auxiliary samples are also private training samples: "
                "h_0 and the scores then depend on private data beyond what the privacy guarantee "
                "covers; use other auxiliary data, or remove the samples"
            )
        return count

    @cached_property
    def client_names(self) -> list[str]:
        """The name of each client; "client 0", "client 1" ... if the data name none."""
        numbered = [f"client {index}" for index in range(len(self.clients))]
        names = list(self.train.client_names if self.train else ())
        return names if len(names) == len(numbered) else numbered  # others at a site: it is one

    @property
    def inputs(self) -> list[Inputs]:
        """The inputs of training, test and validation data."""
        parts = [self.train, self.test, self.validation]
        return [part.inputs for part in parts if part is not None]

    def to(self, device: torch.device | str) -> "PrivateData":
        """Copy to another device; positions stay on the CPU."""
        parts = (self.train, self.test, self.validation)
        train, test, validation = (part and part.to(device) for part in parts)
        return PrivateData(train, test, validation, self.clients)


def order_classes(examples: Examples, classes: Sequence[str]) -> Examples:
    """Number the labels by an agreed order of the classes, of which the data may lack some."""
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


def _number_clients(examples: Examples, names: tuple[str, ...], what: str) -> Examples:
    if examples.clients is None or not names or examples.client_names == names:
        return examples
    if unknown := [name for name in examples.client_names if name not in names]:
        raise DataError(
            f"the {what} data name the client {unknown[0]!r}{did_you_mean(unknown[0], names)}, but "
            f"the clients that train are {shorten(names)}: correct the name, or leave its samples "
            "out"
        )
    order = torch.tensor([names.index(name) for name in examples.client_names])
    return replace(examples, clients=order[examples.clients], client_names=names)


def hold_out(parts: Sequence[Tensor], fraction: float, seed: int) -> tuple[list[Tensor], Tensor]:
    """Hold out a fraction of the samples of every client, at random.

    A client keeps at least one sample, and at least one sample is held out in all. ``parts`` are
    the positions of each client's samples. Return those that each client keeps, and the held-out
    ones, sorted.
    """
    counts = [min(round(fraction * len(part)), len(part) - 1) for part in parts]
    if not any(counts):
        sizes = [len(part) for part in parts]
        if max(sizes) < 2:
            raise DataError(
                f"validation_fraction = {fraction} cannot be held out: none of the {len(parts)} "
                "clients has more than one sample; use fewer clients, or give validation data"
            )
        counts[sizes.index(max(sizes))] = 1
    kept, held = [], []
    for client, (part, count) in enumerate(zip(parts, counts, strict=True)):
        generator = torch.Generator().manual_seed(derive_seed(seed, client))
        order = torch.randperm(len(part), generator=generator)
        held.append(part[order[:count]])
        kept.append(part[order[count:].sort().values])
    return kept, torch.cat(held).sort().values


@dataclass(frozen=True)
class PublicData:
    """D_aux and its two disjoint parts D^- and D_distill, with their ascending rows in D_aux."""

    inputs: Inputs
    rows: dict[str, Tensor]  # "negatives" and "distill"
    negatives: Inputs
    distill: Inputs

    @classmethod
    def split(cls, inputs: Inputs, fraction: float, seed: int) -> "PublicData":
        """Split D_aux at random; a fraction of it becomes D^-."""
        check_finite(inputs)
        count = round(len(inputs) * fraction)
        if not 0 < count < len(inputs):
            raise DataError(
                f"{len(inputs)} auxiliary samples leave D^- or D_distill empty at "
                f"negative_fraction = {fraction}: use more auxiliary data, or change it"
            )
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
        rows = {"negatives": order[:count].sort().values, "distill": order[count:].sort().values}
        return cls(inputs, rows, *(select(inputs, part) for part in rows.values()))

    def to(self, device: torch.device | str) -> "PublicData":
        """Copy to another device."""
        rows = {part: own.to(device) for part, own in self.rows.items()}
        tensors = (self.inputs, self.negatives, self.distill)
        inputs, negatives, distill = (tensor.to(device) for tensor in tensors)
        return PublicData(inputs, rows, negatives, distill)
