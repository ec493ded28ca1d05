"""The federation, the data and the clock of a benchmark: those of ``fit``, with measurements."""

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl
import torch

from fedaux_pl.callbacks.hooks import FederationCallback
from fedaux_pl.data import FederatedDataModule, TensorBatches
from fedaux_pl.federation import Federation
from fedaux_pl.federation.preparation import Preparation

PRETRAINING_EPOCHS = 3  # the first one is the warm-up


class MeasuredFederation(Federation):
    """A federation that measures its preparation; its rounds log their seconds anyway."""

    def prepare(self, preparation: Preparation) -> None:
        """Run Algorithm 1 with a short pre-training, whose quality does not matter here."""
        # what the process prepares once, by kind: trial steps, first steps, captures, and kernels
        # of Triton, which are a part of the steps
        self.start: defaultdict[str, list[float]] = defaultdict(list)
        self._listen_to_triton()
        runner = preparation.context.runner
        runner.preparing = self._watch(runner.preparing)
        settings = dataclasses.replace(preparation.settings, epochs=PRETRAINING_EPOCHS)
        begin = now(self.device)
        super().prepare(dataclasses.replace(preparation, settings=settings))
        self.preparation_seconds = now(self.device) - begin

    def _watch(self, preparing: Callable[[str], Any]) -> Callable[[str], Any]:
        @contextmanager
        def measured(text: str) -> Iterator[Any]:
            started = now(self.device)
            with preparing(text) as stage:
                yield stage
            kind = text.partition(": ")[2].partition(" (")[0]  # X: first step (8 x 32 samples)
            self.start[kind].append(now(self.device) - started)

        return measured

    def _listen_to_triton(self) -> None:
        try:
            from triton import knobs  # Triton 3.4 or later, on Linux
        except ImportError:
            return

        def add(*, times: Any, cache_hit: bool, **_: Any) -> None:
            kind = "from the disk cache" if cache_hit else "compiled"
            self.start[f"kernels {kind}"].append(times.total / 1e6)

        knobs.compilation.listener = add


class MeasuredData(FederatedDataModule):
    """The data of a federation, whose pre-training uses only the first samples of D_aux."""

    pretraining_steps = 20  # of an epoch, at most

    def pretrain_batches(self, batch_size: int = 512, seed: int = 0) -> TensorBatches:
        """Return shuffled batches (inputs,) of the first samples of D_aux; start the clock."""
        self.pretraining_started = time.perf_counter()
        batches = super().pretrain_batches(batch_size, seed)
        count = self.pretraining_steps * batch_size
        batches.subset = torch.arange(min(batches.num_samples, count))
        self.pretraining_samples = sum(len(index) for index in batches.positions(0))
        return batches


class RoundClock(FederationCallback):
    """Measures every round, in seconds, from its first hook to the first hook of the next round.

    It must be the first callback of the Trainer: then the time includes the work of the other
    callbacks, such as writing a checkpoint.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epochs: defaultdict[str, list[float]] = defaultdict(list)  # by architecture
        self.rounds: list[float] = []
        self.validations: list[float] = []  # 0 in a round without validation
        self._epoch_started = self._started = self._validation_started = 0.0

    def on_pretraining_epoch(
        self, trainer: pl.Trainer, federation: Any, architecture: str, epoch: int, loss: float
    ) -> None:
        """Stop the clock of the epoch and start that of the next one."""
        started = federation.data.pretraining_started if epoch == 1 else self._epoch_started
        self._epoch_started = now(federation.device)
        self.epochs[architecture].append(self._epoch_started - started)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Stop the clock of the previous round and start that of this one."""
        self.on_train_end(trainer, pl_module)
        self.validations.append(0.0)
        self._started = now(pl_module.device)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Stop the clock of the last round."""
        if len(self.rounds) < len(self.validations):
            self.rounds.append(now(pl_module.device) - self._started)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Start the clock of the validation."""
        self._validation_started = now(pl_module.device)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Stop the clock of the validation."""
        self.validations[-1] = now(pl_module.device) - self._validation_started


def now(device: torch.device) -> float:
    """Return the time in seconds, after all kernels on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
