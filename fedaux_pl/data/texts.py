"""Reads texts and labels from CSV, JSON-lines and plain text files, compressed or not."""

import bz2
import csv
import gzip
import json
import lzma
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from fedaux_pl.data.input_checks import check_expansion, reason_of, shorten
from fedaux_pl.errors import DataError, DataNotFoundError, FedauxError

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
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1, or null for all, but is {self.limit}")

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


class Texts(NamedTuple):
    """The texts of a file, and for each its label and its client; empty lists for none."""

    texts: list[str]
    labels: list[str]
    clients: list[str]


def read_texts(
    path: Path,
    layout: TextLayout,
    remedy: str = "set `layout.text`, `layout.label` and `layout.client` to columns that it has",
    keep_empty: bool = False,
) -> Texts:
    """Read the texts of a file, their labels and their clients, as strings.

    Rows without a text are skipped with a warning, empty lines of .txt files silently; with
    ``keep_empty`` both are kept as "". ``remedy`` says what to change if the file lacks a column.
    A file that cannot be read, lacks a label or a client, or holds no texts raises a DataError.
    """
    texts, labels, clients, empty = [], [], [], []
    for line, text, label, client in _rows(path, layout, remedy):
        if not text and not keep_empty:
            empty.append(line)
            continue
        for name, value in ((layout.label, label), (layout.client, client)):
            if name is not None and not value:
                raise DataError(f"{path.absolute()} has no {name} in line {line}: add it")
        parts = _SENTENCE_BREAK.split(text) if layout.sentences else [text]
        texts += [part for part in parts if part or keep_empty]
        labels.append(label)
        clients.append(client)
    if not any(texts):
        raise DataError(f"{path.absolute()} holds no texts")
    if empty and not _is_plain(path):
        warnings.warn(
            f"{path.absolute()}: {len(empty)} of {len(empty) + len(labels)} rows have no text and "
            f"are skipped, the first in line {empty[0]}",
            stacklevel=2,
        )
    return Texts(
        texts,
        labels if layout.label is not None else [],
        clients if layout.client is not None else [],
    )


def has_column(path: Path, name: str) -> bool:
    """Return whether the first row of a file has a column."""
    try:
        next(_rows(path, TextLayout(name, label=None), ""), None)
    except DataError:  # also of a file that cannot be read, which its reader says better
        return False
    return True


def _suffix(path: Path) -> str:
    """The suffix of a file without that of its compression."""
    return (path.with_suffix("") if path.suffix in _DECOMPRESSORS else path).suffix


def _is_plain(path: Path) -> bool:
    return _suffix(path) == ".txt"


def check_text_file(path: Path) -> None:
    """Raise a DataError if there is no file, or its suffix is not one of a file of texts."""
    if not path.is_file():
        raise DataNotFoundError(
            f"there is no file of texts at {path.absolute()}: correct the path; to run without "
            "files of your own use the embedded texts: `configs/text_quickstart.yaml`"
        )
    if _suffix(path) not in _SUFFIXES:
        raise DataError(
            f"{path.absolute()} must end in one of {', '.join(_SUFFIXES)}, followed by "
            f"{', '.join(_DECOMPRESSORS)} if it is compressed"
        )


def _rows(path: Path, layout: TextLayout, remedy: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield the line, the text, the label and the client of each row; "" for a missing value."""
    check_text_file(path)
    if _is_plain(path) and layout.label is not None:
        raise DataError(
            f"{path.absolute()} is plain text, which has no column {layout.label!r} of labels: "
            "use it as auxiliary data, or give labeled texts as .csv or .jsonl"
        )
    opener: Any = _DECOMPRESSORS.get(path.suffix, open)
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            lines = _lines(file, path)
            if _is_plain(path):
                for count, line in enumerate(lines, 1):
                    if not (layout.skip and line.startswith(layout.skip)):
                        yield count, line.strip(), "", ""
                return
            delimiter = _DELIMITERS.get(_suffix(path))
            rows = _json_rows(lines) if delimiter is None else _csv_rows(lines, delimiter)
            for count, row in rows:
                yield count, *_read_row(row, path, count, layout, remedy)
    except FedauxError:
        raise
    # a damaged file can raise nearly any exception in the decompressors
    except Exception as error:
        raise DataError(f"{path.absolute()} cannot be read as text ({reason_of(error)})") from error


def _lines(file: IO[str], path: Path) -> Iterator[str]:
    """Yield the lines of a file; raise an error rather than fill the memory."""
    compressed, count = path.stat().st_size, 0
    while line := file.readline(_MAX_LINE):
        if len(line) == _MAX_LINE:
            raise ValueError(f"a line of {_MAX_LINE} characters or more: split it")
        count += len(line)
        check_expansion(count, compressed, str(path.absolute()))
        yield line


def _csv_rows(lines: Iterator[str], delimiter: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    csv.field_size_limit(_MAX_LINE)  # long texts exceed the default
    reader = csv.DictReader(lines, delimiter=delimiter)
    if not reader.fieldnames:
        raise ValueError("its first line must name the columns")
    for row in reader:
        yield reader.line_num, row


def _json_rows(lines: Iterator[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for count, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {count} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {count} is not a JSON object of columns")
        yield count, row


def _read_row(
    row: Mapping[str, Any], path: Path, line: int, layout: TextLayout, remedy: str
) -> tuple[str, str, str]:
    names = [name for name in (*layout.columns, layout.label, layout.client) if name is not None]
    if missing := [name for name in names if name not in row]:
        existing = shorten([str(name) for name in row if name is not None])
        raise DataError(
            f"{path.absolute()} has no column {', '.join(map(repr, missing))} in line {line}; its "
            f"columns are {existing}: {remedy}"
        )
    values = {name: "" if row[name] is None else str(row[name]).strip() for name in names}
    text = " ".join(value for value in map(values.get, layout.columns) if value)
    label, client = (values[name] if name else "" for name in (layout.label, layout.client))
    for kind, value in (("label", label), ("client", client)):
        if "\0" in value:  # which separates names in the cache
            raise ValueError(f"a null character in the {kind} of line {line}")
    try:
        f"{text}{label}{client}".encode()
    except UnicodeEncodeError as error:  # JSON can escape half of a surrogate pair
        raise ValueError(f"no valid text in line {line}: {error}") from error
    return text, label, client
