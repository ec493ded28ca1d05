"""Reads texts and labels from CSV, JSON-lines and plain text files, compressed or not."""

import bz2
import csv
import gzip
import json
import lzma
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from fedaux_pl.data.foreign_files import check_expansion, reason_of, shorten
from fedaux_pl.errors import DataError, DataNotFoundError, FedauxError

_DECOMPRESSORS = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_SUFFIXES = (*_DELIMITERS, ".jsonl", ".ndjson", ".txt")
_MAX_LINE = 1 << 26  # characters of a line, or of a value in a CSV file
# spaces after the end of a sentence, or after a quotation mark or bracket that follows it
_SENTENCE_BREAK = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')\]]))\s+")


@dataclass(frozen=True)
class Columns:  # its repr is part of cache keys: do not rename the class or its fields
    """The parts of a file to read.

    Args:
        text: The columns whose values are joined by a space to one text; in a .txt file each line
            is a text.
        label: The column of the labels; None for no labels.
        skip: Lines of a .txt file that start with this prefix are skipped; empty for none.
        sentences: Whether to split texts into sentences; only without labels.
        client: The column of the clients that hold the texts; None for none.
    """

    text: Sequence[str] = ("text",)
    label: str | None = None
    skip: str = ""
    sentences: bool = False
    client: str | None = field(default=None, repr=False)  # has an entry of its own in cache keys


class Texts(NamedTuple):
    """The texts of a file, and for each its label and its client; empty lists for none."""

    texts: list[str]
    labels: list[str]
    clients: list[str]


class _Row(NamedTuple):
    """A row of a file; "" for a value that is missing."""

    where: str  # the line, for messages
    text: str
    label: str = ""
    client: str = ""


def read_texts(
    path: Path,
    columns: Columns,
    remedy: str = "set `text`, `label` and `client_column` to columns that it has",
    keep_empty: bool = False,
) -> Texts:
    """Reads the texts of a file, their labels and their clients, as strings.

    Rows without a text are skipped with a warning, empty lines of .txt files silently.

    Args:
        path: The file.
        columns: The parts of it to read.
        remedy: What to change if the file lacks a column, for the message.
        keep_empty: Whether to keep rows without a text, and empty lines of .txt files, as "".

    Raises:
        DataNotFoundError: If there is no such file.
        DataError: If it cannot be read, lacks a column, a label or a client, or holds no texts.
    """
    texts, labels, clients, empty = [], [], [], []
    for row in _rows(path, columns, remedy, keep_empty):
        if not row.text:
            empty.append(row.where)
            if not keep_empty:
                continue
        for name, value in ((columns.label, row.label), (columns.client, row.client)):
            if name is not None and not value:
                raise DataError(f"{path.absolute()} has no {name} in {row.where}: add it")
        parts = _SENTENCE_BREAK.split(row.text) if columns.sentences else [row.text]
        texts += [part for part in parts if part or keep_empty]
        labels.append(row.label)
        clients.append(row.client)
    if not any(texts):
        raise DataError(f"{path.absolute()} holds no texts")
    if empty and not keep_empty:
        warnings.warn(
            f"{path.absolute()}: {len(empty)} of {len(empty) + len(labels)} rows have no text and "
            f"are skipped, the first in {empty[0]}",
            stacklevel=2,
        )
    return Texts(
        texts,
        labels if columns.label is not None else [],
        clients if columns.client is not None else [],
    )


def class_indices(labels: Sequence[str], classes: Sequence[str]) -> Tensor:
    """Turns labels into class indices.

    Args:
        labels: Class names or, unless one of the names is such an index itself, class indices as
            strings, 0 ... len(classes) - 1.
        classes: The names of the classes, in order.
    """
    indices = {name: index for index, name in enumerate(classes)}
    numbers = {str(index): index for index in range(len(classes))}
    if not indices.keys() & numbers:  # whatever the labels: all files must be read alike
        indices |= numbers
    if unknown := sorted(set(labels) - indices.keys()):
        raise DataError(
            f"labels must be the classes {shorten(classes)} or, if none of them is an index, "
            f"indices from 0, but the file has {shorten([repr(label) for label in unknown], 5)}: "
            "set `classes`, or correct the file"
        )
    return torch.tensor([indices[label] for label in labels])


