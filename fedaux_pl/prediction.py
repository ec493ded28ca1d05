"""`fedaux-pl predict`: what the students of a run say about other images or texts."""

import csv
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedaux_pl.data import ImageFolder, NpzImages
from fedaux_pl.data.tables import Columns, read_texts
from fedaux_pl.data.tokens import Tokens
from fedaux_pl.engine import predict_logits
from fedaux_pl.engine.resuming import load_checkpoint
from fedaux_pl.errors import ConfigurationError, DataError, DataNotFoundError
from fedaux_pl.models import create_for, options_of


def predict(checkpoint: Path, images: Path, output: Path, key: str = "train_x") -> Path:
    """Writes class probabilities for a folder or an npz file of images.

    Args:
        checkpoint: The checkpoint of a run.
        images: A folder of image files, or an npz file.
        output: The csv file to write.
        key: The name of the array in the npz file.

    Returns:
        The path of the table.
    """
    kept = load_checkpoint(checkpoint)
    if _format(kept):
        raise ConfigurationError("this run was trained on texts: give --texts, not --images")
    inputs, names = read_images(images, key, kept["federation"]["input_shape"])
    write_table(output, names, probabilities(kept, inputs), kept["federation"]["classes"])
    print(f"{len(names)} images: {output}")
    return output


def predict_texts(checkpoint: Path, texts: Path, output: Path, column: Sequence[str]) -> Path:
    """Writes class probabilities for the texts in a file.

    Args:
        checkpoint: The checkpoint of a run.
        texts: A csv, JSON-lines or plain text file (see ``TextFiles``).
        output: The csv file to write; a row is named by its number among the texts, from 0.
        column: The columns whose values are joined into a text; not of plain text.

    Returns:
        The path of the table.
    """
    kept = load_checkpoint(checkpoint)
    form = _format(kept)
    if not form:
        raise ConfigurationError("this run was trained on images: give --images, not --texts")
    found, _ = read_texts(texts, Columns(text=tuple(column)))
    inputs = Tokens(form.get("tokenizer"), form["max_length"])(found)
    names = [str(index) for index in range(len(found))]
    table = probabilities(kept, inputs)
    write_table(output, names, table, kept["federation"]["classes"], "text")
    print(f"{len(names)} texts: {output}")
    return output


def _format(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """How texts became inputs of the run; empty where it was trained on images."""
    form: dict[str, Any] = checkpoint["federation"].get("input_format", {})
    return form


def read_images(path: Path, key: str, shape: Sequence[int]) -> tuple[Tensor, list[str]]:
    """Images as uint8 of the shape that the run was trained on, and a name for each."""
    channels, height, width = shape
    if path.is_dir():
        if height != width:
            raise DataError(f"a folder is read as square images, but the run has {height}x{width}")
        with tempfile.TemporaryDirectory() as scratch:  # nothing is kept in a folder of others
            source = ImageFolder(path, height, 1 if channels == 1 else 3, cache_dir=scratch)
            return source.auxiliary(), [str(file) for file in source.files()]
    if not path.exists():
        raise DataNotFoundError(f"there are no images at {path.absolute()}: correct the path")
    if path.suffix != ".npz":
        raise DataError(f"images must be a folder of image files or an npz file, but are {path}")
    inputs = NpzImages(path, images=key).auxiliary()
    if tuple(inputs.shape[1:]) != tuple(shape):
        raise DataError(
            f"{path} holds images of shape {tuple(inputs.shape[1:])}, but the run was trained on "
            f"{tuple(shape)}"
        )
    return inputs, [str(index) for index in range(len(inputs))]


def probabilities(checkpoint: dict[str, Any], inputs: Tensor) -> Tensor:
    """Class probabilities of the ensemble of the run's students, shape (N, C)."""
    kept = checkpoint["federation"]
    settings = kept["settings"]
    logits = []
    for name in settings["clients"]:
        options = options_of(name, settings["clients"], settings["model_options"])
        model = create_for(
            kept["input_shape"],
            name,
            len(kept["classes"]),
            **{**options, "pretrained": False},  # the run's weights follow
        )
        prefix = f"students.{name}."
        state = checkpoint["state_dict"]
        model.load_state_dict(
            {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        )
        logits.append(predict_logits(model, inputs, settings["batchnorm"]))
    return torch.stack(logits).mean(dim=0).softmax(dim=-1)


def write_table(
    path: Path,
    names: Sequence[str],
    values: Tensor,
    classes: Sequence[str],
    what: str = "image",
) -> None:
    """One row a sample: its name, the most probable class, the probability of each class."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([what, "class", *classes])
        for name, row in zip(names, values, strict=True):
            table.writerow([name, classes[int(row.argmax())], *(f"{p:.6f}" for p in row.tolist())])
