"""The federation and the data that a benchmark runs: those of fit, with counters."""

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, SupportsFloat

import torch
from torch import Tensor

from fedaux_pl.benchmark.arithmetic import synchronize
from fedaux_pl.callbacks.progress import Stage, StageProgress
from fedaux_pl.data import FederatedDataModule, TensorBatches
from fedaux_pl.engine.preparation import Preparation
from fedaux_pl.engine.server import Server
from fedaux_pl.federation import Federation
from fedaux_pl.functional.averaging import State

EPOCHS = 3
"""Passes of pre-training in a benchmark, the first of which warms up."""


class MeasuredData(FederatedDataModule):
    """The data of a federation, but for pre-training, which sees the first few batches of them."""

    pretraining_steps = 20

    def pretrain_batches(self, batch_size: int = 512, seed: int = 0) -> TensorBatches:
        """Shuffled batches (inputs,) of the first samples of D_aux."""
        batches = super().pretrain_batches(batch_size, seed)
        wanted = self.pretraining_steps * batch_size
        batches.subset = torch.arange(min(batches.num_samples, wanted))
        return batches


class MeasuredFederation(Federation):
    """A federation that keeps count of its predictions and of the device's memory.

    Attributes:
        predicted: For each round, the samples that each (stage, architecture) predicted.
        device_peaks: For each stage, the most bytes of device memory that it had in use.
        device_reserved: The most bytes that the process had taken of it, kept for later or in use.
        stopwatch: The times of the preparation.
    """

    def prepare(self, preparation: Preparation) -> None:
        """Algorithm 1 with a short pre-training: h_0 need not be good to take its time."""
        self.predicted: list[Counter[tuple[str, str]]] = []
        self.device_peaks: defaultdict[str, int] = defaultdict(int)
        self.device_reserved = 0
        self.stopwatch = Stopwatch(preparation.progress, self.device)
        self._stage = "preparation"
        self.server = _CountingServer(
            **{field.name: getattr(self.server, field.name) for field in dataclasses.fields(Server)}
        )
        self.server.on_predict.append(self._count)
        settings = dataclasses.replace(preparation.settings, epochs=EPOCHS)
        shown, self.pool.progress = self.pool.progress, self.stopwatch
        with self._memory("preparation"):
            super().prepare(
                dataclasses.replace(preparation, settings=settings, progress=self.stopwatch)
            )
        self.pool.progress = shown  # rounds have clocks of their own, which wait less often

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """A round, whose predictions are counted."""
        self.predicted.append(Counter())
        super().training_step(batch, batch_idx)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        self._stage = stage
        with self._memory(stage), super()._timed(stage):
            yield

    def _count(self, architecture: str, samples: int) -> None:
        self.predicted[-1][self._stage, architecture] += samples

    @contextmanager
    def _memory(self, stage: str) -> Iterator[None]:
        on_cuda = self.device.type == "cuda"
        if on_cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        yield
        if on_cuda:
            peak = torch.cuda.max_memory_allocated(self.device)
            self.device_peaks[stage] = max(self.device_peaks[stage], peak)
            reserved = torch.cuda.max_memory_reserved(self.device)
            self.device_reserved = max(self.device_reserved, reserved)


@dataclasses.dataclass(frozen=True)
class _CountingServer(Server):
    """A server that says how many samples it predicts with which architecture."""

    on_predict: list[Any] = dataclasses.field(default_factory=list, kw_only=True)

    def predict(self, architecture: str, state: State, part: str) -> Tensor:
        logits = super().predict(architecture, state, part)
        for hook in self.on_predict:
            hook(architecture, len(logits))
        return logits


class Stopwatch:
    """Shows stages where they would have been shown, and takes their time.

    Args:
        progress: Where they are shown.
        device: Whose work belongs to the time.

    Attributes:
        laps: For each stage the seconds between two reports of its work.
    """

    def __init__(self, progress: StageProgress, device: torch.device) -> None:
        self.progress = progress
        self.device = device
        self.laps: dict[str, list[float]] = {}

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "it") -> Iterator[Stage]:
        """Announces a stage, whose time runs from now on."""
        laps = self.laps.setdefault(name, [])
        with self.progress.stage(name, total, unit) as shown:
            yield _Lap(shown, laps, self.device)


class _Lap(Stage):
    def __init__(self, shown: Stage, laps: list[float], device: torch.device) -> None:
        self._shown, self._laps, self._device = shown, laps, device
        self._began = time.perf_counter()

    def update(self, n: int = 1, **values: SupportsFloat) -> None:
        synchronize(self._device)
        now = time.perf_counter()
        self._laps.append(now - self._began)
        self._shown.update(n, **values)
        self._began = time.perf_counter()
