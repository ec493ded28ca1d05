"""The checkpoint of the best round on validation data."""

from pathlib import Path
from typing import Any, Literal

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.lightning import ModelCheckpoint, pl

METRIC = "val/accuracy"


class BestCheckpoint(ModelCheckpoint):
    """Keeps ``best.ckpt``, the best round on validation data; nothing without such data.

    Put it before other checkpoint callbacks, so that their files know the best round so far:
    otherwise a resumed run may replace it by a worse one.

    Args:
        monitor: The metric to choose by, such as ``val/mean_client/accuracy``.
        mode: ``max`` if a higher value is better, ``min`` if a lower one is.
        **options: Further arguments of Lightning's ModelCheckpoint, such as ``dirpath``.

    Examples:
        >>> BestCheckpoint().monitor
        'val/accuracy'
    """

    def __init__(
        self, monitor: str = METRIC, mode: Literal["max", "min"] = "max", **options: Any
    ) -> None:
        defaults: dict[str, Any] = {
            "filename": "best",
            "enable_version_counter": False,
            "every_n_epochs": 1,
            "save_on_train_epoch_end": True,
        }
        super().__init__(monitor=monitor, mode=mode, **(defaults | options))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best round, also if the folder of the run has another path now."""
        saved: dict[str, Any] = state_dict["best_k_models"]
        paths = {path: self._find(path) for path in saved}
        if paths and all(Path(path).is_file() for path in paths.values()):
            state_dict = {
                **state_dict,
                "dirpath": self.dirpath,
                "best_k_models": {paths[path]: score for path, score in saved.items()},
                "best_model_path": self._find(state_dict["best_model_path"]),
                "kth_best_model_path": self._find(state_dict["kth_best_model_path"]),
            }
        super().load_state_dict(state_dict)

    def _find(self, path: str) -> str:
        """The path of a checkpoint, which may have moved to this callback's folder."""
        here = Path(self.dirpath or "") / Path(path).name
        return str(here) if here.is_file() else path

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save a better round, if the metric was measured."""
        if self.monitor in trainer.callback_metrics:
            super().on_validation_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save a better round, if the metric was measured; raise if another one was."""
        logged = trainer.callback_metrics
        if self.monitor in logged:
            super().on_train_epoch_end(trainer, pl_module)
        elif METRIC in logged:
            raise ConfigurationError(
                f"BestCheckpoint: got monitor {self.monitor}, which is not logged; expected one of "
                f"{', '.join(sorted(logged))}"
            )
