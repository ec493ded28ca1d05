"""``fedaux-pl predict``: class probabilities of a run's students for new images or texts."""

import csv
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from fedaux_pl.data import ImageFolder, NpzImages
from fedaux_pl.data.text_reader import Columns, read_texts
from fedaux_pl.data.tokenizer import FixedLengthTokenizer
from fedaux_pl.engine import predict_logits
from fedaux_pl.engine.checkpoints import load_checkpoint
from fedaux_pl.errors import ConfigurationError, DataError, DataNotFoundError
from fedaux_pl.files import write_text_atomically
from fedaux_pl.models import create_for, options_of


def predict_images(checkpoint: Path, images: Path, output: Path, key: str = "train_x") -> Path:
    """Writes class probabilities for a folder or an npz file of images.

    Args:
        checkpoint: The checkpoint of a run.
        images: A folder of image files, or an npz file.
        output: The csv file to write, which is returned.
        key: The array of the npz file.
    """
    loaded = load_checkpoint(checkpoint)
    if _text_format(loaded):
        raise ConfigurationError("this run was trained on texts: give --texts, not --images")
    inputs, names = read_images(images, key, loaded["federation"]["input_shape"])
    write_table(output, names, probabilities(loaded, inputs), loaded["federation"]["classes"])
    print(f"{len(names)} images: {output}")
    return output


def predict_texts(checkpoint: Path, texts: Path, output: Path, column: Sequence[str]) -> Path:
    """Writes class probabilities for the texts in a file.

    Args:
        checkpoint: The checkpoint of a run.
        texts: A csv, JSON-lines or plain text file (see ``TextFiles``).
        output: The csv file to write, which is returned; rows have the index of a text, from 0.
        column: The columns whose values are joined to a text; ignored for plain text.
    """
    loaded = load_checkpoint(checkpoint)
    text_format = _text_format(loaded)
    if not text_format:
        raise ConfigurationError("this run was trained on images: give --images, not --texts")
    remedy = "give --column and the name of the text column"
    found, _ = read_texts(texts, Columns(text=tuple(column)), remedy)
    tokenize = FixedLengthTokenizer(text_format.get("tokenizer"), text_format["max_length"])
    names = [str(index) for index in range(len(found))]
    table = probabilities(loaded, tokenize(found))
    write_table(output, names, table, loaded["federation"]["classes"], "text")
    print(f"{len(names)} texts: {output}")
    return output


def _text_format(checkpoint: dict[str, Any]) -> Any:
    """The tokenizer and length of the run's texts; empty if it was trained on images."""
    return checkpoint["federation"].get("input_format", {})


def read_images(path: Path, key: str, shape: Sequence[int]) -> tuple[Tensor, list[str]]:
    """Reads uint8 images, which must have the shape of the run's inputs, and their names."""
    channels, height, width = shape
    if path.is_dir():
        if height != width:
            raise DataError(
                f"image files are scaled to squares, but the run was trained on {height}x{width} "
                "pixels: give an npz file"
            )
        with tempfile.TemporaryDirectory() as scratch:  # no cache in the user's folder
            source = ImageFolder(path, height, 1 if channels == 1 else 3, cache_dir=scratch)
            return source.auxiliary(), [str(file) for file in source.files()]
    if not path.exists():
        raise DataNotFoundError(f"there are no images at {path.absolute()}: correct the path")
    if path.suffix != ".npz":
        raise DataError(f"images must be a folder of image files or an npz file, but is {path}")
    inputs = NpzImages(path, images=key).auxiliary()
    if tuple(inputs.shape[1:]) != tuple(shape):
        raise DataError(
            f"{path} holds images of shape {tuple(inputs.shape[1:])}, but the run was trained on "
            f"{tuple(shape)}"
        )
    return inputs, [str(index) for index in range(len(inputs))]


def probabilities(checkpoint: dict[str, Any], inputs: Tensor) -> Tensor:
    """Class probabilities of the ensemble of the run's students, shape (N, C)."""
    federation, weights = checkpoint["federation"], checkpoint["state_dict"]
    settings = federation["settings"]
    logits = []
    for name in settings["clients"]:
        options = options_of(name, settings["clients"], settings["model_options"])
        options = {**options, "pretrained": False}  # the weights of the run are loaded below
        model = create_for(federation["input_shape"], name, len(federation["classes"]), **options)
        prefix = f"students.{name}."
        own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        model.load_state_dict(own)
        logits.append(predict_logits(model, inputs, settings["batchnorm"]))
    return torch.stack(logits).mean(dim=0).softmax(dim=-1)


def write_table(
    path: Path, names: Sequence[str], values: Tensor, classes: Sequence[str], kind: str = "image"
) -> None:
    """Writes one row per sample: its name, most probable class and class probabilities."""

    def write(file: TextIO) -> None:
        table = csv.writer(file)
        table.writerow([kind, "class", *classes])
        for name, row in zip(names, values, strict=True):
            table.writerow([name, classes[int(row.argmax())], *(f"{p:.6f}" for p in row.tolist())])

    if path.exists() and not path.is_file():  # a pipe or /dev/stdout cannot be replaced
        with path.open("w", newline="", encoding="utf-8") as file:
            write(file)
    else:
        write_text_atomically(path, write)
