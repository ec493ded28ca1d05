"""One data set per client, each with training and test data of its own."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from fedaux_pl.data.in_memory import InMemory
from fedaux_pl.data.input_checks import check_same_kind
from fedaux_pl.data.labels import distinct_classes, number_labels
from fedaux_pl.data.lazy_inputs import Inputs, join_inputs
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.errors import DataError

_Part = tuple[Inputs, list[Any]]  # inputs and labels of a client


class Silos(Source):
    """The data sets of several clients as one source that names its clients, test data included.

    ``FederatedDataModule([(train_a, test_a), (train_b, test_b)])`` makes it. A client may lack some
    of the classes; they are those of all training data.

    Args:
        members: The data of each client by its name.

    Examples:
        >>> import numpy as np
        >>> from fedaux_pl import FederatedDataModule
        >>> images = np.zeros((2, 8, 8), np.uint8)
        >>> north, south = (images, ["cat", "dog"]), (images, ["dog", "eel"])
        >>> data = FederatedDataModule({"north": (north, north), "south": (south, south)})
        >>> data.setup()
        >>> data.client_names, data.classes, data.test_examples.clients.tolist()
        (['north', 'south'], ('cat', 'dog', 'eel'), [0, 0, 1, 1])
    """

    python_only: ClassVar[bool] = True  # a configuration cannot name the data

    def __init__(self, members: Mapping[str, Source]) -> None:
        self.members = dict(members)
        self._classes: tuple[str, ...] = ()

    @property
    def data_name(self) -> str:
        """The names of the clients' data, each once."""
        return " + ".join(dict.fromkeys(member.data_name for member in self.members.values()))

    @property
    def input_format(self) -> dict[str, str | int]:
        """That of the first client."""
        return next(iter(self.members.values())).input_format

    def check_model(self, model: nn.Module) -> None:
        """Raise a DataError if the model would misread the inputs of a client."""
        for member in self.members.values():
            member.check_model(model)

    def image_bytes(self) -> int:
        """The bytes of all clients' images, if they are known."""
        return sum(member.image_bytes() for member in self.members.values())

    def train(self) -> Examples:
        """The training data of all clients; their classes are those of all parts."""
        parts = self._read("train")
        labels = [label for _, own in parts.values() for label in own]
        remedy = "pass class names as labels, or set classes of the data module to"
        self._classes = tuple(self.class_order) or distinct_classes(labels, "they", remedy)
        return self._join(parts)

    def test(self) -> Examples:
        """The test data of all clients that have some."""
        if not (parts := self._read("test")):
            raise DataError("no client has test data: give each a pair (training, test)")
        return self._join(parts)

    def validation(self) -> Examples | None:
        """The validation data of all clients that have some; None without any."""
        parts = self._read("validation")
        return self._join(parts) if parts else None

    def _read(self, part: str) -> dict[str, _Part]:
        """Return the data of each client that has some; all must have training data."""
        found: dict[str, _Part] = {}
        for name, member in self.members.items():
            member.class_order, member.on_disk = self.class_order, self.on_disk
            try:
                own = _read_member(member, part)
            except DataError as error:
                raise DataError(f"client {name!r}: {error}") from error
            if own is not None:
                found[name] = own
                check_same_kind(next(iter(found.values()))[0], own[0], "the clients' data")
            elif part == "train":
                raise DataError(f"client {name!r} has no training data: add some, or leave it out")
        return found

    def _join(self, parts: dict[str, _Part]) -> Examples:
        if not self._classes:
            self.train()
        names = tuple(self.members)
        labels = [label for _, own in parts.values() for label in own]
        owners = [names.index(name) for name, (_, own) in parts.items() for _ in own]
        inputs = join_inputs([own for own, _ in parts.values()])
        numbers = number_labels(labels, self._classes)
        return Examples(inputs, numbers, self._classes, torch.tensor(owners), names)


def _read_member(member: Source, part: str) -> _Part | None:
    """Return the inputs and the labels of one part, by name if the data name their classes."""
    if not isinstance(member, InMemory):
        examples: Examples | None = getattr(member, part)()
        if examples is None:
            return None
        return examples.inputs, [examples.classes[i] for i in examples.targets.tolist()]
    if member.parts[part] is None:
        return None
    inputs, labels, names = member.read(part)
    if labels is None:
        raise DataError(f"the {part} data have no labels: the private data must be labeled")
    return inputs, [names[x] if names and isinstance(x, int) else x for x in labels]
