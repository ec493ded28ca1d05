"""Data of the caller's Python program as sources: data sets, arrays, and one of them per client."""

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from fedaux_pl.data.downloads import Download
from fedaux_pl.data.images import (
    WHITE,
    check_background,
    from_array,
    note_transparent,
    read_pil,
)
from fedaux_pl.data.input_checks import check_same_kind, shorten
from fedaux_pl.data.labels import Labels, distinct_classes, name_clients, number_labels, to_list
from fedaux_pl.data.lazy_inputs import Inputs, join_inputs
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.tokenizer import TextSource
from fedaux_pl.errors import DataError

_ARRAYS = (np.ndarray, Tensor)
_ROWS_PER_READ = 1000
_ARGUMENTS = (
    "train",
    "test",
    "validation",
    "clients",
    "tokenizer",
    "max_length",
    "test_clients",
    "background",
)

if TYPE_CHECKING:
    Data = Any  # a source, or what InMemory takes
else:
    Data = Source  # the type that the command line reads: a configuration names sources


class InMemory(TextSource):
    """Data sets and arrays of the caller, converted when they are needed.

    Each part is one of these:

    - a pair (inputs, labels) of NumPy arrays or tensors; labels can also be a list or a column of
      pandas. Images have the shape (N, C, H, W), (N, H, W, C) or (N, H, W), and are uint8, or
      floats that the model expects, usually in [0, 1]; token ids are integers of shape (N, L).
    - a torch ``Dataset`` with a length, whose items are (input, label). An input is an image of
      PIL, an array or a tensor (C, H, W), or a text.
    - a ``Dataset`` of Hugging Face with the columns ``image`` or ``text``, and ``label``.
    - for auxiliary data, any of these without labels.

    All images must have one size, and a transform must not be random: every process, and a run that
    resumes, must read the same data. Labels are class names or integers. Integers index the names
    that a data set has itself (``classes``, or a feature ``label`` with names), or else ``classes``
    of the data module; without either they must be 0, 1, 2 ... without gaps.

    Args:
        train: The training data.
        test: The test data.
        validation: The validation data; None for none.
        clients: The client that holds each training sample, (N,) names or integers; None if the
            clients get a random split.
        tokenizer: For texts, a folder or a name on the hub, the same as the model's ``source``;
            None for the small English vocabulary of the package.
        max_length: For texts, the number of token ids of a text.
        test_clients: The client of each test sample, as ``clients``: metrics are then also measured
            for each client. None for test data of no client in particular.
        background: The color on which transparent images of PIL are put, as in ``ImageFolder``.

    Examples:
        >>> import numpy as np
        >>> from fedaux_pl import FederatedDataModule
        >>> images, labels = np.zeros((6, 8, 8), np.uint8), np.array([0, 1, 0, 1, 0, 1])
        >>> part, sites = (images, labels), ["north"] * 2 + ["south"] * 4
        >>> data = FederatedDataModule({"train": part, "test": part, "clients": sites})
        >>> data.setup()
        >>> dict(zip(data.client_names, data.client_sizes))
        {'north': 2, 'south': 4}
    """

    python_only: ClassVar[bool] = True  # a configuration cannot name the data

    remedy = "pass a pair (training, test), or one for each client, or {'train': ..., 'test': ...}"

    def __init__(
        self,
        train: Any,
        test: Any = None,
        validation: Any = None,
        clients: Any = None,
        tokenizer: str | Path | None = None,
        max_length: int | None = None,
        test_clients: Any = None,
        background: str = WHITE,
    ) -> None:
        super().__init__(tokenizer, max_length)
        self.parts = {"train": train, "test": test, "validation": validation}
        self.clients = {"train": clients, "test": test_clients}
        self.background: str | None = check_background(background)  # None: see as_version_1
        self._has_transparent = False  # whether one of the images read so far is
        self._classes: tuple[str, ...] = ()

    @property
    def input_format(self) -> dict[str, str | int]:
        """Those of texts; for images, the background if it is not white."""
        if self.max_length is not None or self.background in (WHITE, None):
            return super().input_format
        return {"background": str(self.background)}

    def as_version_1(self) -> Source:
        """Return the source that uncovers the pixels of transparent images, if it read any."""
        if not self._has_transparent:
            return self
        former = copy.copy(self)
        former.background = None
        return former

    def image_bytes(self) -> int:
        """The bytes of all arrays, memory-mapped ones included."""
        inputs = [part[0] if is_labeled(part) else part for part in self.parts.values()]
        return sum(int(array.nbytes) for array in inputs if isinstance(array, _ARRAYS))

    def auxiliary(self) -> Inputs:
        """The training inputs; labels are not needed."""
        return self.read("train", labeled=False)[0]  # type: ignore[no-any-return]

    def load(self, part: str) -> Examples | None:
        """Load a part, with labels if it has any, and with given clients."""
        samples = self.read(part)
        if samples is None:
            return None
        inputs, labels, names, clients = samples
        if labels is None:
            return Examples(inputs)
        if part == "train":
            self._classes = tuple(self.class_order) or names or distinct_classes(labels)
        elif not self._classes:
            self.train()
        numbers = number_labels(labels, self._classes, names)
        return Examples(inputs, numbers, self._classes, **clients)

    def read(self, part: str, labeled: bool = True) -> Any:
        """Return inputs, labels (or None), class names (or ()) and clients of a part.

        The clients are arguments of Examples, by name; {} without labels. None without the part.
        """
        if self.parts[part] is None and part != "train":
            return None
        samples = _read_samples(self.parts[part], f"the {part} data", labeled, self.background)
        inputs, labels, names, has_transparent = samples
        self._has_transparent |= has_transparent
        if isinstance(inputs, list):
            if self.max_length is None:
                raise DataError(
                    "the inputs are texts: pass InMemory(..., tokenizer=..., max_length=128)"
                )
            inputs = self._tokenize(inputs)
        elif self.max_length is not None:
            raise DataError("the inputs are no texts: leave out max_length, which is for texts")
        clients = self.clients.get(part) if labels else None
        argument = "test_clients" if part == "test" else "clients"
        return inputs, labels, names, name_clients(clients, len(inputs), argument)


