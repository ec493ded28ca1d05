"""One data set per client as a source."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from fedaux_pl.data.downloads import Download
from fedaux_pl.data.in_memory import InMemory
from fedaux_pl.data.input_checks import check_same_kind
from fedaux_pl.data.lazy_inputs import Inputs, join_inputs
from fedaux_pl.data.part_contents import PartContents
from fedaux_pl.data.source import Examples, PartSource, Source
from fedaux_pl.errors import DataError


class Silos(PartSource):
    """The data sets of several clients as one source, whose training and test data name the client.

    ``FederatedDataModule([(train_a, test_a), (train_b, test_b)])`` makes this source. The classes
    are those of the training data of all clients; a client may lack some of them.

    Args:
        members: The source of each client, by the name of the client.
    """

    python_only: ClassVar[bool] = True  # a configuration cannot name the data
    remedy = InMemory.remedy

    def __init__(self, members: Mapping[str, Source]) -> None:
        self.members = dict(members)
        self._classes: tuple[str, ...] = ()

    @property
    def data_name(self) -> str:
        """The names of the clients' data, each name once."""
        return " + ".join(dict.fromkeys(member.data_name for member in self.members.values()))

    @property
    def input_format(self) -> dict[str, str | int]:
        """The input format of the first client."""
        return next(iter(self.members.values())).input_format

    def as_version_1(self) -> Source:
        """Return the sources of all clients as version 1 read them."""
        former = {name: member.as_version_1() for name, member in self.members.items()}
        if former == self.members:
            return self
        return Silos(former)

    def check_model(self, model: nn.Module) -> None:
        """Raise a DataError if the model would misread the inputs of a client."""
        for member in self.members.values():
            member.check_model(model)

    def downloads(self, parts: Collection[str]) -> list[Download]:
        """Return the public files that some parts of all clients need."""
        downloads = []
        for member in self.members.values():
            if self.download is not None:
                member.download = self.download
            downloads += member.downloads(parts)
        return downloads

    def image_bytes(self) -> int:
        """Return the bytes of all clients' images, as far as they are known."""
        return sum(member.image_bytes() for member in self.members.values())

    def load(self, part: str) -> Examples | None:
        """Read a part of all clients that have it; None if no client has it."""
        contents = self.read(part)
        if contents is None:
            return None
        if part == "train":
            self._classes = contents.find_classes(self.class_order)
        elif not self._classes:
            self.train()
        return contents.number(self._classes)

    def read(self, part: str) -> PartContents | None:
        """Read a part of all clients, with class names as labels if the data have such names."""
        inputs: list[Inputs] = []
        labels: list[Any] = []
        numbers: list[int] = []
        for number, (name, member) in enumerate(self.members.items()):
            member.class_order = self.class_order
            member.on_disk = self.on_disk
            try:
                contents = _read_member(member, part)
            except DataError as error:
                raise DataError(f"client {name!r}: {error}") from error
            if contents is not None:
                inputs.append(contents.inputs)
                check_same_kind(inputs[0], contents.inputs, "the clients' data")
                labels += contents.labels or []
                numbers += [number] * len(contents.labels or [])
            elif part == "train":
                raise DataError(f"client {name!r} has no training data: add some, or leave it out")
        if not inputs:
            return None
        return PartContents(
            join_inputs(inputs),
            labels,
            clients=torch.tensor(numbers),
            client_names=tuple(self.members),
        )


def _read_member(member: Source, part: str) -> PartContents | None:
    """Read a part of one client, or return None if the client does not have it.

    Labels are class names if the data name their classes: clients can number them differently.
    """
    if not isinstance(member, InMemory | Silos):
        examples: Examples | None = getattr(member, part)()
        if examples is None:
            return None
        class_names = [examples.classes[label] for label in examples.targets.tolist()]
        return PartContents(examples.inputs, class_names)
    contents = member.read(part)
    if contents is None:
        return None
    if contents.labels is None:
        raise DataError(f"the {part} data have no labels: the private data must be labeled")
    names = contents.class_names
    labels: list[Any] = [
        names[label] if names and isinstance(label, int) else label for label in contents.labels
    ]
    return PartContents(contents.inputs, labels)
