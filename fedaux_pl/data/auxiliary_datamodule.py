"""The auxiliary data on its own, for self-supervised pre-training outside a federation."""

import pytorch_lightning as pl
from torch import Tensor

from fedaux_pl.data.batches import TensorBatches
from fedaux_pl.data.datamodule import PRETRAIN_BATCHES
from fedaux_pl.data.in_memory import Data, as_source
from fedaux_pl.data.input_checks import (
    check_finite,
    check_pixels,
    check_same_kind,
    check_setting,
)
from fedaux_pl.data.source import Examples
from fedaux_pl.functional import derive_seed


class AuxiliaryDataModule(pl.LightningDataModule):
    """The auxiliary data D_aux for self-supervised pre-training, with a kNN probe.

    Args:
        auxiliary: The public data to train on; labels are not used.
        probe: Labeled data that measures the quality of the features and is not trained on: a kNN
            classifier on its training data is evaluated on its test data. None for no probe.
        batch_size: Samples per batch in each process; SimCLR makes two views of each.
        seed: The seed of the order of the batches.

    Example:
        >>> from fedaux_pl.data import AuxiliaryDataModule, Digits
        >>> data = AuxiliaryDataModule(Digits(), probe=Digits(), batch_size=128)
        >>> data.setup()
        >>> [len(images) for (images,) in data.train_dataloader()]
        [128, 128, 128, 128, 86]
    """

    def __init__(
        self, auxiliary: Data, probe: Data | None = None, batch_size: int = 512, seed: int = 0
    ) -> None:
        super().__init__()
        check_setting("batch_size", batch_size, batch_size >= 2, "be at least 2")
        self.auxiliary = as_source("auxiliary", auxiliary)
        self.probe = None if probe is None else as_source("probe", probe)
        self.batch_size = batch_size
        self.seed = seed
        self._inputs: Tensor | None = None
        self._probes: list[Examples] = []

    def setup(self, stage: str | None = None) -> None:
        """Load the data, once, and move it to the Trainer's device."""
        if self._inputs is None:
            self._inputs = self.auxiliary.auxiliary()
            check_finite(self._inputs)
            check_pixels(self._inputs, "auxiliary images")
            if self.probe is not None:
                self._probes = [self.probe.train(), self.probe.test()]
                for examples in self._probes:
                    check_same_kind(self._inputs, examples.inputs, "auxiliary and probe data")
        if self.trainer is not None:
            device = self.trainer.strategy.root_device
            self._inputs = self._inputs.to(device)
            self._probes = [examples.to(device) for examples in self._probes]

    def train_dataloader(self) -> TensorBatches:
        """Shuffled batches of D_aux, split over the processes."""
        if self._inputs is None:
            raise RuntimeError("the data is not loaded yet: call setup() first")
        options = {"batch_size": self.batch_size, "seed": derive_seed(self.seed, PRETRAIN_BATCHES)}
        return TensorBatches(self._inputs, **options, shuffle=True, smallest=2, **self._process())

    def val_dataloader(self) -> list[TensorBatches]:
        """The probe's training data (the neighbors) and its test data (the queries)."""
        own = self._process()
        return [TensorBatches(x.inputs, x.targets, batch_size=1024, **own) for x in self._probes]

    def _process(self) -> dict[str, int]:
        trainer = self.trainer
        if trainer is None:
            return {}
        return {"rank": trainer.global_rank, "world_size": trainer.world_size}