class Silos(InMemory):
    """The data sets of several clients as one source that names its clients, test data included.

    ``FederatedDataModule([(train_a, test_a), (train_b, test_b)])`` makes it, of the source of each
    client by its name. A client may lack some of the classes; they are those of all training data.
    """

    def __init__(self, members: Mapping[str, Source]) -> None:
        super().__init__(members, members, members)  # of every part, as far as members have it
        self.members = dict(members)

    @property
    def data_name(self) -> str:
        """The names of the clients' data, each once."""
        return " + ".join(dict.fromkeys(member.data_name for member in self.members.values()))

    @property
    def input_format(self) -> dict[str, str | int]:
        """That of the first client."""
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
        """Return those of all clients."""
        downloads = []
        for member in self.members.values():
            if self.download is not None:
                member.download = self.download
            downloads += member.downloads(parts)
        return downloads

    def image_bytes(self) -> int:
        """The bytes of all clients' images, if they are known."""
        return sum(member.image_bytes() for member in self.members.values())

    def read(self, part: str, labeled: bool = True) -> Any:
        """Return a part of all clients that have it; labels are class names if these are known."""
        inputs: list[Inputs] = []
        labels: list[Any] = []
        numbers: list[int] = []
        for number, (name, member) in enumerate(self.members.items()):
            member.class_order = self.class_order
            member.on_disk = self.on_disk
            try:
                samples = _read_member(member, part)
            except DataError as error:
                raise DataError(f"client {name!r}: {error}") from error
            if samples is not None:
                inputs.append(samples[0])
                check_same_kind(inputs[0], samples[0], "the clients' data")
                labels += samples[1]
                numbers += [number] * len(samples[1])
            elif part == "train":
                raise DataError(f"client {name!r} has no training data: add some, or leave it out")
        if not inputs:
            return None
        clients = {"clients": torch.tensor(numbers), "client_names": tuple(self.members)}
        return join_inputs(inputs), labels, (), clients


