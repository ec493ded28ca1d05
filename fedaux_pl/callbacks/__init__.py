"""Callbacks of a federation: its progress, its report and its figures."""

from fedaux_pl.callbacks.hooks import FederationCallback
from fedaux_pl.callbacks.progress import FederationProgress
from fedaux_pl.callbacks.report import FederationReport

__all__ = ["FederationCallback", "FederationProgress", "FederationReport"]
