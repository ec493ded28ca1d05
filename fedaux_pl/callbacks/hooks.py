"""The hooks of a federation, in addition to those of Lightning."""

from fedaux_pl.callbacks.run_view import RunView
from fedaux_pl.lightning import pl


class FederationCallback(pl.Callback):
    """A callback that a federation calls in its preparation, after it, and after each round."""

    def on_pretraining_epoch(
        self, trainer: pl.Trainer, federation: RunView, architecture: str, epoch: int, loss: float
    ) -> None:
        """Called after an epoch of the pre-training of h_0, from 1; not if h_0 is in the cache."""

    def on_federation_prepared(self, trainer: pl.Trainer, federation: RunView) -> None:
        """Called after Algorithm 1, before the first round."""

    def on_round_end(self, trainer: pl.Trainer, federation: RunView) -> None:
        """Called after a round, when its measurements are the last entry of the history."""


def federation_callbacks(trainer: pl.Trainer) -> list[FederationCallback]:
    """The Trainer's callbacks that have hooks of a federation."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in callbacks if isinstance(callback, FederationCallback)]