def _read_member(member: Source, part: str) -> tuple[Inputs, list[Any]] | None:
    """Return the inputs and the labels of one part, by name if the data name their classes."""
    if not isinstance(member, InMemory):
        examples: Examples | None = getattr(member, part)()
        if examples is None:
            return None
        return examples.inputs, [examples.classes[i] for i in examples.targets.tolist()]
    samples = None if member.parts[part] is None else member.read(part)
    if samples is None:
        return None
    inputs, labels, names, _ = samples
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
        silos = {f"client {i}": member for i, member in enumerate(value)}
    if silos and all(map(_is_silo, silos.values())):
        members = silos.items()
        return Silos({n: m if isinstance(m, Source) else InMemory(*m) for n, m in members})
    got = f"a {type(value).__name__}"
    remedy = "wrap files in NpzImages, ImageFolder or TextFiles"
    if isinstance(value, Mapping):
        # a DatasetDict can have further splits, such as `unsupervised`
        unknown = [str(key) for key in value if key not in _ARGUMENTS]
        if "train" in value and (not unknown or hasattr(value, "column_names")):
            return InMemory(**{key: value[key] for key in _ARGUMENTS if key in value})
        got = f"a mapping of {shorten(list(map(str, value)))}"
        remedy = "name a part `train`"
        if "train" in value:
            remedy = f"{unknown[0]!r} is none of its keys {', '.join(_ARGUMENTS)}"
    elif is_part(value):
        return InMemory(value)
    elif _is_pair(value) and all(map(is_part, value)):
        return InMemory(*value)
    elif isinstance(value, type) and issubclass(value, Source):
        got = f"the class {value.__name__}"
        remedy = f"pass an object, {value.__name__}(...)"
    elif isinstance(value, str | Path):
        got = repr(value)
    elif hasattr(value, "dataset"):
        remedy = "pass its `dataset`"
    elif hasattr(value, "__iter__"):
        remedy = "pass a data set with a length, whose items have indices"
    raise TypeError(
        f"{name}: got {got}; expected a Source, such as Digits(), a data set or arrays (see "
        f"InMemory): {remedy}"
    )


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def _is_silo(value: Any) -> bool:
    """Whether the value is a source or a pair (training, test) of labeled data, or of None."""
    if isinstance(value, Source):
        return True
    return _is_pair(value) and all(x is None or is_labeled(x) or is_dataset(x) for x in value)


def is_part(value: Any) -> bool:
    """Whether the value is one of the forms of a part of InMemory."""
    return isinstance(value, _ARRAYS) or is_labeled(value) or is_dataset(value)


def is_labeled(value: Any) -> bool:
    """Whether the value is a pair (inputs, labels) of arrays; labels can be a list or a column."""
    if not _is_pair(value) or not isinstance(value[0], _ARRAYS):
        return False
    return isinstance(value[1], list) or hasattr(value[1], "__array__")


def is_dataset(value: Any) -> bool:
    """Whether the value has a length and items by index, as a data set of torch."""
    has_items = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    return has_items and not isinstance(value, (str, bytes, tuple, type, *_ARRAYS))


class _Samples(NamedTuple):
    """What the samples of a part are."""

    inputs: Tensor | list[str]
    labels: Labels | None
    names: tuple[str, ...]  # of the classes
    has_transparent: bool  # whether some are transparent images


class _Items(NamedTuple):
    """The items of a data set."""

    inputs: list[Any]
    labels: list[Any]
    num_transparent: int


def _read_samples(data: Any, what: str, labeled: bool, background: str | None) -> _Samples:
    """Read inputs or texts, labels and class names; ``what`` names the data in messages."""
    if not is_part(data):
        raise DataError(
            f"{what}: got a {type(data).__name__}; expected arrays (inputs, labels), or a data set "
            "with a length"
        )
    if is_dataset(data) and not len(data):
        raise DataError(f"{what} holds no samples")
    names: Any = ()
    inputs, labels = data if is_labeled(data) else (data, ())
    num_transparent = 0
    if hasattr(data, "column_names"):  # of the datasets library
        rows = _read_rows(data, what, labeled)
        inputs, labels, num_transparent = _split(rows, what, background)
        names = getattr(data.features.get("label"), "names", ())
    elif is_dataset(data):
        items = map(data.__getitem__, range(len(data)))
        inputs, labels, num_transparent = _split(items, what, background)
        names = getattr(data, "classes", ())
        first = inputs[0]
        again = _split([data[0]], what, background).inputs[0]
        if not (torch.equal(first, again) if isinstance(first, Tensor) else first == again):
            raise DataError(
                f"item 0 of {what} differs when it is read twice, but all processes and a resumed "
                "run must have the same data: remove random transforms"
            )
    if background is not None:
        note_transparent(num_transparent, len(inputs), what, background)
    return _Samples(
        _stack(inputs, what) if isinstance(inputs, list) else _to_tensor(inputs, what),
        to_list(labels, f"the labels of {what}") if labeled and len(labels) else None,
        tuple(map(str, names)) if isinstance(names, Sequence) else (),
        num_transparent > 0,
    )


