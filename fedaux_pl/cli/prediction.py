"""``fedaux-pl predict``: class probabilities of a run's students for new images or texts."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch
from torch import Tensor

from fedaux_pl.data import NpzImages
from fedaux_pl.data.images import decode_images, is_image, list_images
from fedaux_pl.data.input_checks import shorten
from fedaux_pl.data.texts import TextLayout, read_texts
from fedaux_pl.data.tokenizer import FixedLengthTokenizer
from fedaux_pl.engine import predict_logits
from fedaux_pl.engine.checkpoints import load_checkpoint
from fedaux_pl.errors import ConfigurationError, DataError, DataNotFoundError
from fedaux_pl.files import write_text_atomically
from fedaux_pl.models import trained_models


class Images(NamedTuple):
    """Images and their names; the images at the positions in ``failures`` cannot be read."""

    inputs: Tensor
    names: list[str]
    failures: dict[int, str]


def predict_images(
    checkpoint: Path, images: Sequence[Path], output: Path, key: str = "train_x"
) -> Path:
    """Writes class probabilities for image files, folders of them, or an npz file.

    A file that cannot be read has a row without class and probabilities.

    Args:
        checkpoint: The checkpoint of a run.
        images: Image files and folders of image files, or one npz file.
        output: The csv file to write, which is returned.
        key: The array of the npz file.

    Raises:
        DataError: If there are no images, none can be read, or they do not fit the run.
    """
    loaded = load_checkpoint(checkpoint)
    if _text_format(loaded):
        raise ConfigurationError("this run was trained on texts: give --texts, not --images")
    inputs, names, failures = read_images(images, key, loaded["federation"]["input_shape"])
    if len(failures) == len(names):
        raise DataError(failures[0])
    readable = [index for index in range(len(names)) if index not in failures]
    table = _spread(probabilities(loaded, inputs[readable]), readable, len(names))
    header = ["image", "class", *loaded["federation"]["classes"]]
    write_table(output, header, [[name] for name in names], table)
    unreadable = shorten([names[index] for index in failures])
    note = f" ({len(failures)} cannot be read and have empty rows: {unreadable})"
    print(f"{len(names)} images{note if failures else ''}: {output}")
    return output


def predict_texts(checkpoint: Path, texts: Path, output: Path, column: Sequence[str]) -> Path:
    """Writes class probabilities for the texts in a file, a row for each row of the file.

    A row without a text has no class and no probabilities.

    Args:
        checkpoint: The checkpoint of a run.
        texts: A csv, JSON-lines or plain text file (see ``TextFiles``).
        output: The csv file to write, which is returned; rows have the index of a text, from 0, and
            the text.
        column: The columns whose values are joined to a text; ignored for plain text.
    """
    loaded = load_checkpoint(checkpoint)
    text_format = _text_format(loaded)
    if not text_format:
        raise ConfigurationError("this run was trained on images: give --images, not --texts")
    remedy = "give --column and the name of the text column"
    layout = TextLayout(text=list(column), label=None)
    found = read_texts(texts, layout, remedy, keep_empty=True).texts
    tokenize = FixedLengthTokenizer(text_format.get("tokenizer"), text_format["max_length"])
    filled = [index for index, text in enumerate(found) if text]
    inputs = tokenize([found[index] for index in filled])
    table = _spread(probabilities(loaded, inputs), filled, len(found))
    header = ["row", "text", "class", *loaded["federation"]["classes"]]
    write_table(output, header, [[str(index), text] for index, text in enumerate(found)], table)
    empty = len(found) - len(filled)
    note = f" ({empty} without a text have empty rows)" if empty else ""
    print(f"{len(found)} texts{note}: {output}")
    return output


def _spread(values: Tensor, positions: Sequence[int], count: int) -> list[list[float]]:
    """One list of probabilities for each of ``count`` rows, empty except at the positions."""
    rows: list[list[float]] = [[] for _ in range(count)]
    for position, row in zip(positions, values.tolist(), strict=True):
        rows[position] = row
    return rows


def _text_format(checkpoint: dict[str, Any]) -> Any:
    """The tokenizer and length of the run's texts; empty if it was trained on images."""
    return checkpoint["federation"].get("input_format", {})


def read_images(paths: Sequence[Path], key: str, shape: Sequence[int]) -> Images:
    """Reads uint8 images, which must have the shape of the run's inputs, and their names.

    Args:
        paths: Image files and folders of image files, or one npz file.
        key: The array of the npz file.
        shape: The shape of the run's inputs, (C, H, W).
    """
    for path in paths:
        if not path.exists():
            raise DataNotFoundError(f"there are no images at {path.absolute()}: correct the path")
    if [path.suffix for path in paths] == [".npz"] and paths[0].is_file():
        return _read_npz(paths[0], key, shape)
    files = [file for path in paths for file in _list_files(path)]
    channels, height, width = shape
    if height != width:
        raise DataError(
            f"image files are scaled to squares, but the run was trained on {height}x{width} "
            "pixels: give an npz file"
        )
    inputs, failures = decode_images(files, height, 1 if channels == 1 else 3, skip=True)
    return Images(inputs, [str(file) for file in files], failures)


def _list_files(path: Path) -> list[Path]:
    if path.is_dir():
        (files,) = list_images([path])
        if not files:
            raise DataNotFoundError(f"No image files were found in {path.absolute()}")
        return files
    if not is_image(path):
        raise DataError(
            f"images must be image files and folders of them, or one npz file, but {path} is none"
        )
    return [path]


def _read_npz(path: Path, key: str, shape: Sequence[int]) -> Images:
    inputs = NpzImages(path, arrays={"train_x": key}).auxiliary()
    if tuple(inputs.shape[1:]) != tuple(shape):
        raise DataError(
            f"{path} holds images of shape {tuple(inputs.shape[1:])}, but the run was trained on "
            f"{tuple(shape)}"
        )
    return Images(inputs, [str(index) for index in range(len(inputs))], {})


def probabilities(checkpoint: dict[str, Any], inputs: Tensor) -> Tensor:
    """Class probabilities of the ensemble of the run's students, shape (N, C)."""
    statistics = checkpoint["federation"]["settings"]["batchnorm"]
    models = trained_models(checkpoint).values()
    logits = [predict_logits(model, inputs, statistics) for model in models]
    return torch.stack(logits).mean(dim=0).softmax(dim=-1)


def write_table(
    path: Path,
    header: Sequence[str],
    names: Sequence[Sequence[str]],
    values: Sequence[Sequence[float]],
) -> None:
    """Writes one row per sample: its names, most probable class and class probabilities.

    Args:
        path: The csv file.
        header: The titles of the names, "class", and the classes.
        names: What identifies each sample.
        values: The class probabilities of each sample; empty for one without.
    """
    classes = header[len(header) - max(map(len, values)) :]

    def write(file: TextIO) -> None:
        table = csv.writer(file)
        table.writerow(header)
        for own, row in zip(names, values, strict=True):
            best = classes[max(range(len(row)), key=row.__getitem__)] if row else ""
            table.writerow([*own, best, *([f"{p:.6f}" for p in row] or [""] * len(classes))])

    if path.exists() and not path.is_file():  # a pipe or /dev/stdout cannot be replaced
        with path.open("w", newline="", encoding="utf-8") as file:
            write(file)
    else:
        write_text_atomically(path, write)
