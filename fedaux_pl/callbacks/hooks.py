"""The hooks of a federation, in addition to those of Lightning."""

from typing import Any

import pytorch_lightning as pl


class FederationCallback(pl.Callback):
    """A callback that a federation calls after its preparation and after each round."""

    def on_federation_prepared(self, trainer: pl.Trainer, federation: Any) -> None:
        """Called after Algorithm 1, before the first round."""

    def on_round_end(self, trainer: pl.Trainer, federation: Any) -> None:
        """Called after a round, when its measurements are the last entry of the history."""
