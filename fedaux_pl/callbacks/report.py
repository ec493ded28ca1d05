"""The output of a run: curve.csv, summary.json, figures, notes and TensorBoard's pages."""

import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytorch_lightning as pl
from PIL import Image
from pytorch_lightning.loggers import Logger, TensorBoardLogger
from pytorch_lightning.trainer.states import TrainerFn

from fedaux_pl.callbacks import client_results, pages, run_figures
from fedaux_pl.callbacks.hooks import FederationCallback
from fedaux_pl.callbacks.notes import RunNotes
from fedaux_pl.callbacks.progress import print_above_bars
from fedaux_pl.engine.checkpoints import AtomicCheckpointIO
from fedaux_pl.files import csv_text, write_atomically, write_json_atomically, write_text_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIENTS = "clients.csv"
_UNSAFE = r"[^\w.+-]"  # in file names: clients have names of the user's
_Figures = Callable[[Any], Iterable[tuple[str, "Figure"]]]


class FederationReport(FederationCallback):
    """Writes curve.csv, summary.json and figures, and fills the pages of the Trainer's loggers.

    Where the evaluated data name their clients, clients.csv has the metrics of each of them. The
    federation itself logs its measurements. This callback adds texts, figures, the layout of
    TensorBoard's charts, settings and final results, and the loss of the pre-training by epoch.
    It prints what is private, what a user should know about the run, and after Ctrl-C how to
    resume. It works with any Trainer; ``fast_dev_run`` writes nothing.

    Args:
        images: Whether to draw figures, for loggers and as ``figures/*.png``.

    Attributes:
        folder: The folder of all files, if the command line has given one to the run; None for
            that of the Trainer's logger or else ``default_root_dir``.
    """

    def __init__(self, images: bool = True) -> None:
        super().__init__()
        self.images = images
        self.folder: Path | None = None
        self._begin()

    def _begin(self) -> None:
        self._notes = RunNotes()
        self._told: set[str] = set()  # the kinds of notes that were printed
        self._pretrained = False
        self._fitted: Path | None = None  # the folder of a finished fit
        self._drawn = 0  # the round of the last figure of the participation

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        """Forget an earlier fit."""
        if stage == "fit":
            self._begin()

    def on_pretraining_epoch(
        self, trainer: pl.Trainer, federation: Any, architecture: str, epoch: int, loss: float
    ) -> None:
        """Log the loss; the x-axis is the epoch."""
        self._pretrained = True
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_metrics({f"pretraining_loss/{architecture}": loss}, step=epoch)

    def on_federation_prepared(self, trainer: pl.Trainer, federation: Any) -> None:
        """Print the privacy of the releases, and write texts and figures."""
        folder = self._folder(trainer)
        if not trainer.is_global_zero:
            return
        if (scoring := federation.scoring) is not None:
            print(f"clients release {scoring.scorer} of {scoring.feature_map}")
        lines = federation.privacy()
        for line in lines:
            print(f"privacy: {line}")
        self._tell(federation)
        texts = {
            "about this run": pages.describe_run(federation, self._pretrained),
            "privacy": "\n".join(f"- {line}" for line in lines),
        }
        if rows := run_figures.top_texts(federation):
            texts["certainty/top_texts"] = client_results.as_markdown(
                [("client", "score", "text"), *rows]
            )
        for logger in trainer.loggers:
            experiment: Any = getattr(logger, "experiment", None)
            if hasattr(experiment, "add_custom_scalars"):  # TensorBoard
                experiment.add_custom_scalars(pages.chart_layout(federation))
            for name, text in texts.items():
                log_text(logger, name, text)
        if folder is not None:
            self._show(run_figures.prepared_figures, trainer, folder, federation)

    def on_round_end(self, trainer: pl.Trainer, federation: Any) -> None:
        """Print new notes, rewrite both files and draw who took part."""
        folder = self._folder(trainer)
        if not trainer.is_global_zero:
            return
        notes = self._tell(federation)
        if folder is None:
            return
        write_curve(folder / "curve.csv", federation.history)
        write_summary(folder / "summary.json", federation, notes)
        if len(federation.history) >= 2 * self._drawn:  # after rounds 1, 2, 4, 8, ...: it is slow
            self._show(run_figures.client_figures, trainer, folder, federation)
            self._drawn = len(federation.history)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Draw the figures of the finished run and log its settings with the final results."""
        folder, history = self._folder(trainer), pl_module.history
        if folder is None or not history or not trainer.is_global_zero:
            return
        if self.folder is None:  # otherwise the command line says it
            print_above_bars(f"report and figures: {folder}")
        if self._drawn < len(history):
            self._show(run_figures.client_figures, trainer, folder, pl_module)
        measured = client_results.last_measured(history)
        if table := client_results.client_table(measured):
            _write_table(folder / CLIENTS, table)
            for logger in trainer.loggers:
                log_text(logger, "clients", client_results.as_markdown(table))
            if self.folder is None:
                print_above_bars(client_results.describe_clients(measured))
        self._show(run_figures.result_figures, trainer, folder, pl_module)
        settings = pl_module.settings()
        settings["data"].pop("contents", None)  # checksums
        final = {f"final/{name}": values[-1] for name, values in _measured(pl_module).items()}
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):  # for its page of hyper-parameters
                # SummaryWriter.add_hparams would create a run of its own
                logger.log_hyperparams(pages.headline(pl_module) | settings, final, len(history))
            else:  # which has the results as metrics
                logger.log_hyperparams(settings)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Remember the folder for a test; also of a resumed run that had all its rounds."""
        folder = self._folder(trainer)
        if folder is not None and (folder / "summary.json").is_file():
            self._fitted = folder

    def on_test_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Add the metrics on the test data to the summary of the run that the Trainer fitted."""
        if self._fitted is None or not trainer.is_global_zero:
            return
        path = self._fitted / "summary.json"
        summary = json.loads(path.read_text())
        # the history lacks the round of a checkpoint that was saved right after its validation
        rounds = int(pl_module.metrics["round"])
        measured = {name: float(value) for name, value in trainer.callback_metrics.items()}
        names = ("accuracy", *pl_module.monitored_metrics)
        tested = {k: v for k, v in measured.items() if k in names or k.startswith("client_")}
        write_json_atomically(path, _plain({**summary, "test": {**tested, "round": rounds}}))
        if table := client_results.client_table(measured):
            _write_table(path.with_name(CLIENTS), table)

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        """Say after Ctrl-C or SIGTERM how to resume the run."""
        is_fit = trainer.state.fn == TrainerFn.FITTING
        is_interrupted = isinstance(exception, KeyboardInterrupt | SystemExit)
        if is_fit and trainer.is_global_zero and is_interrupted:
            print_above_bars(_describe_resumption(trainer, pl_module, self.folder is not None))

    def _folder(self, trainer: pl.Trainer) -> Path | None:
        """The folder of all files; None if nothing is to be written."""
        # log_dir is broadcast from the first process: all processes must read it
        folder = self.folder or Path(trainer.log_dir or trainer.default_root_dir)
        return None if trainer.fast_dev_run else folder  # type: ignore[attr-defined]

    def _tell(self, federation: Any) -> list[str]:
        """Print the first note of each kind; return all notes."""
        notes = self._notes.find(federation)
        for kind, text in notes:
            if kind not in self._told:
                self._told.add(kind)
                print_above_bars(f"note: {text}")
        return [text for _, text in notes]

    def _show(self, figures: _Figures, trainer: pl.Trainer, folder: Path, federation: Any) -> None:
        """Write figures to files and to all loggers."""
        for name, figure in figures(federation) if self.images else ():
            picture = rasterize(figure)
            path = folder / "figures" / f"{re.sub(_UNSAFE, '_', name)[:100]}.png"
            write_atomically(path, partial(picture.save, format="png"))
            for logger in trainer.loggers:
                log_figure(logger, name, picture, len(federation.history))


def rasterize(figure: "Figure") -> Image.Image:
    """Draw a figure, with all that lies outside of it, as an RGB image."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    file, renderer = io.BytesIO(), FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    # "tight" would draw it twice
    figure.savefig(file, format="png", bbox_inches=figure.get_tightbbox(renderer).padded(0.15))
    return Image.open(file).convert("RGB")


