"""The output of a run: TensorBoard, curve.csv and summary.json."""

import csv
import json
import math
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytorch_lightning as pl
from pytorch_lightning.loggers import TensorBoardLogger

from fedaux_pl.callbacks import figures
from fedaux_pl.callbacks.hooks import FederationCallback
from fedaux_pl.files import write_text_atomically


class FederationReport(FederationCallback):
    """Writes curve.csv, summary.json and TensorBoard events; the x-axis is the round.

    Works with any module that has ``history``, ``privacy()``, ``scores``, ``architectures`` and
    ``data`` like a Federation.

    Args:
        images: Whether to draw figures of the split and the scores after the preparation.

    Attributes:
        folder: The folder of both files; None for that of the Trainer's logger.
    """

    def __init__(self, images: bool = True) -> None:
        super().__init__()
        self.images = images
        self.folder: Path | None = None

    def on_federation_prepared(self, trainer: pl.Trainer, federation: Any) -> None:
        """Prints the privacy of the releases and draws the figures."""
        if not trainer.is_global_zero:
            return
        lines = federation.privacy()
        for line in lines:
            print(f"privacy: {line}")
        for logger in trainer.loggers:
            if not isinstance(logger, TensorBoardLogger):
                continue
            writer = logger.experiment
            writer.add_text("privacy", "\n".join(f"- {line}" for line in lines), 0)
            if self.images:
                self._draw(writer, federation)

    def _draw(self, writer: Any, federation: Any) -> None:
        count, scores = len(federation.architectures), federation.scores
        names = [f"client {i}" for i in range(count)]
        if not federation.algorithm.secret_noise:  # the counts of classes are private
            main = self._draw_classes(writer, federation)
            names = [f"{name} ({label})" for name, label in zip(names, main, strict=True)]
        inputs = federation.data.distill_inputs if scores else None
        if inputs is not None and inputs.ndim == 4:  # images
            shown = np.linspace(0, count - 1, min(6, count)).round().astype(int)
            some = [names[i] for i in shown]
            top = figures.top_images_figure(inputs, scores["distill"][shown], some)
            writer.add_figure("certainty/top_images", top, 0)

    def _draw_classes(self, writer: Any, federation: Any) -> list[str]:
        """Draws the classes of the clients, and returns the most frequent class of each."""
        data, scores, classes = federation.data, federation.scores, list(federation.data.classes)
        targets = [data.client_targets(i).cpu() for i in range(len(federation.architectures))]
        counts = np.stack([np.bincount(t.numpy(), minlength=len(classes)) for t in targets])
        writer.add_figure("data/split", figures.partition_figure(counts, classes), 0)
        main = counts.argmax(axis=1)
        if scores:
            clients = figures.certainty_figure(scores["distill"], main, classes)
            writer.add_figure("certainty/clients", clients, 0)
            labels = data.test_examples.targets
            by_class = figures.weight_by_class_figure(scores["test"], labels, main, classes)
            writer.add_figure("certainty/weight_by_class", by_class, 0)
        return [classes[index] for index in main]

    def on_round_end(self, trainer: pl.Trainer, federation: Any) -> None:
        """Logs the measurements of the round and rewrites both files."""
        # log_dir is broadcast from the first process: all processes must read it
        folder = self.folder or Path(trainer.log_dir or trainer.default_root_dir)
        if not trainer.is_global_zero:
            return
        entry = federation.history[-1]
        metrics = {key: value for key, value in entry.items() if key != "round"}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=int(entry["round"]))
        write_curve(folder / "curve.csv", federation.history)
        write_summary(folder / "summary.json", federation)


def write_curve(path: Path, history: list[dict[str, float]]) -> None:
    """Writes one row per round, with a column for every measurement of any round."""
    columns = list(dict.fromkeys(key for entry in history for key in entry))

    def write(file: TextIO) -> None:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        table.writerows(history)

    write_text_atomically(path, write)


def write_summary(path: Path, federation: Any) -> None:
    """Writes the results so far, with all settings."""
    accuracies = [entry["accuracy"] for entry in federation.history if "accuracy" in entry]
    last = federation.history[-1]
    summary = {
        "method": federation.algorithm.name,
        "rounds": int(last["round"]),
        "accuracy": accuracies[-1] if accuracies else None,
        "best_accuracy": max(accuracies) if accuracies else None,
        "bytes_up": last["bytes/up_total"],
        "bytes_down": last["bytes/down_total"],
        "privacy": federation.privacy(),
        "settings": federation.settings(),
    }
    text = json.dumps(_plain(summary), indent=2) + "\n"
    write_text_atomically(path, lambda file: file.write(text))


def _plain(value: Any) -> Any:
    """Replaces infinity and NaN, which JSON does not have, by strings."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
