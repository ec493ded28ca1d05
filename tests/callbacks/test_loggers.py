"""Figures and texts in any logger."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedaux_pl.callbacks.loggers import log_figure, log_outcome, log_text, rasterize


def red_figure():
    return Figure(figsize=(2, 1), dpi=50, facecolor="#ff0000")


class Recorder:
    """Remembers the calls of the methods that it is given."""

    def __init__(self, *names):
        self.calls = []
        for name in names:
            setattr(self, name, lambda *args, n=name, **kw: self.calls.append((n, args, kw)))


class Wandb(Recorder):
    """An imitation of Lightning's WandbLogger: it takes a list of images."""

    def __init__(self):
        super().__init__("log_image", "log_hyperparams")
        self.experiment = Recorder("log")


class MLFlow(Recorder):
    """An imitation of Lightning's MLFlowLogger: its experiment is MLflow's client."""

    run_id = "7f"

    def __init__(self):
        super().__init__("log_hyperparams")
        self.experiment = Recorder("log_figure", "log_text")


def test_a_figure_becomes_pixels_once():
    figure = red_figure()
    picture = rasterize(figure)
    assert picture.size == (100, 50)
    assert (np.asarray(picture) == (255, 0, 0)).all()
    canvas = figure.canvas
    rasterize(figure)
    assert figure.canvas is canvas  # it was not drawn again
    figure.set_facecolor("#0000ff")
    assert (np.asarray(rasterize(figure)) == (0, 0, 255)).all()


def test_wandb_gets_an_image():
    logger = Wandb()
    log_figure(logger, "clients/participation", red_figure(), 3)
    [(method, (name, [image]), options)] = logger.calls
    assert (method, name, options) == ("log_image", "clients/participation", {"step": 3})
    assert image.size == (100, 50)
    log_text(logger, "about", "text")  # it has no plain texts
    assert len(logger.calls) == 1
    assert logger.experiment.calls == []


def test_mlflow_gets_figure_and_text():
    logger, figure = MLFlow(), red_figure()
    log_figure(logger, "data/split", figure, 3)
    log_text(logger, "about", "text")
    assert logger.experiment.calls == [
        ("log_figure", ("7f", figure, "data/split.png"), {}),
        ("log_text", ("7f", "text", "about.md"), {}),
    ]


def test_tensorboard_gets_figure_and_text(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="runs")
    log_figure(logger, "data/split", red_figure(), 3)
    log_text(logger, "about", "text")
    log_outcome(logger, {"lr": 0.1}, {"accuracy": 0.5}, 3, {"1 method": "FedAUX"})
    logger.experiment.flush()
    pages = EventAccumulator(logger.log_dir)
    pages.Reload()
    [image] = pages.Images("data/split")
    assert (image.step, image.width, image.height) == (3, 100, 50)
    assert "about/text_summary" in pages.Tags()["tensors"]
    assert [event.value for event in pages.Scalars("final/accuracy")] == [0.5]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["version_0"]
    files = list((tmp_path / "runs" / "version_0").iterdir())
    assert len(files) == 1  # no further run below it


@pytest.mark.parametrize("kind", [Wandb, MLFlow])
def test_other_loggers_have_results_as_metrics_already(kind):
    logger = kind()
    log_outcome(logger, {"lr": 0.1}, {"accuracy": 0.5}, 3, {"1 method": "FedAUX"})
    assert logger.calls == [("log_hyperparams", ({"lr": 0.1},), {})]


def test_csv_takes_no_figures(tmp_path):
    logger = CSVLogger(tmp_path)
    log_figure(logger, "data/split", red_figure(), 3)
    log_text(logger, "about", "text")
    log_outcome(logger, {"lr": 0.1}, {"accuracy": 0.5}, 3, {})
    logger.save()
    assert "lr: 0.1" in (tmp_path / "lightning_logs" / "version_0" / "hparams.yaml").read_text()
