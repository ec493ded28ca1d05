"""Callbacks of a federation: progress, report, figures, the best checkpoint."""

from fedaux_pl.callbacks.best_checkpoint import BestCheckpoint
from fedaux_pl.callbacks.hooks import FederationCallback
from fedaux_pl.callbacks.progress import FederationProgress
from fedaux_pl.callbacks.report import FederationReport

__all__ = ["BestCheckpoint", "FederationCallback", "FederationProgress", "FederationReport"]
