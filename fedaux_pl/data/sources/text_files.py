"""Texts in a user's files: CSV, JSON lines and plain text, compressed or not."""

import bz2
import csv
import gzip
import json
import lzma
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from fedaux_pl.data.cache import CacheKey, fingerprint
from fedaux_pl.data.downloads import Download
from fedaux_pl.data.input_checks import (
    check_expansion,
    check_test_data,
    expand,
    note,
    path_not_found,
    reason_of,
    shorten,
)
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.data.source import Examples, name_of_path
from fedaux_pl.data.tokenizer import Texts, TextSource
from fedaux_pl.errors import DataError, FedauxError, check_setting

_DECOMPRESSORS = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_SUFFIXES = (*_DELIMITERS, ".jsonl", ".ndjson", ".txt")
_MAX_LINE = 1 << 26  # characters of a line, or of a value in a CSV file
# spaces after the end of a sentence, or after a quotation mark or bracket that follows it
_SENTENCE_BREAK = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')\]]))\s+")


@dataclass(frozen=True)
class TextLayout:
    """Where texts, labels and clients are in a file.

    Args:
        text: The column of the texts, or several columns, whose values are joined by a space. In a
            .txt file each line is a text.
        label: The column of the labels; null for none.
        client: The column that names the client of each training text; null if the clients get a
            random split. Where test and validation files have it, too, metrics are also measured
            for each client.
        skip: Lines of a .txt file that start with this prefix, such as headings, are skipped.
        sentences: Whether to split texts into sentences, each of them one sample without a label.
    """

    text: str | list[str] = "text"
    label: str | None = "label"
    client: str | None = None
    skip: str = ""  # not None: the command line would parse "#" as null
    sentences: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the texts."""
        return (self.text,) if isinstance(self.text, str) else tuple(self.text)


@dataclass(frozen=True)
class TextDraw:
    """Which texts are drawn at random.

    Args:
        limit: The number of training texts; null for all.
        test_fraction: The fraction to hold out as test texts, if there is no file of them.
        seed: The seed of the draws.
    """

    limit: int | None = None
    test_fraction: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        is_allowed = self.limit is None or self.limit >= 1
        check_setting("limit", self.limit, is_allowed, "be at least 1, or null for all")

    def positions(self, count: int, part: str) -> Tensor:
        """Return the sorted positions of the texts of a part: ``train``, ``test`` or ``all``."""
        where = torch.arange(count)
        if part != "all" and self.test_fraction:
            held_out = torch.zeros(count, dtype=torch.bool)
            # with another seed than the ``limit`` training texts
            held_out[_sample(count, round(count * self.test_fraction), self.seed + 1)] = True
            where = where[held_out if part == "test" else ~held_out]
        return where[_sample(len(where), self.limit, self.seed)] if part == "train" else where


def _sample(count: int, limit: int | None, seed: int) -> Tensor:
    if limit is None or limit >= count:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=generator)[:limit].sort().values


class TextFiles(TextSource):
    r"""Texts in a .csv, .tsv, .jsonl or .txt file, which may be compressed (.xz, .gz, .bz2).

    The first line of a CSV file names its columns. A .txt file has one text per line and no
    labels, and can be auxiliary data only. Labels are class names or integers: without
    ``data.classes`` the distinct labels of the training file are the classes, sorted by value if
    all are integers and alphabetically otherwise; with them, labels are these names or, unless a
    name is such an index itself, their indices from 0. Rows without a text are skipped with a
    note.

    Args:
        path: The file.
        test_path: The file of the test data, with the same columns.
        validation_path: The file of validation data, with the same columns.
        layout: Which columns and lines of the files are read.
        draw: Which texts are training and test data, if not all of ``path``.
        tokenizer: A folder or a name on the hub, the same as the model's ``source``; null for the
            small English vocabulary of the package.
        max_length: The number of token ids of a text; longer texts are truncated, shorter padded.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from fedaux_pl.data import TextFiles, TextLayout
        >>> path = Path(tempfile.mkdtemp()) / "reviews.csv"
        >>> _ = path.write_text("review,label\na good book,good\na dull film,bad\n")
        >>> train = TextFiles(path, layout=TextLayout(text="review"), max_length=8).train()
        >>> train.inputs.shape, train.classes
        (torch.Size([2, 8]), ('bad', 'good'))
    """

    remedy = "set `test_path`, or `draw.test_fraction` to hold out a fraction of `path`"

    def __init__(
        self,
        path: str | Path,
        test_path: str | Path | None = None,
        validation_path: str | Path | None = None,
        layout: TextLayout = TextLayout(),
        draw: TextDraw = TextDraw(),
        tokenizer: str | Path | None = None,
        max_length: int = 128,
    ) -> None:
        super().__init__(tokenizer, max_length)
        check_test_data(draw.test_fraction, "test_path", test_path)
        self.path = Path(path).expanduser()
        self.test_path = expand(test_path)
        self.validation_path = expand(validation_path)
        self.layout = replace(layout, label=None) if layout.sentences else layout
        self.draw = draw

    @property
    def data_name(self) -> str:
        """The name of the file, or of the folder of a file such as ``train``."""
        return name_of_path(self.path)

    def auxiliary(self) -> Inputs:
        """The training texts; labels are not read and may be missing."""
        layout = replace(self.layout, label=None, client=None)
        return self._read(self.path, layout, "train", self.class_order).inputs

    def downloads(self, parts: Collection[str]) -> list[Download]:
        """Return none; raise a DataError if there is no file of training texts."""
        if "train" in parts or "auxiliary" in parts:
            check_text_file(self.path)
        return []

    def load(self, part: str) -> Examples | None:
        """Load the texts of ``path``, or those held out of it, or those of another file."""
        if part == "train":
            return self._read(self.path, self.layout, part, self.class_order)
        other = self.test_path if part == "test" else self.validation_path
        if other is None and not (part == "test" and self.draw.test_fraction):
            return None
        path = other or self.path
        layout = self.layout
        if layout.client is not None and not has_column(path, layout.client):
            layout = replace(layout, client=None)
        classes = self.class_order or self.train().classes
        return self._read(path, layout, "all" if other else part, classes)

    def _read(self, path: Path, layout: TextLayout, part: str, classes: Sequence[str]) -> Examples:
        check_text_file(path)
        # the entries and their form are part of the cache key: do not rename them
        columns = f"text={layout.columns!r}, label={layout.label!r}, skip={layout.skip!r}"
        key: CacheKey = {
            "files": fingerprint([path]),
            "columns": f"Columns({columns}, sentences={layout.sentences!r})",
            "part": part,
            "drawn": repr((self.draw.limit, self.draw.test_fraction, self.draw.seed)),
        }
        if layout.client is not None:
            key["client"] = layout.client

        def read() -> Texts:
            rows = read_texts(path, layout)
            chosen = self.draw.positions(len(rows.texts), part).tolist()

            def choose(column: list[str]) -> list[str]:
                return [column[i] for i in chosen] if column else []

            return Texts(*map(choose, rows))

        return self.load_tokens(key, read, classes)


def read_texts(
    path: Path,
    layout: TextLayout,
    remedy: str = "set `layout.text`, `layout.label` and `layout.client` to columns that it has",
    keep_empty: bool = False,
) -> Texts:
    """Read the texts of a file, their labels and their clients, as strings.

    Rows without a text are skipped with a note, empty lines of .txt files silently; with
    ``keep_empty`` both are kept as "". ``remedy`` says what to change if the file lacks a column.
    """
    texts = []
    labels = []
    clients = []
    empty = []
    for line, text, label, client in _rows(path, layout, remedy):
        if not text and not keep_empty:
            empty.append(line)
            continue
        for name, value in ((layout.label, label), (layout.client, client)):
            if name is not None and not value:
                raise DataError(f"{path.absolute()} has no {name} in line {line}: add it")
        sentences = _SENTENCE_BREAK.split(text) if layout.sentences else [text]
        texts += [sentence for sentence in sentences if sentence or keep_empty]
        labels.append(label)
        clients.append(client)
    if not any(texts):
        raise DataError(f"{path.absolute()} holds no texts")
    if empty and _suffix(path) != ".txt":
        note(
            f"{path.absolute()}: {len(empty)} of {len(empty) + len(labels)} rows have no text and "
            f"are skipped, the first in line {empty[0]}"
        )
    return Texts(texts, labels if layout.label else [], clients if layout.client else [])


def has_column(path: Path, name: str) -> bool:
    """Return whether the first row of a file has a column."""
    try:
        next(_rows(path, TextLayout(name, label=None), ""), None)
    except DataError:  # also of a file that cannot be read, which its reader says better
        return False
    return True


def _suffix(path: Path) -> str:
    return (path.with_suffix("") if path.suffix in _DECOMPRESSORS else path).suffix


def check_text_file(path: Path) -> None:
    """Raise a DataError if there is no file, or its suffix is not one of a file of texts."""
    if not path.is_file():
        raise path_not_found("there is no file of texts at", path)
    if _suffix(path) not in _SUFFIXES:
        raise DataError(
            f"got {path.absolute()}; expected one of {', '.join(_SUFFIXES)}, followed by "
            f"{', '.join(_DECOMPRESSORS)} if it is compressed"
        )


def _rows(path: Path, layout: TextLayout, remedy: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield the line, the text, the label and the client of each row; "" for a missing value."""
    check_text_file(path)
    suffix = _suffix(path)
    is_plain = suffix == ".txt"
    if is_plain and layout.label is not None:
        raise DataError(
            f"{path.absolute()} is plain text, which has no column {layout.label!r} of labels: "
            "use it as auxiliary data, or give labeled texts as .csv or .jsonl"
        )
    csv.field_size_limit(_MAX_LINE)  # long texts exceed the default
    opener: Any = _DECOMPRESSORS.get(path.suffix, open)
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            lines = _lines(file, path)
            if suffix in _DELIMITERS:
                reader = csv.DictReader(lines, delimiter=_DELIMITERS[suffix])
                if not reader.fieldnames:
                    raise ValueError("its first line must name the columns")
                for row in reader:
                    count = reader.line_num
                    yield count, *_read_row(row, path, count, layout, remedy)
                return
            for count, line in enumerate(lines, 1):
                if is_plain:
                    if not (layout.skip and line.startswith(layout.skip)):
                        yield count, line.strip(), "", ""
                elif line.strip():
                    yield count, *_read_row(line, path, count, layout, remedy)
    except FedauxError:
        raise
    # a damaged file can raise nearly any exception in the decompressors
    except Exception as error:
        advice = ": save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        raise DataError(
            f"{path.absolute()} cannot be read as text ({reason_of(error)}){advice}"
        ) from error


