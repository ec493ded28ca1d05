"""``fedaux-pl predict``: class probabilities of a run's students for new images or texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jsonargparse import Namespace
from torch import Tensor, nn

from fedaux_pl.cli.client_option import load_client_model
from fedaux_pl.cli.load_run import load_run
from fedaux_pl.data import NpzImages
from fedaux_pl.data.image_files import is_image, list_images
from fedaux_pl.data.input_checks import note, path_not_found, shorten
from fedaux_pl.data.open_images import decode_images
from fedaux_pl.data.pil_images import WHITE, Original, check_background, note_transparent
from fedaux_pl.data.sources.text_files import TextLayout, read_texts
from fedaux_pl.data.tokenizer import FixedLengthTokenizer
from fedaux_pl.engine import predict_logits
from fedaux_pl.errors import ConfigurationError, DataError, DataNotFoundError
from fedaux_pl.files import csv_text, write_text_atomically
from fedaux_pl.models import trained_models
from fedaux_pl.names import readable, terminal_safe


class Samples(NamedTuple):
    """What is predicted."""

    inputs: Tensor  # of the samples at positions
    positions: Sequence[int]  # rows; the others have no class and no probabilities
    names: dict[str, Sequence[Any]]  # what identifies each row, by the title of its column
    summary: str  # how many there are, and what is wrong with the others


def write_predictions(options: Namespace) -> Path:
    """Write class probabilities for image files, folders or an npz file, or a file of texts."""
    path, loaded = load_run(options.ckpt_path, options)
    federation = loaded["federation"]
    input_format = federation["input_format"]
    is_text = input_format.get("kind") == "text"
    kind, other = ("texts", "images") if is_text else ("images", "texts")
    if options[kind] is None:
        raise ConfigurationError(f"this run was trained on {kind}: give --{kind}, not --{other}")
    if is_text:
        samples = _read_texts(options.texts, options.column.split(","), input_format)
    else:
        # arrays have no background, and version 1 stored none
        background = options.background or input_format.get("background", WHITE)
        try:
            check_background(background)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        shape = federation["input_shape"]
        samples = _read_images(options.images, options.key, shape, background)
    client = load_client_model(path, options)
    if client is None:
        models = list(trained_models(loaded).values())
        by_whom = ""
    else:
        models = [client.model]
        by_whom = f", predicted by the model of {terminal_safe(client.name)}"
    values = probabilities(models, samples.inputs)
    failed = int(values.isnan().any(dim=1).sum())
    if failed:
        raise FloatingPointError(
            f"probabilities: got NaN for {failed} of {len(values)} samples; expected numbers: give "
            "a checkpoint from before the run diverged"
        )
    _write_table(options.output, samples, federation["classes"], values)
    print(f"{samples.summary}{by_whom}: {readable(options.output)}")
    return Path(options.output)


def _read_texts(path: Path, columns: Sequence[str], text_format: dict[str, Any]) -> Samples:
    """Read the texts of a file; a row of the file without a text is not predicted."""
    remedy = "give --column and the name of the text column"
    layout = TextLayout(text=list(columns), label=None)
    texts = read_texts(path, layout, remedy, keep_empty=True).texts
    tokenize = FixedLengthTokenizer(text_format.get("tokenizer"), text_format["max_length"])
    filled = [index for index, text in enumerate(texts) if text]
    empty = len(texts) - len(filled)
    unread = f" ({empty} without a text have empty rows)" if empty else ""
    inputs = tokenize([text for text in texts if text])
    names = {"row": range(len(texts)), "text": texts}
    return Samples(inputs, filled, names, f"{len(texts)} texts{unread}")


def _read_images(paths: Sequence[Path], key: str, shape: Sequence[int], background: str) -> Samples:
    """Read images of the shape of the run's inputs; an unreadable file is not predicted."""
    for path in paths:
        if not path.exists():
            raise path_not_found("there are no images at", path)
    if [path.suffix for path in paths] == [".npz"] and paths[0].is_file():
        try:
            inputs = NpzImages(paths[0], arrays={"train_x": key}).auxiliary()[:]
        except DataError as error:
            raise DataError(f"{error}; for predict, `--key` names the array") from error
        if tuple(inputs.shape[1:]) != tuple(shape):
            raise DataError(
                f"{paths[0]} holds images of shape {tuple(inputs.shape[1:])}, but the run was "
                f"trained on {tuple(shape)}"
            )
        rows = range(len(inputs))
        return Samples(inputs, rows, {"image": rows}, f"{len(inputs)} images")
    files = []
    for path in paths:
        images = list_images([path])[0] if path.is_dir() else [path]
        if not images:
            raise DataNotFoundError(f"No image files were found in {path.absolute()}")
        if not is_image(images[0]):
            raise DataError(
                f"images: got {path}; expected image files and folders of them, or one npz file"
            )
        files += images
    channels, height, width = shape
    if height != width:
        raise DataError(
            f"image files are scaled to squares, but the run was trained on {height}x{width} "
            "pixels: give an npz file"
        )
    decoded = decode_images(files, height, 1 if channels == 1 else 3, background, skip=True)
    failures = decoded.failures
    if len(failures) == len(files):
        raise DataError(failures[0])
    decodable = [index for index in range(len(files)) if index not in failures]
    where = ", ".join(readable(path.absolute()) for path in paths)
    note_transparent(decoded.num_transparent, len(decodable), where, background)
    _note_changes(list(decoded.originals.values()), height, is_gray=channels == 1)
    unreadable = shorten([readable(files[index]) for index in failures])
    unread = f" ({len(failures)} cannot be read and have empty rows: {unreadable})"
    summary = f"{len(files)} images{unread if failures else ''}"
    return Samples(
        decoded.images[decodable], decodable, {"image": [*map(readable, files)]}, summary
    )


def _note_changes(originals: Sequence[Original], size: int, is_gray: bool) -> None:
    """Say how many pictures did not have the size or the color of the run's inputs."""
    resized = [it for it in originals if (it.width, it.height) != (size, size)]
    if resized:
        first = resized[0]
        note(
            f"{len(resized)} of {len(originals)} pictures are not of the size {size} x {size} that "
            f"the run was trained on (the first: {first.width} x {first.height}): their central "
            "squares were resized"
        )
    converted = sum(original.is_gray != is_gray for original in originals)
    if converted:
        found, trained = ("in color", "gray") if is_gray else ("gray", "color")
        note(
            f"{converted} of {len(originals)} pictures are {found}, but the run was trained on "
            f"{trained} pictures: they were converted"
        )


def probabilities(models: Sequence[nn.Module], inputs: Tensor) -> Tensor:
    """Return the class probabilities of an ensemble of models, shape (N, C)."""
    logits = [predict_logits(model, inputs) for model in models]
    return torch.stack(logits).mean(dim=0).softmax(dim=-1)


def _write_table(path: Path, samples: Samples, classes: Sequence[str], values: Tensor) -> None:
    """Write one row per sample: its names, most probable class and class probabilities."""
    predicted = {}
    for index, row in zip(samples.positions, values.tolist(), strict=True):
        best = classes[row.index(max(row))]
        predicted[index] = [best, *(f"{p:.6f}" for p in row)]
    empty = [""] * (1 + len(classes))
    rows = [[*samples.names, "class", *classes]]
    for index, names in enumerate(zip(*samples.names.values(), strict=True)):
        rows.append([*names, *predicted.get(index, empty)])
    text = csv_text(rows, "\r\n")
    if path.exists() and not path.is_file():  # a pipe or /dev/stdout cannot be replaced
        path.write_text(text, newline="", encoding="utf-8")
    else:
        write_text_atomically(path, text)