# Loggers are told apart by what they can do, so that W&B and MLflow need not be installed.
def log_figure(logger: Logger, name: str, picture: Image.Image, step: int) -> None:
    """Log a figure to TensorBoard, W&B or MLflow; other loggers ignore it."""
    experiment: Any = getattr(logger, "experiment", None)
    if hasattr(logger, "log_image"):  # W&B
        logger.log_image(name, [picture], step=step)
    elif hasattr(experiment, "add_image"):  # TensorBoard
        experiment.add_image(name, np.asarray(picture), step, dataformats="HWC")
    elif hasattr(experiment, "log_image") and hasattr(logger, "run_id"):  # MLflow
        experiment.log_image(logger.run_id, picture, f"{name}.png")


def log_text(logger: Logger, name: str, text: str) -> None:
    """Log Markdown to TensorBoard or MLflow; other loggers ignore it."""
    experiment: Any = getattr(logger, "experiment", None)
    if hasattr(experiment, "add_text"):  # TensorBoard
        experiment.add_text(name, text, 0)
    elif hasattr(experiment, "log_text") and hasattr(logger, "run_id"):  # MLflow
        experiment.log_text(logger.run_id, text, f"{name}.md")


def write_curve(path: Path, history: Sequence[dict[str, float]]) -> None:
    """Write one row per round, with a column for every measurement of any round."""
    columns = list(dict.fromkeys(key for entry in history for key in entry))
    _write_table(path, [columns, *([entry.get(name) for name in columns] for entry in history)])