def _lines(file: IO[str], path: Path) -> Iterator[str]:
    compressed = path.stat().st_size
    count = 0
    while line := file.readline(_MAX_LINE):
        if len(line) == _MAX_LINE:
            raise ValueError(f"a line of {_MAX_LINE} characters or more: split it")
        count += len(line)
        check_expansion(count, compressed, str(path.absolute()))
        yield line


def _read_row(
    row: str | Mapping[str, Any], path: Path, line: int, layout: TextLayout, remedy: str
) -> tuple[str, str, str]:
    try:
        row = json.loads(row) if isinstance(row, str) else row
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {line} is not JSON: {error}") from error
    if not isinstance(row, Mapping):
        raise ValueError(f"line {line} is no JSON object of columns")
    names = [name for name in (*layout.columns, layout.label, layout.client) if name is not None]
    values: dict[str | None, str] = {None: ""}
    for name in names:
        if name not in row:
            existing = shorten([str(column) for column in row if column is not None])
            raise DataError(
                f"{path.absolute()} has no column {name!r} in line {line}; its columns are "
                f"{existing}: {remedy}"
            )
        values[name] = "" if row[name] is None else str(row[name]).strip()
    text = " ".join(filter(None, map(values.get, layout.columns)))
    label = values[layout.label]
    client = values[layout.client]
    if "\0" in label + client:  # which separates names in the cache
        raise ValueError(f"line {line} has a null character in a label or a client")
    try:
        f"{text}{label}{client}".encode()
    except UnicodeEncodeError as error:  # JSON can escape half of a surrogate pair
        raise ValueError(f"line {line} is no valid text: {error}") from error
    return text, label, client
