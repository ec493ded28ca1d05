"""The data of a federation: who holds which private sample, and the parts of the public data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from fedaux_pl.data.fingerprints import count_shared, keyed_fingerprint
from fedaux_pl.data.input_checks import check_finite, check_same_kind, note, shorten
from fedaux_pl.data.lazy_inputs import Inputs, Memory, keep_in_host, select
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.errors import DataError, did_you_mean
from fedaux_pl.functional import (
    derive_seed,
    dirichlet_partition,
    shard_partition,
    unequal_partition,
)

# The purposes of the seed. They are part of every derived seed: never renumber them.
PARTITION, PUBLIC_SPLIT, CLIENT, DISTILL, PRETRAIN, VALIDATION = range(6)
Holding = Literal["public", "private"]
"""Which data a process of real sites holds: those of the server, or those of one site."""
Split = Literal["equal", "unequal", "shards"]
"""How samples without a client are split."""
PARTS: dict[Holding | None, tuple[str, ...]] = {
    None: ("train", "test", "auxiliary"),
    "public": ("test", "auxiliary"),
    "private": ("train",),
}
"""The parts of its data; validation data are with the test data. None: it holds all data."""


class DataSettings(Protocol):
    """The settings of a data module that decide who holds what."""

    private: Source
    num_clients: int
    alpha: float
    split: Split
    seed: int
    validation_fraction: float
    class_order: list[str] | None
    site_names: list[str]

    @property
    def held_parts(self) -> tuple[str, ...]:
        """Which of "train", "test" and "auxiliary" are here."""

    @property
    def at_sites(self) -> bool:
        """Whether the clients are real sites."""


@dataclass(frozen=True)
class PrivateData:
    """The private data, with the positions of each client's samples in the training data."""

    parts: dict[str, Examples]  # "training" (not at a server of sites), "test" (not at a site),
    # "validation" (if there are any); the training data have the held-out validation samples, too
    clients: tuple[Tensor, ...] = ()

    @classmethod
    def load(cls, settings: DataSettings, memory: Memory) -> "PrivateData":
        """Load and check the data of the private source; no client has samples yet.

        Classes and clients of all parts get the numbers that the training data have, or those of
        the classes and sites in ``settings``.
        """
        source = settings.private
        name = type(source).__name__
        classes: Sequence[str] = settings.class_order or ()
        source.class_order = classes  # as it is: its form is part of cache keys of texts
        parts = {}
        clients = tuple(settings.site_names)
        if "train" in settings.held_parts:
            parts["training"] = source.train()
            clients = parts["training"].client_names
        if "test" in settings.held_parts:
            parts["test"] = source.test()
            validation = source.validation()
            if validation is not None:
                parts["validation"] = validation
        first = next(iter(parts))
        for part, examples in parts.items():
            if examples.labels is None:
                raise DataError(
                    f"{name} has no labels for its {part} data: the private data must be labeled"
                )
            what = f"private {first} and {part} data"
            check_same_kind(parts[first].inputs, examples.inputs, what)
            classes = classes or examples.classes
            if memory != "device":
                examples = replace(examples, inputs=keep_in_host(examples.inputs))
            examples = renumber(examples, "class", tuple(classes), part)
            parts[part] = renumber(examples, "client", clients, part)
        train = parts.get("training")
        if train is not None and not settings.at_sites and len(torch.unique(train.targets)) < 2:
            raise DataError(
                f"the private training data must have at least 2 classes, but all {len(train)} "
                f"samples are of class {train.classes[int(train.targets[0])]!r}: check the labels"
            )
        if "validation" in parts and settings.validation_fraction:
            raise DataError(
                f"{name} gives {len(parts['validation'])} validation samples, but "
                f"validation_fraction {settings.validation_fraction} asks the clients to hold out "
                "more: set it to 0, or give no validation data"
            )
        return cls(parts)

    @property
    def train(self) -> Examples | None:
        """The training data; None at the server of real sites."""
        return self.parts.get("training")

    def split(self, settings: DataSettings) -> "PrivateData":
        """Assign the samples to the clients that the data name, or by a random split."""
        train = self.train
        if train is None:
            return self
        parts = dict(self.parts)
        clients = []
        if settings.at_sites:
            clients = [torch.arange(len(train))]
        elif train.clients is None:
            clients = _split(train.targets, settings)
        else:
            for number, name in enumerate(train.client_names):
                clients.append((train.clients == number).nonzero().flatten())
                if not len(clients[-1]):
                    raise DataError(f"client {name!r} has no training sample: remove its name")
        if settings.validation_fraction:
            seed = derive_seed(settings.seed, VALIDATION)
            clients, held = hold_out(clients, settings.validation_fraction, seed)
            parts["validation"] = train.take(held)
        if settings.at_sites:
            # whichever client the server says that this site is, its data are the same
            clients *= settings.num_clients
        return PrivateData(parts, tuple(clients))

    def shorten(self, at_most: int) -> "PrivateData":
        """Keep the first samples of every client and of the validation and test data."""
        parts = dict(self.parts)
        for name in parts.keys() - {"training"}:
            parts[name] = parts[name].take(slice(at_most))
        return PrivateData(parts, tuple(positions[:at_most] for positions in self.clients))

    def fingerprints(self, key: bytes) -> dict[str, str]:
        """Hash the training data with given clients, the test and the validation data."""
        hashes = {}
        for name, examples in self.parts.items():
            tensors = [examples.inputs, examples.targets]
            if name == "training" and examples.clients is not None:
                tensors.append(examples.clients)
            hashes["private" if name == "training" else name] = keyed_fingerprint(key, *tensors)
        return hashes

    def check_public(self, inputs: Inputs, key: bytes) -> int:
        """Check that auxiliary inputs are of the same kind; count those that are private, too.

        A DataError tells if more than half of them are private.
        """
        first = next(iter(self.parts.values()))
        check_same_kind(first.inputs, inputs, "private and auxiliary data")
        count = 0 if self.train is None else count_shared(self.train.inputs, inputs, key)
        are_shared = "is also a private training sample"
        if count > 1:
            are_shared = "are also private training samples"
        found = f"{count} of {len(inputs)} auxiliary samples {are_shared}"
        if 2 * count > len(inputs):
            raise DataError(
                f"{found}, so they are no public data: give data.auxiliary a source of other "
                "samples, or remove the shared ones from one of the two sources"
            )
        if count:
            note(
                f"{found}: h_0 and the scores then depend on private data beyond what the privacy "
                "guarantee covers; use other auxiliary data, or remove the samples"
            )
        return count

    @cached_property
    def client_names(self) -> list[str]:
        """The name of each client; "client 0", "client 1" ... if the data name none."""
        numbered = [f"client {index}" for index in range(len(self.clients))]
        names = list(self.train.client_names if self.train else ())
        return names if len(names) == len(numbered) else numbered  # others at a site: it is one

    def to(self, device: torch.device | str) -> "PrivateData":
        """Copy to another device; positions stay on the CPU."""
        return replace(self, parts={n: part.to(device) for n, part in self.parts.items()})


