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
        DataError: If there is no such file, or it cannot be read, lacks a column, a label or a
            client, or holds no texts.
    """
    texts, labels, clients, empty = [], [], [], []
    for row in _rows(path, columns, remedy):
        if not row.text and not keep_empty:
            empty.append(row.where)
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
    if empty and not _is_plain(path):
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
    """Turns class names into indices.

    Labels can also be indices as strings, unless one of the names is such an index itself.
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


def _suffix(path: Path) -> str:
    """The suffix of a file without that of its compression."""
    return (path.with_suffix("") if path.suffix in _DECOMPRESSORS else path).suffix


def _is_plain(path: Path) -> bool:
    return _suffix(path) == ".txt"


def _rows(path: Path, columns: Columns, remedy: str) -> Iterator[_Row]:
    if not path.is_file():
        raise DataNotFoundError(f"there is no file of texts at {path.absolute()}: correct the path")
    if _suffix(path) not in _SUFFIXES:
        raise DataError(
            f"{path.absolute()} must end in one of {', '.join(_SUFFIXES)}, followed by "
            f"{', '.join(_DECOMPRESSORS)} if it is compressed"
        )
    if _is_plain(path) and columns.label is not None:
        raise DataError(
            f"{path.absolute()} is plain text, which has no column {columns.label!r} of labels: "
            "set `label: null` and use it as auxiliary data"
        )
    opener: Any = _DECOMPRESSORS.get(path.suffix, open)
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            lines = _lines(file, path)
            if _is_plain(path):
                for count, line in enumerate(lines, 1):
                    if not (columns.skip and line.startswith(columns.skip)):
                        yield _Row(f"line {count}", line.strip())
                return
            delimiter = _DELIMITERS.get(_suffix(path))
            rows = _json_rows(lines) if delimiter is None else _csv_rows(lines, delimiter)
            for count, row in rows:
                yield _read_row(row, path, f"line {count}", columns, remedy)
    except FedauxError:
        raise
    # a damaged file can raise nearly any exception in the decompressors
    except Exception as error:
        raise DataError(f"{path.absolute()} cannot be read as text ({reason_of(error)})") from error


def _lines(file: IO[str], path: Path) -> Iterator[str]:
    """The lines of a file; raises an error rather than fill the memory."""
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
        if "\0" in value:  # which separates names in the cache
            raise ValueError(f"a null character in the {kind} of {where}")
    try:
        "".join([text, *found.values()]).encode()
    except UnicodeEncodeError as error:  # JSON can escape half of a surrogate pair
        raise ValueError(f"no valid text in {where}: {error}") from error
    return _Row(where, text, **found)


def sample_positions(count: int, limit: int | None, seed: int) -> Tensor:
    """The sorted positions of ``limit`` of ``count`` samples, drawn at random; None for all."""
    if limit is None or limit >= count:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=generator)[:limit].sort().values


def check_limit(limit: int | None) -> int | None:
    """Returns the limit, or raises a ValueError below 1."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, or null for all, but is {limit}")
    return limit
