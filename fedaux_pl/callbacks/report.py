"""The output of a run: curve.csv, summary.json, figures, notes and TensorBoard's pages."""

import io
import json
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from fedaux_pl.callbacks import client_results, pages, run_figures
from fedaux_pl.callbacks.hooks import FederationCallback
from fedaux_pl.callbacks.notes import RunNotes
from fedaux_pl.callbacks.privacy_table import format_guarantees
from fedaux_pl.callbacks.progress import print_above_bars
from fedaux_pl.callbacks.run_view import RunView
from fedaux_pl.data.cache import is_off
from fedaux_pl.engine.checkpoints import AtomicCheckpointIO
from fedaux_pl.files import (
    csv_text,
    user_cache,
    write_atomically,
    write_json_atomically,
    write_text_atomically,
)
from fedaux_pl.lightning import Logger, TensorBoardLogger, TrainerFn, pl
from fedaux_pl.names import file_safe, terminal_safe
from fedaux_pl.scoring import COSTS_AGAIN, UPDATES_IN_THE_CLEAR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIENTS = "clients.csv"
_Figures = Callable[[RunView], Iterable[tuple[str, "Figure"]]]


class FederationReport(FederationCallback):
    """Writes curve.csv, summary.json and figures, and fills the pages of the Trainer's loggers.

    Where the evaluated data name their clients, clients.csv has the metrics of each of them. The
    federation itself logs its measurements. This callback adds texts, figures, the layout of
    TensorBoard's charts, settings and final results, and the loss of the pre-training by epoch.
    It prints what is private, what a user should know about the run, and after Ctrl-C how to
    resume. It works with any Trainer; ``fast_dev_run`` writes nothing. Files need a folder: that of
    the Trainer's logger, or ``default_root_dir``; the current folder, Lightning's default, does not
    count. A fit whose folder has a report already writes to ``fit_2`` below it, the next to
    ``fit_3``; a resumed fit continues its own.

    Args:
        images: Whether to draw figures, for loggers and as ``figures/*.png``.

    Attributes:
        folder: The folder of all files, if the command line has given one to the run.
    """

    def __init__(self, images: bool = True) -> None:
        super().__init__()
        self.images = images
        self.folder: Path | None = None
        self._begin()

    def _begin(self) -> None:
        self._notes = RunNotes()
        self._printed: set[str] = set()  # the kinds of notes that were printed
        self._pretrained = False
        self._claimed: Path | None = None  # the folder of this fit
        self._resumed: Path | None = None  # the folder of the fit that it resumes
        self._fitted: Path | None = None  # the folder of a finished fit
        self._drawn = 0  # the round of the last figure of the participation

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        """Reset what an earlier fit left."""
        if stage == "fit":
            self._begin()

    def state_dict(self) -> dict[str, Any]:
        """Keep the folder, in which a resumed fit continues."""
        return {} if self._claimed is None else {"folder": str(self._claimed.absolute())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember the folder of the fit that is resumed."""
        self._resumed = Path(state_dict["folder"])

    def on_pretraining_epoch(
        self, trainer: pl.Trainer, federation: RunView, architecture: str, epoch: int, loss: float
    ) -> None:
        """Log the loss; the x-axis is the epoch."""
        self._pretrained = True
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_metrics({f"pretraining_loss/{architecture}": loss}, step=epoch)

    def on_federation_prepared(self, trainer: pl.Trainer, federation: RunView) -> None:
        """Print the privacy of the releases, and write texts and figures."""
        folder = self._folder(trainer)
        if not trainer.is_global_zero:
            return
        print(format_guarantees(federation.guarantees()))
        for line in federation.privacy():
            if line == UPDATES_IN_THE_CLEAR or line.startswith(COSTS_AGAIN):
                print(line)
        if federation.history:  # a resumed run has printed them
            self._printed |= {kind for kind, _ in self._notes.find(federation)}
        self._print_notes(federation)
        texts = {
            "about this run": pages.describe_run(federation, self._pretrained),
            "privacy": pages.describe_privacy(federation),
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
        self._show(run_figures.prepared_figures, trainer, folder, federation)

    def on_round_end(self, trainer: pl.Trainer, federation: RunView) -> None:
        """Print new notes, rewrite both files and draw who took part."""
        folder = self._folder(trainer)
        if not trainer.is_global_zero:
            return
        notes = self._print_notes(federation)
        if folder is not None:
            write_curve(folder / "curve.csv", federation.history)
            write_summary(folder / "summary.json", federation, notes)
        if len(federation.history) >= 2 * self._drawn:  # after rounds 1, 2, 4, 8, ...: it is slow
            self._show(run_figures.client_figures, trainer, folder, federation)
            self._drawn = len(federation.history)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Draw the figures of the finished run and log its settings with the final results."""
        folder = self._folder(trainer)
        history = pl_module.history
        if _is_trial(trainer) or not history or not trainer.is_global_zero:
            return
        if self.folder is None:  # otherwise the command line says it
            where = folder or "not written, the Trainer has no default_root_dir and no log folder"
            print_above_bars(f"report and figures: {where}")
        if self._drawn < len(history):
            self._show(run_figures.client_figures, trainer, folder, pl_module)
        measured = client_results.last_measured(history)
        if table := client_results.client_table(measured):
            if folder is not None:
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
        """Add the metrics on the test data to the summary of the run that the Trainer fitted.

        ``test`` has those of a checkpoint, ``last_test`` those of the model after the last round.
        Those of a checkpoint are also the accuracy at the top, in clients.csv and in the figures.
        """
        if self._fitted is None or not trainer.is_global_zero:
            return
        path = self._fitted / "summary.json"
        summary = json.loads(path.read_text())
        # the history lacks the round of a checkpoint that was saved right after its validation
        rounds = int(pl_module.metrics["round"])
        measured = {name: float(value) for name, value in trainer.callback_metrics.items()}
        names = ("accuracy", *pl_module.monitored_metrics)
        tested = {k: v for k, v in measured.items() if k in names or k.startswith("client_")}
        is_last = trainer.ckpt_path is None and rounds == summary["rounds"]
        key = "last_test" if is_last else "test"
        summary[key] = {**tested, "round": rounds}
        is_result = key == "test" or (
            "test" not in summary and summary.get("accuracy_of") == "test"
        )
        if is_result:
            summary |= _headline(tested["accuracy"], "test", rounds)
        write_json_atomically(path, _plain(summary))
        if not is_result:
            return
        if table := client_results.client_table(measured):
            _write_table(path.with_name(CLIENTS), table)
        figures = partial(run_figures.test_figures, tested={**tested, "round": rounds})
        self._show(figures, trainer, self._fitted, pl_module)

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        """Say after Ctrl-C or SIGTERM how to resume the run."""
        is_fit = trainer.state.fn == TrainerFn.FITTING
        is_interrupted = isinstance(exception, KeyboardInterrupt | SystemExit)
        if is_fit and trainer.is_global_zero and is_interrupted:
            print_above_bars(_describe_resumption(trainer, pl_module, self.folder))

    def _folder(self, trainer: pl.Trainer) -> Path | None:
        """The folder of all files; None if nothing is to be written."""
        log_dir = trainer.log_dir  # broadcast from the first process: all processes must read it
        if _is_trial(trainer):
            return None
        if self.folder is not None:
            return self.folder
        given = next(filter(_is_given, (log_dir, trainer.default_root_dir)), None)
        if self._claimed is None and given is not None:
            numbered = (Path(given, f"fit_{number}") for number in count(2))
            self._claimed = next(filter(self._is_free, chain([Path(given)], numbered)))
        return self._claimed

    def _is_free(self, folder: Path) -> bool:
        """Whether a folder has no report but that of the fit that is resumed."""
        has_report = any((folder / name).exists() for name in ("curve.csv", "figures"))
        return not has_report or folder.absolute() == self._resumed

    def _print_notes(self, federation: RunView) -> list[str]:
        """Print the first note of each kind; return all notes."""
        notes = self._notes.find(federation)
        for kind, text in notes:
            if kind not in self._printed:
                self._printed.add(kind)
                print_above_bars(f"note: {terminal_safe(text)}")
        return [text for _, text in notes]

    def _show(
        self, figures: _Figures, trainer: pl.Trainer, folder: Path | None, federation: RunView
    ) -> None:
        """Write figures to files and to all loggers."""
        is_shown = folder is not None or trainer.loggers
        if not self.images or not is_shown or _is_trial(trainer):
            return
        used: Counter[str] = Counter()
        for name, figure in figures(federation):
            picture = rasterize(figure)
            if folder is not None:
                stem = file_safe(name)
                used[stem] += 1
                if used[stem] > 1:  # of another name, such as "a_b" after "a/b"
                    stem += f"-{used[stem]}"
                path = folder / "figures" / f"{stem}.png"
                write_atomically(path, partial(picture.save, format="png"))
            for logger in trainer.loggers:
                log_figure(logger, name, picture, len(federation.history))


def _is_trial(trainer: pl.Trainer) -> bool:
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]