def _split(items: Iterable[Any], what: str, background: str | None) -> _Items:
    """Return the inputs and the labels of items (input, label), or of inputs alone."""
    inputs = []
    labels = []
    num_transparent = 0
    for index, item in enumerate(items):
        value, *rest = item if isinstance(item, tuple | list) else (item,)
        if len(rest) > 1:
            raise DataError(f"item {index} of {what} has {len(item)} parts: give (input, label)")
        plain, is_transparent = _to_plain(value, f"item {index} of {what}", background)
        inputs.append(plain)
        num_transparent += is_transparent
        labels += [int(label) if isinstance(label, Tensor) else label for label in rest]
    return _Items(inputs, labels, num_transparent)


def _read_rows(data: Any, what: str, labeled: bool) -> Iterator[list[Any]]:
    """Yield the items of a data set of the ``datasets`` library, read in slices."""
    columns = list(data.column_names)
    wanted = [name for name in ("image", "text") if name in columns]
    if len(wanted) != 1:
        raise DataError(
            f"{what}: got columns {shorten(columns)}; expected `image` or `text`, and `label`: "
            "rename one with dataset.rename_column"
        )
    if labeled and "label" in columns:
        wanted.append("label")
    plain = data.with_format(None)  # Python values and images, not arrays
    for start in range(0, len(data), _ROWS_PER_READ):
        rows = plain[start : start + _ROWS_PER_READ]
        yield from map(list, zip(*(rows[name] for name in wanted), strict=True))


def _to_plain(value: Any, what: str, background: str | None) -> tuple[Any, bool]:
    """Return an input as a text or as a tensor, and whether it is a transparent image.

    Images of PIL become uint8 of shape (C, H, W).
    """
    if isinstance(value, str | Tensor):
        return value, False
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value), False
    if isinstance(value, Image.Image):
        try:
            pixels, original = read_pil(value, background=background)
            return pixels, original.is_transparent
        except ValueError as error:
            raise DataError(f"{what} cannot be used ({error}): convert it to 8 bits") from error
    raise DataError(
        f"{what}: got a {type(value).__name__}; expected an image of PIL, an array, a tensor or a "
        "text: convert it, with a transform for example"
    )


def _stack(inputs: list[Any], what: str) -> Tensor | list[str]:
    """Return one tensor of all inputs, or the list of texts."""
    if isinstance(inputs[0], str):
        for index, text in enumerate(inputs):
            if not text.strip():
                raise DataError(f"text {index} of {what} is empty: remove such samples")
        return inputs
    if {value.shape[:-2] for value in inputs} == {(1,), (3,)}:  # gray images among color images
        inputs = [value.expand(3, *value.shape[1:]) for value in inputs]
    shapes = {tuple(value.shape) for value in inputs}
    if len(shapes) > 1:
        one, other = sorted(shapes)[:2]
        raise DataError(
            f"the inputs of {what}: got {len(shapes)} sizes, such as {one} and {other}; expected "
            "one: resize them, as torchvision.transforms.Resize((32, 32)) does"
        )
    return _to_tensor(torch.stack(inputs), what)


def _to_tensor(values: Any, what: str) -> Tensor:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        raise DataError(f"the inputs of {what}: got {array.dtype}; expected numbers")
    if array.dtype in (np.float64, np.float16):
        array = array.astype(np.float32)
    if array.ndim == 2 and not np.issubdtype(array.dtype, np.floating):
        return torch.from_numpy(array.astype(np.int32))  # token ids
    if array.ndim in (3, 4):
        return from_array(array, f"the array of {what}", floats=True)
    return torch.from_numpy(np.ascontiguousarray(array))
