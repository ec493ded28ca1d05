"""Texts and labels in files: CSV, JSON lines and plain text, compressed or not."""

import bz2
import csv
import gzip
import json
import lzma
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from fedaux_pl.errors import DataError, DataNotFoundError

_OPEN = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}
_TABLES = {".csv": ",", ".tsv": "\t"}
_LINES = (".jsonl", ".ndjson")
_KINDS = (*_TABLES, *_LINES, ".txt")
# after a full stop, or after the quotation mark or bracket that closes behind it
_SENTENCE = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')\]]))\s+")


@dataclass(frozen=True)
class Columns:
    """What is read of a file.

    Args:
        text: The columns whose values are joined, by a space, into a text; of .txt files each line
            is one.
        label: The column of the labels; None to leave them unread.
        skip: Lines of .txt files that begin with this are left out; none if it is empty.
        sentences: Whether each sentence is a text of its own, where there are no labels.
    """

    text: Sequence[str] = ("text",)
    label: str | None = None
    skip: str = ""
    sentences: bool = False


def read_texts(path: Path, columns: Columns) -> tuple[list[str], list[str]]:
    """The texts of a file, and the labels as they are written there.

    Rows without a text are left out, with a warning that says how many they are; empty lines of
    .txt files without one.
    """
    texts, labels, empty = [], [], []
    for where, text, label in _rows(path, columns):
        if not text:
            empty.append(where)
            continue
        if columns.label is not None and not label:
            raise DataError(f"{path.absolute()} has no {columns.label} in {where}: add it")
        found = _SENTENCE.split(text) if columns.sentences else [text]
        texts += [sentence for sentence in found if sentence]
        labels.append(label)
    if not texts:
        raise DataError(f"{path.absolute()} holds no texts")
    if empty:
        warnings.warn(
            f"{path.absolute()}: {len(empty)} of {len(empty) + len(labels)} rows have no text and "
            f"are left out, the first in {empty[0]}",
            stacklevel=2,
        )
    return texts, labels if columns.label is not None else []


def number(labels: Sequence[str], classes: Sequence[str]) -> Tensor:
    """Labels as numbers of classes.

    Args:
        labels: Names of classes, or throughout their numbers 0 ... len(classes) - 1.
        classes: The names, in their order.
    """
    places = {name: place for place, name in enumerate(classes)}
    if not set(labels) <= places.keys():
        places = {str(place): place for place in range(len(classes))}
    if unknown := sorted(set(labels) - places.keys()):
        raise DataError(
            f"the labels {', '.join(map(repr, unknown[:5]))} are none of the classes "
            f"{', '.join(classes)} (nor their numbers, from 0): set `classes`, or correct the file"
        )
    return torch.tensor([places[label] for label in labels])


def class_names(labels: Sequence[str]) -> tuple[str, ...]:
    """The different labels in order: by value where all are integers, else by alphabet."""
    found = set(labels)
    try:
        return tuple(sorted(found, key=int))
    except ValueError:
        return tuple(sorted(found))


def _rows(path: Path, columns: Columns) -> Iterator[tuple[str, str, str]]:
    """Where a row is, its text and its label, both "" where there is none."""
    if not path.is_file():
        raise DataNotFoundError(f"there is no file of texts at {path.absolute()}: correct the path")
    packed = path.suffix in _OPEN
    kind = (path.with_suffix("") if packed else path).suffix
    if kind not in _KINDS:
        raise DataError(
            f"{path.absolute()} must end in one of {', '.join(_KINDS)}, and may be compressed "
            f"({', '.join(_OPEN)} after that)"
        )
    opened: Any = _OPEN.get(path.suffix, open)
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            if kind == ".txt":
                yield from _plain(file, path, columns)
                return
            read = _csv(file, path, _TABLES[kind]) if kind in _TABLES else _json(file, path)
            for where, row in read:
                yield where, *_pick(row, path, where, columns)
    except (UnicodeDecodeError, lzma.LZMAError, EOFError, gzip.BadGzipFile, csv.Error) as error:
        raise DataError(f"{path.absolute()} cannot be read as text ({error})") from error


def _plain(file: IO[str], path: Path, columns: Columns) -> Iterator[tuple[str, str, str]]:
    if columns.label is not None:
        raise DataError(
            f"{path.absolute()} is plain text, which has no column {columns.label!r} of labels: "
            "set `label: null` and use it as auxiliary data"
        )
    for count, line in enumerate(file, 1):
        text = line.strip()
        if text and not (columns.skip and line.startswith(columns.skip)):
            yield f"line {count}", text, ""


def _csv(file: IO[str], path: Path, delimiter: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    csv.field_size_limit(1 << 30)  # the default is shorter than a long review
    reader = csv.DictReader(file, delimiter=delimiter)
    if not reader.fieldnames:
        raise DataError(f"{path.absolute()} is empty: its first line must name the columns")
    for row in reader:
        yield f"line {reader.line_num}", row


def _json(file: IO[str], path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for count, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path.absolute()}, line {count}, is no JSON ({error})") from error
        if not isinstance(row, dict):
            raise DataError(f"{path.absolute()}, line {count}, is no JSON object of columns")
        yield f"line {count}", row


def _pick(row: Mapping[str, Any], path: Path, where: str, columns: Columns) -> tuple[str, str]:
    asked = [*columns.text] + ([] if columns.label is None else [columns.label])
    if missing := [name for name in asked if name not in row]:
        has = ", ".join(str(name) for name in row if name is not None)
        raise DataError(
            f"{path.absolute()} has no column {', '.join(map(repr, missing))} in {where}, but: "
            f"{has}; set `text` and `label` to columns that it has"
        )
    values = ["" if row[name] is None else str(row[name]).strip() for name in asked]
    count = len(columns.text)
    text = " ".join(value for value in values[:count] if value)
    return text, "" if columns.label is None else values[count]
