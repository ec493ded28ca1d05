"""One data set per client, each with training and test data of its own."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from fedaux_pl.data.in_memory import InMemory
from fedaux_pl.data.input_checks import check_same_kind
from fedaux_pl.data.labels import distinct_classes, number_labels
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.data.readers import join_inputs
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.errors import DataError


class Silos(Source):
    """The data sets of several clients as one source that names its clients, test data included.

    ``FederatedDataModule([(train_a, test_a), (train_b, test_b)])`` makes it. A client may lack some
    of the classes; they are those of all training data.

    Args:
        members: The data of each client by its name.

    Example:
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
        """The training data of all clients."""
        return self._required("train", "training")

    def test(self) -> Examples:
        """The test data of all clients that have some."""
        return self._required("test", "test")

    def validation(self) -> Examples | None:
        """The validation data of all clients that have some; None without any."""
        return self._join("validation")

    def _required(self, part: str, what: str) -> Examples:
        if (found := self._join(part)) is None:
            raise DataError(f"no client has {what} data: give each a pair (training, test)")
        return found

    def _join(self, part: str) -> Examples | None:
        """Return the data of all clients, one after the other; None if no client has any."""
        inputs: list[Inputs] = []
        labels: list[Any] = []
        owners: list[int] = []
        for number, (name, member) in enumerate(self.members.items()):
            member.class_order, member.on_disk = self.class_order, self.on_disk
            try:
                own = _read(member, part)
            except DataError as error:
                raise DataError(f"client {name!r}: {error}") from error
            if own is None:
                if part == "train":
                    raise DataError(
                        f"client {name!r} has no training data: add some, or leave it out"
                    )
                continue
            check_same_kind([*inputs, own[0]][0], own[0], "the clients' data")
            inputs.append(own[0])
            labels += own[1]
            owners += [number] * len(own[1])
        if not inputs:
            return None
        if part != "train" and not self._classes:
            self.train()
        elif part == "train":
            remedy = "pass class names as labels, or set classes of the data module to"
            names = tuple(self.class_order) or distinct_classes(labels, "they", remedy)
            self._classes = names
        numbers, clients = number_labels(labels, self._classes), torch.tensor(owners)
        return Examples(join_inputs(inputs), numbers, self._classes, clients, tuple(self.members))


def _read(member: Source, part: str) -> tuple[Inputs, list[Any]] | None:
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
    named = [names[x] if names and isinstance(x, int) else x for x in labels]
    return inputs, named