def _is_given(folder: str | None) -> bool:
    """Whether it is a folder that somebody chose: Lightning's default is the current one."""
    return folder is not None and Path(folder).absolute() != Path.cwd()


def cache_folder(trainer: pl.Trainer) -> Path | None:
    """Return the folder in which results of the preparation are kept for later runs, if any."""
    root = trainer.default_root_dir
    folder = Path(root, "cache") if _is_given(root) else user_cache()
    return None if is_off(folder) else folder


def rasterize(figure: "Figure") -> Image.Image:
    """Draw a figure, with all that lies outside of it, as an RGB image."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    box = figure.get_tightbbox(renderer).padded(0.15)  # "tight" would draw it twice
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches=box)
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
        experiment.log_image(logger.run_id, picture, f"{_artifact(name)}.png")


def _artifact(name: str) -> str:
    """Return a path below the artifacts of a run; a client's name cannot leave it."""
    return "/".join(map(file_safe, name.split("/")))


def log_text(logger: Logger, name: str, text: str) -> None:
    """Log Markdown to TensorBoard or MLflow; other loggers ignore it."""
    experiment: Any = getattr(logger, "experiment", None)
    if hasattr(experiment, "add_text"):  # TensorBoard
        experiment.add_text(name, text, 0)
    elif hasattr(experiment, "log_text") and hasattr(logger, "run_id"):  # MLflow
        experiment.log_text(logger.run_id, text, f"{_artifact(name)}.md")