def _split(labels: Tensor, settings: DataSettings) -> list[Tensor]:
    seed = derive_seed(settings.seed, PARTITION)
    if settings.split == "shards":
        return shard_partition(labels, settings.num_clients, seed)
    partition = unequal_partition if settings.split == "unequal" else dirichlet_partition
    return partition(labels, settings.num_clients, settings.alpha, seed)


def renumber(examples: Examples, kind: str, names: tuple[str, ...], what: str) -> Examples:
    """Number the labels (``kind`` "class") or clients ("client") by the order of agreed names."""
    fields = ("labels", "classes")
    allowed = "classes are"
    remedy = "set data.classes to all names"
    if kind == "client":
        fields = ("clients", "client_names")
        allowed = "clients that train are"
        remedy = "leave its samples out"
    numbers, former_names = (getattr(examples, field) for field in fields)
    if numbers is None or not names or former_names == names:
        return examples
    for name in former_names:
        if name not in names:
            raise DataError(
                f"the {what} data name the {kind} {name!r}{did_you_mean(name, names)}, but the "
                f"{allowed} {shorten(names)}: correct it, or {remedy}"
            )
    order = torch.tensor([names.index(name) for name in former_names], device=numbers.device)
    changes: dict[str, Any] = dict(zip(fields, (order[numbers], names), strict=True))
    return replace(examples, **changes)


def hold_out(clients: Sequence[Tensor], fraction: float, seed: int) -> tuple[list[Tensor], Tensor]:
    """Hold out a fraction of the positions of every client's samples, at random.

    A client keeps at least one, and at least one is held out in all. Return those that each client
    keeps, and the held-out ones, sorted.
    """
    sizes = [len(positions) for positions in clients]
    counts = [min(round(fraction * size), size - 1) for size in sizes]
    if max(sizes) < 2:
        raise DataError(
            f"validation_fraction = {fraction} cannot be held out: none of the {len(clients)} "
            "clients has more than one sample; use fewer clients, or give validation data"
        )
    if not any(counts):
        counts[sizes.index(max(sizes))] = 1
    kept = []
    held = []
    for client, positions in enumerate(clients):
        generator = torch.Generator().manual_seed(derive_seed(seed, client))
        order = torch.randperm(len(positions), generator=generator)
        count = counts[client]
        held.append(positions[order[:count]])
        kept.append(positions[order[count:].sort().values])
    return kept, torch.cat(held).sort().values


@dataclass(frozen=True)
class PublicData:
    """D_aux and its two disjoint parts D^- and D_distill, with their ascending rows in D_aux."""

    inputs: Inputs
    rows: dict[str, Tensor]  # "negatives" and "distill"
    negatives: Inputs
    distill: Inputs

    @classmethod
    def split(
        cls, inputs: Inputs, negative_fraction: float, distill_fraction: float, seed: int
    ) -> "PublicData":
        """Split D_aux at random: a fraction becomes D^-, and a fraction of the rest D_distill."""
        check_finite(inputs)
        count = round(len(inputs) * negative_fraction)
        is_allowed = count < len(inputs) and (count > 0 or negative_fraction == 0)
        if not is_allowed:
            raise DataError(
                f"{len(inputs)} auxiliary samples leave D^- or D_distill empty at "
                f"negative_fraction = {negative_fraction}: use more auxiliary data, or change it"
            )
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
        negatives = order[:count].sort().values
        rest = order[count:]
        distill = rest[: max(2, round(len(rest) * distill_fraction))].sort().values
        rows = {"negatives": negatives, "distill": distill}
        return cls(inputs, rows, select(inputs, negatives), select(inputs, distill))

    def to(self, device: torch.device | str) -> "PublicData":
        """Copy to another device."""
        return PublicData(
            self.inputs.to(device),
            {name: rows.to(device) for name, rows in self.rows.items()},
            self.negatives.to(device),
            self.distill.to(device),
        )
