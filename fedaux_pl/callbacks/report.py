"""What a person sees of a run: TensorBoard, a table of the curve, a summary."""

import csv
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import TensorBoardLogger
from torch import Tensor

from fedaux_pl.callbacks import figures


class FederationReport(Callback):
    """Writes curve.csv, summary.json and the pages of TensorBoard, the x-axis being the round.

    Works with any module that has ``history``, ``privacy()``, ``scores``, ``architectures`` and
    ``data`` as a Federation has them.

    Args:
        images: Whether to draw the split, the scores and the top-scored images once.
    """

    def __init__(self, images: bool = True) -> None:
        super().__init__()
        self.images = images

    def on_federation_prepared(self, trainer: pl.Trainer, federation: Any) -> None:
        """After the preparation: says what was released, and shows who holds and knows what."""
        if not trainer.is_global_zero:
            return
        lines = federation.privacy()
        for line in lines:
            print(f"privacy: {line}")
        for logger in _tensorboards(trainer):
            writer = logger.experiment
            writer.add_text("privacy", "\n".join(f"- {line}" for line in lines), 0)
            if self.images:
                self._draw(writer, federation)

    def _draw(self, writer: Any, federation: Any) -> None:
        data = federation.data
        classes = list(data.classes)
        counts = np.stack(
            [
                np.bincount(data.client_targets(i).cpu().numpy(), minlength=len(classes))
                for i in range(len(federation.architectures))
            ]
        )
        writer.add_figure("data/split", figures.partition_figure(counts, classes), 0)
        if not federation.scores:
            return
        main = counts.argmax(axis=1)
        distill = _array(federation.scores["distill"])
        writer.add_figure("certainty/clients", figures.certainty_figure(distill, main, classes), 0)
        writer.add_figure(
            "certainty/weight_by_class",
            figures.weight_by_class_figure(
                _array(federation.scores["test"]), _array(data.test_examples.targets), main, classes
            ),
            0,
        )
        if data.distill_inputs.ndim == 4:
            shown = np.linspace(0, len(main) - 1, min(6, len(main))).round().astype(int)
            names = [f"client {i} ({classes[main[i]]})" for i in shown]
            writer.add_figure(
                "certainty/top_images",
                figures.top_images_figure(_array(data.distill_inputs), distill[shown], names),
                0,
            )

    def on_round_end(self, trainer: pl.Trainer, federation: Any) -> None:
        """After a round: one more point of every curve, and the files anew."""
        folder = Path(trainer.log_dir or trainer.default_root_dir)  # which all processes agree on
        if not trainer.is_global_zero:
            return
        entry = federation.history[-1]
        for logger in trainer.loggers:
            curves = {key: value for key, value in entry.items() if key != "round"}
            logger.log_metrics(curves, step=int(entry["round"]))
        folder.mkdir(parents=True, exist_ok=True)
        write_curve(folder / "curve.csv", federation.history)
        write_summary(folder / "summary.json", federation)


def write_curve(path: Path, history: list[dict[str, float]]) -> None:
    """One row a round, one column for everything that was measured in any of them."""
    columns = list(dict.fromkeys(key for entry in history for key in entry))
    scratch = path.with_suffix(".part")
    with scratch.open("w", newline="") as file:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        table.writerows(history)
    os.replace(scratch, path)


def write_summary(path: Path, federation: Any) -> None:
    """The outcome so far, with all settings that led to it."""
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
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps(_plain(summary), indent=2) + "\n")
    os.replace(scratch, path)


def _plain(value: Any) -> Any:
    """JSON knows no infinity and no NaN."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().cpu().numpy()


def _tensorboards(trainer: pl.Trainer) -> list[TensorBoardLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