def class_names(labels: Sequence[str]) -> tuple[str, ...]:
    """The distinct labels: sorted by value if all are integers, otherwise alphabetically."""
    names = set(labels)
    try:
        return tuple(sorted(names, key=lambda name: (int(name), name)))  # "1" and "01" differ
    except ValueError:
        return tuple(sorted(names))


def _rows(path: Path, columns: Columns, remedy: str, keep_empty: bool) -> Iterator[_Row]:
    if not path.is_file():
        raise DataNotFoundError(f"there is no file of texts at {path.absolute()}: correct the path")
    is_compressed = path.suffix in _DECOMPRESSORS
    suffix = (path.with_suffix("") if is_compressed else path).suffix
    if suffix not in _SUFFIXES:
        raise DataError(
            f"{path.absolute()} must end in one of {', '.join(_SUFFIXES)}, followed by "
            f"{', '.join(_DECOMPRESSORS)} if it is compressed"
        )
    opener: Any = _DECOMPRESSORS.get(path.suffix, open)
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            lines = _lines(file, path)
            if suffix == ".txt":
                yield from _plain_rows(lines, path, columns, keep_empty)
                return
            rows = _json_rows(lines, path)
            if suffix in _DELIMITERS:
                rows = _csv_rows(lines, path, _DELIMITERS[suffix])
            for where, row in rows:
                yield _read_row(row, path, where, columns, remedy)
    except FedauxError:
        raise
    # a damaged file can raise nearly any exception in the decompressors
    except Exception as error:
        raise DataError(f"{path.absolute()} cannot be read as text ({reason_of(error)})") from error


def _lines(file: IO[str], path: Path) -> Iterator[str]:
    """The lines of a file; raises a DataError rather than fill the memory."""
    compressed, count = path.stat().st_size, 0
    while line := file.readline(_MAX_LINE):
        if len(line) == _MAX_LINE:
            raise DataError(
                f"{path.absolute()} has a line of {_MAX_LINE} characters or more: is it a file of "
                "texts? Split the line"
            )
        count += len(line)
        check_expansion(count, compressed, str(path.absolute()))
        yield line


def _plain_rows(
    lines: Iterator[str], path: Path, columns: Columns, keep_empty: bool
) -> Iterator[_Row]:
    if columns.label is not None:
        raise DataError(
            f"{path.absolute()} is plain text, which has no column {columns.label!r} of labels: "
            "set `label: null` and use it as auxiliary data"
        )
    for count, line in enumerate(lines, 1):
        text = line.strip()
        if (text or keep_empty) and not (columns.skip and line.startswith(columns.skip)):
            yield _Row(f"line {count}", text)


def _csv_rows(
    lines: Iterator[str], path: Path, delimiter: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    csv.field_size_limit(_MAX_LINE)  # long texts exceed the default
    reader = csv.DictReader(lines, delimiter=delimiter)
    if not reader.fieldnames:
        raise DataError(f"{path.absolute()} is empty: its first line must name the columns")
    for row in reader:
        yield f"line {reader.line_num}", row


def _json_rows(lines: Iterator[str], path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for count, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path.absolute()}, line {count}, is not JSON ({reason_of(error)})"
            ) from error
        if not isinstance(row, dict):
            raise DataError(f"{path.absolute()}, line {count}, is not a JSON object of columns")
        yield f"line {count}", row


def _read_row(
    row: Mapping[str, Any], path: Path, where: str, columns: Columns, remedy: str
) -> _Row:
    others = {"label": columns.label, "client": columns.client}
    names = [*columns.text] + [name for name in others.values() if name is not None]
    if missing := [name for name in names if name not in row]:
        existing = shorten([str(name) for name in row if name is not None])
        raise DataError(
            f"{path.absolute()} has no column {', '.join(map(repr, missing))} in {where}; its "
            f"columns are {existing}: {remedy}"
        )
    values = {name: "" if row[name] is None else str(row[name]).strip() for name in names}
    text = " ".join(value for value in map(values.get, columns.text) if value)
    found = {kind: "" if name is None else values[name] for kind, name in others.items()}
    for kind, value in found.items():
        if "\0" in value:
            raise DataError(f"{path.absolute()} has a null character in the {kind} of {where}")
    try:
        "".join([text, *found.values()]).encode()
    except UnicodeEncodeError as error:  # JSON can escape half of a surrogate pair
        raise DataError(
            f"{path.absolute()} has no valid text in {where} ({reason_of(error)})"
        ) from error
    return _Row(where, text, **found)
