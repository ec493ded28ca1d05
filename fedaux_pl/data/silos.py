"""The data that a data module takes, as a source; one data set per client as one source."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedaux_pl.data.in_memory import InMemory, is_dataset, is_labeled, is_part
from fedaux_pl.data.input_checks import check_same_kind, shorten
from fedaux_pl.data.lazy_inputs import Inputs, join_inputs
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.errors import DataError

_ARGUMENTS = ("train", "test", "validation", "clients", "tokenizer", "max_length", "test_clients")

if TYPE_CHECKING:
    Data = Any  # a source, or what InMemory takes
else:
    Data = Source  # the type that the command line reads: a configuration names sources


class Silos(InMemory):
    """The data sets of several clients as one source that names its clients, test data included.

    ``FederatedDataModule([(train_a, test_a), (train_b, test_b)])`` makes it, of the source of each
    client by its name. A client may lack some of the classes; they are those of all training data.
    """

    def __init__(self, members: Mapping[str, Source]) -> None:
        super().__init__(members, members, members)  # of every part, as far as members have it
        self.members = dict(members)
        self._numbers: dict[str, list[int]] = {}  # the client of each sample of a part

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

    def read(self, part: str, labeled: bool = True) -> Any:
        """Return a part of all clients that have it; labels are class names if these are known."""
        found: list[Inputs] = []
        labels: list[Any] = []
        self._numbers[part] = []
        for number, (name, member) in enumerate(self.members.items()):
            member.class_order, member.on_disk = self.class_order, self.on_disk
            try:
                own = _read_member(member, part)
            except DataError as error:
                raise DataError(f"client {name!r}: {error}") from error
            if own is not None:
                found.append(own[0])
                check_same_kind(found[0], own[0], "the clients' data")
                labels += own[1]
                self._numbers[part] += [number] * len(own[1])
            elif part == "train":
                raise DataError(f"client {name!r} has no training data: add some, or leave it out")
        return (join_inputs(found), labels, ()) if found else None

    def owners(self, part: str, count: int) -> Mapping[str, Any]:
        """Return the clients of the samples of a part, as arguments of Examples."""
        return {"clients": torch.tensor(self._numbers[part]), "client_names": tuple(self.members)}


def _read_member(member: Source, part: str) -> tuple[Inputs, list[Any]] | None:
    """Return the inputs and the labels of one part, by name if the data name their classes."""
    if not isinstance(member, InMemory):
        examples: Examples | None = getattr(member, part)()
        if examples is None:
            return None
        return examples.inputs, [examples.classes[i] for i in examples.targets.tolist()]
    if member.parts[part] is None or (found := member.read(part)) is None:
        return None
    inputs, labels, names = found
    if labels is None:
        raise DataError(f"the {part} data have no labels: the private data must be labeled")
    return inputs, [names[x] if names and isinstance(x, int) else x for x in labels]


def as_source(name: str, value: Data) -> Source:
    """Turn the data that a data module takes as its argument ``name`` into a source.

    The value is a source; data that ``InMemory`` takes; a pair (training, test) of such data;
    a mapping of the arguments of ``InMemory``, such as a ``DatasetDict``; or, for one data set
    per client, a list of such pairs or of sources, or a mapping of them by the name of the client.
    """
    if isinstance(value, Source):
        return value
    silos: Any = value if isinstance(value, Mapping) else {}
    if isinstance(value, list):
        silos = {f"client {i}": own for i, own in enumerate(value)}
    if silos and all(map(_is_silo, silos.values())):
        return Silos({n: v if isinstance(v, Source) else InMemory(*v) for n, v in silos.items()})
    got, remedy = f"a {type(value).__name__}", "wrap files in NpzImages, ImageFolder or TextFiles"
    if isinstance(value, Mapping):
        # a DatasetDict can have further splits, such as `unsupervised`
        unknown = [str(key) for key in value if key not in _ARGUMENTS]
        if "train" in value and (not unknown or hasattr(value, "column_names")):
            return InMemory(**{key: value[key] for key in _ARGUMENTS if key in value})
        got = f"a mapping of {shorten([str(key) for key in value])}"
        remedy = "name a part `train`"
        if "train" in value:
            remedy = f"{unknown[0]!r} is none of its keys {', '.join(_ARGUMENTS)}"
    elif is_part(value):
        return InMemory(value)
    elif isinstance(value, tuple) and len(value) == 2 and all(map(is_part, value)):
        return InMemory(*value)
    elif isinstance(value, type) and issubclass(value, Source):
        got, remedy = f"the class {value.__name__}", f"pass an object, {value.__name__}(...)"
    elif isinstance(value, str | Path):
        got = repr(value)
    elif hasattr(value, "dataset"):
        remedy = "pass its `dataset`"
    elif hasattr(value, "__iter__"):
        remedy = "pass a data set with a length, whose items have indices"
    raise TypeError(
        f"{name} must be a Source, such as Digits(), a data set or arrays (see InMemory), but is "
        f"{got}: {remedy}"
    )


def _is_silo(value: Any) -> bool:
    """Whether the value is a source or a pair (training, test) of labeled data, or of None."""
    if isinstance(value, Source) or not isinstance(value, tuple):
        return isinstance(value, Source)
    return len(value) == 2 and all(p is None or is_labeled(p) or is_dataset(p) for p in value)