def _write_table(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    write_text_atomically(path, csv_text(rows, "\r\n"))


def write_summary(path: Path, federation: Any, notes: Sequence[str] = ()) -> None:
    """Write the results so far, with all settings and notes.

    ``best_accuracy`` is the best over rounds on the test data, as the paper reports it. With
    validation data there is none; ``test`` follows when the best round is tested.
    """
    last, better = federation.history[-1], federation.monitored_metrics
    results: dict[str, Any] = {"accuracy": None, "best_accuracy": None}
    for name, values in _measured(federation).items():
        best = max if better.get(name.removeprefix("val/"), True) else min
        plain = name.replace("/", "_")
        results |= {plain: values[-1], f"best_{plain}": best(values)}
    if lower := [name for name, is_higher in better.items() if not is_higher]:
        results["lower_is_better"] = lower
    summary = {
        "method": federation.algorithm.name,
        "data": federation.data.data_name,
        "rounds": int(last["round"]),
        **results,
        "bytes_up": last["bytes/up_total"],
        "bytes_down": last["bytes/down_total"],
        "privacy": federation.privacy(),
        "notes": list(notes),
        "settings": federation.settings(),
    }
    write_json_atomically(path, _plain(summary))


def _measured(federation: Any) -> dict[str, list[float]]:
    """The metrics of the rounds, on test and on validation data, as far as there are any."""
    plain = ("accuracy", *federation.monitored_metrics)
    names = [prefix + name for name in plain for prefix in ("", "val/")]
    found = {name: [e[name] for e in federation.history if name in e] for name in names}
    return {name: values for name, values in found.items() if values}


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    """Replaces infinity and NaN, which JSON does not have, by strings."""
    text = json.dumps(content)
    return dict(json.loads(text, parse_constant=lambda name: str(float(name))))


def _describe_resumption(trainer: pl.Trainer, federation: Any, from_command_line: bool) -> str:
    """Say how to resume an interrupted fit, or what is kept without a checkpoint."""
    if isinstance(writer := trainer.strategy.checkpoint_io, AtomicCheckpointIO):
        writer.finish()
    paths: list[Any] = [trainer.ckpt_path]
    for callback in trainer.checkpoint_callbacks:
        # attributes of ModelCheckpoint; other checkpoint callbacks need not have them
        paths += [getattr(callback, name, "") for name in ("last_model_path", "best_model_path")]
    existing = [Path(path) for path in paths if path and Path(path).is_file()]
    checkpoint = max(existing, key=lambda path: path.stat().st_mtime_ns, default=None)
    rounds = len(federation.history)
    so_far = f"interrupted after round {rounds}" if rounds else "interrupted in or before round 1"
    if checkpoint is None:
        cache = Path(trainer.default_root_dir) / "cache"
        has_h0 = federation.algorithm.pretrained and cache.is_dir()
        kept = f"; finished pre-trainings are kept in {cache}" if has_h0 else ""
        return f"{so_far}, without a checkpoint: start again{kept}"
    if not from_command_line:
        call = f'trainer.fit(federation, datamodule=data, ckpt_path="{checkpoint}")'
        return f"{so_far}: resume with {call}"
    return f"{so_far}: resume with --ckpt_path {checkpoint}"
