"""How a federation logs its metrics by Lightning."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from fedaux_pl.federation.evaluation_metrics import ACCURACY
from fedaux_pl.lightning import pl

_LOSSES = ("client_loss/mean", "distillation_loss/")  # what callbacks may monitor, as accuracies


def log_measured(
    module: pl.LightningModule, metrics: Mapping[str, float], logger: bool = True
) -> None:
    """Log numbers that are the same in all processes, without ``logger`` for callbacks only."""
    # no process sums up: sync_dist only silences a warning
    options: dict[str, Any] = {"logger": logger, "on_epoch": True, "sync_dist": True}
    with warnings.catch_warnings():  # what is logged is also returned and monitored
        warnings.filterwarnings("ignore", message=".*but have no logger configured")
        for name, value in metrics.items():
            exact = torch.tensor(value, dtype=torch.float64)
            in_bar = name in (ACCURACY, f"val/{ACCURACY}")
            module.log(name, exact, rank_zero_only=True, prog_bar=in_bar, **options)


def log_round(module: pl.LightningModule, metrics: Mapping[str, float]) -> None:
    """Log the metrics of a round in one row over the round, and the losses for callbacks.

    ``module.log`` would log them over steps, in two rows; so the loggers are called directly.
    """
    losses = {name: value for name, value in metrics.items() if name.startswith(_LOSSES)}
    log_measured(module, losses, logger=False)
    if module.trainer.is_global_zero:
        measured = dict(metrics)
        round_ = int(measured.pop("round"))
        for logger in module.trainer.loggers:
            logger.log_metrics(measured, step=round_)
