"""Figures, texts and settings for any logger of Lightning.

Loggers are told apart by what they can do, so that W&B and MLflow need not be installed.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from pytorch_lightning.loggers import Logger, TensorBoardLogger

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def rasterize(figure: "Figure") -> Image.Image:
    """The figure as an RGB image; a figure that has not changed since is not drawn again."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = figure.canvas
    if not isinstance(canvas, FigureCanvasAgg) or figure.stale:
        canvas = FigureCanvasAgg(figure)
        canvas.draw()  # type: ignore[no-untyped-call]
        figure.stale = False
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    return Image.fromarray(pixels).convert("RGB")


def log_figure(logger: Logger, name: str, figure: "Figure", step: int) -> None:
    """Log a figure to TensorBoard, W&B or MLflow; loggers that take no images ignore it."""
    experiment: Any = getattr(logger, "experiment", None)
    if hasattr(logger, "log_image"):  # W&B
        logger.log_image(name, [rasterize(figure)], step=step)
    elif hasattr(experiment, "add_image"):  # TensorBoard
        experiment.add_image(name, np.asarray(rasterize(figure)), step, dataformats="HWC")
    elif hasattr(experiment, "log_figure") and hasattr(logger, "run_id"):  # MLflow
        experiment.log_figure(logger.run_id, figure, f"{name}.png")


def log_text(logger: Logger, name: str, text: str) -> None:
    """Log Markdown to TensorBoard or MLflow; other loggers ignore it."""
    experiment: Any = getattr(logger, "experiment", None)
    if hasattr(experiment, "add_text"):  # TensorBoard
        experiment.add_text(name, text, 0)
    elif hasattr(experiment, "log_text") and hasattr(logger, "run_id"):  # MLflow
        experiment.log_text(logger.run_id, text, f"{name}.md")


def log_layout(logger: Logger, layout: Mapping[str, Any]) -> None:
    """Arrange the charts of TensorBoard's custom scalars; other loggers ignore it."""
    experiment: Any = getattr(logger, "experiment", None)
    if hasattr(experiment, "add_custom_scalars"):
        experiment.add_custom_scalars(layout)


def log_outcome(
    logger: Logger,
    settings: dict[str, Any],
    results: dict[str, float],
    step: int,
    headline: dict[str, Any],
) -> None:
    """Log settings and final results, in TensorBoard for its page of hyper-parameters.

    Args:
        logger: Any logger of a Trainer.
        settings: All settings.
        results: The results; other loggers than TensorBoard's have them as metrics already.
        step: The last round.
        headline: The first columns of TensorBoard's table, which sorts by name.
    """
    if isinstance(logger, TensorBoardLogger):
        final = {f"final/{name}": value for name, value in results.items()}
        # into the events of the run: SummaryWriter.add_hparams would create a run of its own
        logger.log_hyperparams(headline | settings, final, step)
    else:
        logger.log_hyperparams(settings)
