"""The federation and the data of a benchmark: those of ``fit``, with counts and measurements."""

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, SupportsFloat

import torch
from torch import Tensor

from fedaux_pl.benchmark.flops import synchronize
from fedaux_pl.benchmark.start_clock import StartClock
from fedaux_pl.callbacks.progress import Stage, StageProgress
from fedaux_pl.data import FederatedDataModule, TensorBatches
from fedaux_pl.federation import Federation
from fedaux_pl.federation.preparation import Preparation
from fedaux_pl.federation.server import Predictor
from fedaux_pl.functional.averaging import State

PRETRAINING_EPOCHS = 3  # the first one is the warm-up


class MeasuredFederation(Federation):
    """A federation that counts its predictions and measures its device memory.

    Attributes:
        predicted: For each round the number of predicted samples by (stage, architecture).
        device_peaks: For each stage the maximum of allocated device memory, in bytes.
        device_reserved: The maximum of reserved device memory, in bytes.
        stopwatch: The times of the preparation's stages.
        start: The times of what the process prepares once.
        preparation_seconds: The seconds of Algorithm 1 without pre-training.
    """

    def prepare(self, preparation: Preparation) -> None:
        """Algorithm 1 with a short pre-training, whose quality does not matter here."""
        self.predicted: list[Counter[tuple[str, str]]] = []
        self.device_peaks: defaultdict[str, int] = defaultdict(int)
        self.device_reserved = 0
        self.stopwatch = Stopwatch(preparation.context.progress, self.device)
        self.start = StartClock(self.device)
        self.start.listen()
        runner = preparation.context.runner
        runner.preparing = self.start.watch(runner.preparing)
        self._stage = "preparation"
        predictor = _CountingPredictor(**vars(self.server.predictor), on_predict=self._count)
        self.server = dataclasses.replace(self.server, predictor=predictor)
        settings = dataclasses.replace(preparation.settings, epochs=PRETRAINING_EPOCHS)
        context = self.pool.context
        self.pool.context = timed = dataclasses.replace(context, progress=self.stopwatch)
        begin = time.perf_counter()
        with self._measure_memory("preparation"):
            super().prepare(dataclasses.replace(preparation, settings=settings, context=timed))
        synchronize(self.device)
        training = (sum(t) for k, t in self.stopwatch.laps.items() if k.startswith("pre-training"))
        self.preparation_seconds = time.perf_counter() - begin - sum(training)
        self.pool.context = context  # the clock of the rounds synchronizes less often

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """One round, whose predictions are counted."""
        self.predicted.append(Counter())
        super().training_step(batch, batch_idx)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Measures the time and the device memory of a stage of the round."""
        self._stage = stage
        with self._measure_memory(stage), super().timed(stage):
            yield

    def _count(self, architecture: str, samples: int) -> None:
        self.predicted[-1][self._stage, architecture] += samples

    @contextmanager
    def _measure_memory(self, stage: str) -> Iterator[None]:
        if self.device.type != "cuda":
            yield
            return
        torch.cuda.reset_peak_memory_stats(self.device)
        yield
        peak = torch.cuda.max_memory_allocated(self.device)
        self.device_peaks[stage] = max(self.device_peaks[stage], peak)
        reserved = torch.cuda.max_memory_reserved(self.device)
        self.device_reserved = max(self.device_reserved, reserved)


class MeasuredData(FederatedDataModule):
    """The data of a federation, whose pre-training uses only the first samples of D_aux."""

    pretraining_steps = 20

    def pretrain_batches(self, batch_size: int = 512, seed: int = 0) -> TensorBatches:
        """Shuffled batches (inputs,) of the first samples of D_aux."""
        batches = super().pretrain_batches(batch_size, seed)
        count = self.pretraining_steps * batch_size
        batches.subset = torch.arange(min(batches.num_samples, count))
        return batches


class Stopwatch:
    """Measures the time between the progress reports of a stage, and passes them on.

    Args:
        progress: The progress that shows the stages.
        device: The device to wait for at each report.

    Attributes:
        laps: For each stage the seconds between its reports.
    """

    def __init__(self, progress: StageProgress, device: torch.device) -> None:
        self.progress = progress
        self.device = device
        self.laps: dict[str, list[float]] = {}

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "it") -> Iterator[Stage]:
        """Starts a stage and its time."""
        laps = self.laps.setdefault(name, [])
        with self.progress.stage(name, total, unit) as shown:
            yield _TimedStage(shown, laps, self.device)


class _TimedStage(Stage):
    def __init__(self, shown: Stage, laps: list[float], device: torch.device) -> None:
        self._shown, self._laps, self._device = shown, laps, device
        self._started = time.perf_counter()

    def update(self, n: int = 1, **values: SupportsFloat) -> None:
        synchronize(self._device)
        self._laps.append(time.perf_counter() - self._started)
        self._shown.update(n, **values)
        self._started = time.perf_counter()


@dataclasses.dataclass(frozen=True)
class _CountingPredictor(Predictor):
    on_predict: Callable[[str, int], None] = dataclasses.field(kw_only=True)

    def predict(self, architecture: str, state: State, part: str) -> Tensor:
        logits = super().predict(architecture, state, part)
        self.on_predict(architecture, len(logits))
        return logits
