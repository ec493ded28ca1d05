"""`fedaux-pl predict`: what the students of a run say about other images."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser
from torch import Tensor

from fedaux_pl.data import ImageFolder, NpzImages
from fedaux_pl.engine import predict_logits
from fedaux_pl.errors import ConfigurationError, DataError
from fedaux_pl.models import create_model


def predict(args: Sequence[str]) -> Path:
    """Writes class probabilities for a folder or an npz file of images.

    Args:
        args: The command line after the verb.

    Returns:
        The path of the table.
    """
    parser = ArgumentParser(prog="fedaux-pl predict", description=predict.__doc__)
    parser.add_argument("--ckpt_path", type=str, required=True, help="The checkpoint of a run.")
    parser.add_argument("--images", type=Path, required=True, help="A folder, or an npz file.")
    parser.add_argument("--key", type=str, default="train_x", help="The array of an npz file.")
    parser.add_argument("--output", type=Path, default=Path("predictions.csv"), help="A csv file.")
    options = parser.parse_args(list(args))
    kept = load_run(Path(options.ckpt_path))
    inputs, names = read_images(options.images, options.key, kept["federation"]["input_shape"])
    write_table(options.output, names, probabilities(kept, inputs), kept["federation"]["classes"])
    print(f"{len(names)} images: {options.output}")
    return Path(options.output)


def load_run(path: Path) -> dict[str, Any]:
    """A checkpoint of a federation."""
    if not path.is_file():
        raise ConfigurationError(f"there is no checkpoint at {path.absolute()}")
    checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    if "federation" not in checkpoint:
        raise ConfigurationError(f"{path} is no checkpoint of a federation")
    return checkpoint


def read_images(path: Path, key: str, shape: Sequence[int]) -> tuple[Tensor, list[str]]:
    """Images as uint8 of the shape that the run was trained on, and a name for each."""
    channels, height, width = shape
    if path.is_dir():
        if height != width:
            raise DataError(f"a folder is read as square images, but the run has {height}x{width}")
        source = ImageFolder(path, size=height, channels=1 if channels == 1 else 3)
        return source.auxiliary(), [str(file) for file in source.files()]
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
        model = create_model(
            name,
            len(kept["classes"]),
            in_channels=kept["input_shape"][0],
            **settings["model_options"],
        )
        prefix = f"students.{name}."
        state = checkpoint["state_dict"]
        model.load_state_dict(
            {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        )
        logits.append(predict_logits(model, inputs, settings["batchnorm"]))
    return torch.stack(logits).mean(dim=0).softmax(dim=-1)


def write_table(path: Path, names: Sequence[str], values: Tensor, classes: Sequence[str]) -> None:
    """One row an image: its name, the most probable class, the probability of each class."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "class", *classes])
        for name, row in zip(names, values, strict=True):
            table.writerow([name, classes[int(row.argmax())], *(f"{p:.6f}" for p in row.tolist())])
