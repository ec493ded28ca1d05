"""Figures and texts in any logger."""

import numpy as np
from matplotlib.figure import Figure

from fedaux_pl.callbacks.report import log_figure, log_text, rasterize

RED = Figure(figsize=(2, 1), dpi=50, facecolor="#ff0000")


def log_red(logger, name):
    log_figure(logger, name, rasterize(RED), 3)


class Recorder:
    """Remembers the calls of the methods that it is given."""

    def __init__(self, *names):
        self.calls = []
        for name in names:
            setattr(self, name, lambda *args, n=name, **kw: self.calls.append((n, args, kw)))


class Wandb(Recorder):
    """An imitation of Lightning's WandbLogger: it takes a list of images."""

    def __init__(self):
        super().__init__("log_image")
        self.experiment = Recorder("log")


class MLFlow(Recorder):
    """An imitation of Lightning's MLFlowLogger: its experiment is MLflow's client."""

    run_id = "7f"

    def __init__(self):
        super().__init__()
        self.experiment = Recorder("log_image", "log_text")


def test_a_figure_becomes_pixels():
    picture = rasterize(RED)
    assert picture.size == (115, 65)  # with a border of 0.15 inches
    assert (np.asarray(picture) == (255, 0, 0)).all()


def test_wandb_gets_an_image():
    logger = Wandb()
    log_red(logger, "clients/participation")
    [(method, (name, [image]), options)] = logger.calls
    assert (method, name, options) == ("log_image", "clients/participation", {"step": 3})
    assert image.size == (115, 65)
    log_text(logger, "about", "text")  # it has no plain texts
    assert len(logger.calls) == 1
    assert logger.experiment.calls == []


def test_mlflow_gets_figure_and_text():
    logger = MLFlow()
    log_red(logger, "data/split")
    log_text(logger, "about", "text")
    [(method, (run, image, name), _), text] = logger.experiment.calls
    assert (method, run, name) == ("log_image", "7f", "data/split.png")
    assert image.size == (115, 65)
    assert text == ("log_text", ("7f", "text", "about.md"), {})