def write_curve(path: Path, history: Sequence[dict[str, float]]) -> None:
    """Write one row per round, with a column for every measurement of any round."""
    columns = list(dict.fromkeys(key for entry in history for key in entry))
    rows = ([entry.get(name) for name in columns] for entry in history)
    _write_table(path, [columns, *rows])


def _write_table(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    safe = [[terminal_safe(v) if isinstance(v, str) else v for v in row] for row in rows]
    write_text_atomically(path, csv_text(safe, "\r\n"))


def write_summary(path: Path, federation: RunView, notes: Sequence[str] = ()) -> None:
    """Write the results so far, with all settings and notes.

    ``accuracy`` is that of the last round that was measured; ``accuracy_of`` says on which part of
    the data. ``best_accuracy`` is the best over rounds on the test data, as the paper reports it.
    With validation data there is none; ``last_test`` and ``test`` follow when the last and the best
    round are tested, and ``accuracy`` is that of ``test`` then.
    """
    last = federation.history[-1]
    higher_is_better = federation.monitored_metrics
    results: dict[str, Any] = _last_headline(federation) | {"best_accuracy": None}
    for name, values in _measured(federation).items():
        best = max if higher_is_better.get(name.removeprefix("val/"), True) else min
        key = name.replace("/", "_")
        results[key] = values[-1]
        results[f"best_{key}"] = best(values)
    lower_is_better = [name for name, is_higher in higher_is_better.items() if not is_higher]
    if lower_is_better:
        results["lower_is_better"] = lower_is_better
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


def _last_headline(federation: RunView) -> dict[str, Any]:
    """Return the accuracy of the last round that was measured, and on which data and round."""
    measured = client_results.last_measured(federation.history)
    for name, part in (("accuracy", "test"), ("val/accuracy", "validation")):
        if name in measured:
            return _headline(measured[name], part, int(measured["round"]))
    return _headline(None, None, None)


def _headline(accuracy: float | None, part: str | None, round_: int | None) -> dict[str, Any]:
    """Return the accuracy at the top of a summary, with the part of the data and the round."""
    return {"accuracy": accuracy, "accuracy_of": part, "accuracy_round": round_}


def _measured(federation: RunView) -> dict[str, list[float]]:
    """The metrics of the rounds, on test and on validation data, as far as there are any."""
    measured = {}
    for metric in ("accuracy", *federation.monitored_metrics):
        for name in (metric, f"val/{metric}"):
            values = [entry[name] for entry in federation.history if name in entry]
            if values:
                measured[name] = values
    return measured


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    """Replace infinity and NaN, which JSON does not have, by strings."""
    text = json.dumps(content)
    return dict(json.loads(text, parse_constant=lambda name: str(float(name))))


def _describe_resumption(trainer: pl.Trainer, federation: RunView, folder: Path | None) -> str:
    """Say how to resume an interrupted fit, or what is kept without a checkpoint.

    ``folder`` is that of a run of the command line; None in Python.
    """
    writer = trainer.strategy.checkpoint_io
    if isinstance(writer, AtomicCheckpointIO):
        writer.finish()
    paths: list[Any] = [trainer.ckpt_path]
    for callback in trainer.checkpoint_callbacks:
        # attributes of ModelCheckpoint; other checkpoint callbacks need not have them
        paths.append(getattr(callback, "last_model_path", ""))
        paths.append(getattr(callback, "best_model_path", ""))
    existing = [Path(path) for path in paths if path and Path(path).is_file()]
    checkpoint = max(existing, key=lambda path: path.stat().st_mtime_ns, default=None)
    rounds = len(federation.history)
    so_far = f"interrupted after round {rounds}" if rounds else "interrupted in or before round 1"
    if checkpoint is None:
        cache = cache_folder(trainer)
        has_h0 = federation.algorithm.pretrained and cache is not None and os.path.isdir(cache)
        kept = f"; finished pre-trainings are kept in {cache}" if has_h0 else ""
        return f"{so_far}, without a checkpoint: start again{kept}"
    call = f'trainer.fit(federation, datamodule=data, ckpt_path="{checkpoint}")'
    if folder is not None:
        call = _resuming_command(folder, checkpoint)
    return f"{so_far}: resume with {call}"


def _resuming_command(folder: Path, checkpoint: Path) -> str:
    """Return the command line that resumes a run from a checkpoint.

    It takes the settings of the run's config.yaml, which fit finds by itself beside the checkpoint.
    """
    options = ["--ckpt_path", str(checkpoint)]
    run = folder.absolute()
    if checkpoint.absolute() == run / "checkpoints" / "last.ckpt":
        options = ["--ckpt_path", str(folder)]
    elif checkpoint.absolute().parent.parent != run:
        options = ["--config", str(folder / "config.yaml"), *options]
    return shlex.join(["fedaux-pl", "fit", *options])
