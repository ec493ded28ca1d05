"""Replicas of a module that train at the same time, with captured steps.

A kind of steps is captured once and then replayed. The first step with new kernels runs as usual
instead: they are compiled, and cuDNN tries its own, which a capture cannot do. Smaller last batches
are other kinds, so every step uses exactly the samples of plain training. They are a single step of
an epoch: cuDNN's trials would take longer than they save.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from fedaux_pl.accelerate.bert.packing import choose_rows
from fedaux_pl.accelerate.context import ceil_div, using
from fedaux_pl.accelerate.recording.cuda_graphs import (
    CudaGraphs,
    DeviceRNG,
    ProbeResult,
    Replay,
    Step,
)
from fedaux_pl.accelerate.recording.static_batches import StaticBatches
from fedaux_pl.data import TensorBatches
from fedaux_pl.engine.inference import without_trials
from fedaux_pl.engine.optimizer_state import restore, set_lr
from fedaux_pl.engine.stage import Job, Preparing, create_optimizer
from fedaux_pl.lightning import pl
from fedaux_pl.models.encoder import Encoder


class StepKind(NamedTuple):
    """For what a captured step can be replayed: replicas, batch size, rows of packed texts."""

    replicas: tuple[int, ...]
    batch_size: int
    rows: int = 0  # 0 if inputs are not packed

    @property
    def kernels(self) -> tuple[int, int, bool]:
        """What determines the kernels of the step: its sizes and whether it is alone."""
        return self.batch_size, self.rows, len(self.replicas) > 1


class Replica:
    """A copy of a module, with its optimizer, batches and random numbers (None: it draws none)."""

    def __init__(
        self,
        module: pl.LightningModule,
        optimizer: Optimizer,
        rng: DeviceRNG | None,
    ) -> None:
        self.module = module
        self.optimizer = optimizer
        self.rng = rng
        self.batches = StaticBatches()
        self.loss_sum = torch.zeros((), device=next(module.parameters()).device)
        self._lr = math.nan
        self._steps = 0
        self._lr_of_step: Callable[[int], float] | None = None

    def start(self, job: Job) -> None:
        """Put the job's initial weights, optimizer state and seed in place."""
        job.start(self.module, self.optimizer)
        self._lr_of_step = job.lr
        self._steps = 0
        if self.rng is not None:
            self.rng.seed(job.seed)

    def prepare_step(self) -> None:
        """Do what a captured step does not: set its learning rate, read inputs."""
        if self._lr_of_step is not None:
            lr = self._lr_of_step(self._steps)
            if lr != self._lr:
                set_lr(self.optimizer, lr)
                self._lr = lr
        self._steps += 1
        self.batches.fetch()

    def take_step(self, step: Step, batch_size: int, rows: int = 0) -> None:
        """Take a step with the next batch and add its loss to ``loss_sum``."""
        batch = self.batches.next_batch(batch_size)
        rng = nullcontext() if self.rng is None else self.rng.active()
        with rng, using(packed=(batch_size, rows)):
            self.loss_sum += step(self.module, self.optimizer, batch, 0)


class Replicas:
    """A module and copies of it, which train at the same time."""

    def __init__(
        self,
        module: pl.LightningModule,
        *,
        step: Step,
        recorder: CudaGraphs,
        probe: ProbeResult,  # has the optimizers' state: a step that creates it is not captured
        tried: tuple[int, int, bool] | None = None,  # the ``StepKind.kernels`` of the probe
        preparing: Preparing = nullcontext,
        encoder: Encoder | None = None,  # of texts, if steps can pack them
        scheduled: bool = False,  # jobs set the learning rate, which captured steps read
    ) -> None:
        self._step = step
        self._recorder = recorder
        self._encoder = encoder
        self._scheduled = scheduled
        self._max_replicas = probe.max_replicas
        self._uses_rng = probe.uses_rng
        self._preparing = preparing
        self._name = network_name(module)
        self._pool = recorder.memory_pool()
        self._replicas: list[Replica] = []
        self._captured: dict[StepKind, Replay] = {}
        self._known_kernels = set() if tried is None else {tried}
        self._add(module, probe.optimizer_state)

    def _add(self, module: pl.LightningModule, optimizer_state: dict[str, Any] | None) -> None:
        optimizer = create_optimizer(module)
        self._recorder.prepare_optimizer(optimizer)
        if self._scheduled:
            for group in optimizer.param_groups:
                group["lr"] = torch.tensor(group["lr"], device=group["params"][0].device)
        restore(optimizer, optimizer_state)
        rng = self._recorder.create_rng() if self._uses_rng else None
        self._replicas.append(Replica(module, optimizer, rng))

    def waves(self, items: Sequence[int]) -> Iterator[Sequence[int]]:
        """Split items into the fewest groups that fit on the device, of nearly equal sizes."""
        count = ceil_div(len(items), self._max_replicas)
        for number in range(count):
            yield items[number * len(items) // count : (number + 1) * len(items) // count]

    def take(self, count: int) -> list[Replica]:
        """Return the first ``count`` replicas, creating those that are missing."""
        first = self._replicas[0]
        while len(self._replicas) < count:
            self._add(copy.deepcopy(first.module), first.optimizer.state_dict())
        return self._replicas[:count]

    def train_epoch(self, batches: Sequence[TensorBatches], epoch: int) -> list[float]:
        """Train replicas for one epoch, those with most batches first; return their mean losses."""
        for replica in self._replicas:
            replica.loss_sum.zero_()
        active = self._replicas[: len(batches)]
        moved = {n for n, data in enumerate(batches) if active[n].batches.load_epoch(data, epoch)}
        if moved:
            # Captured steps read the old buffers. A memory pool is freed with its last one.
            valid = {k: v for k, v in self._captured.items() if moved.isdisjoint(k.replicas)}
            self._captured = valid
            self._pool = self._recorder.memory_pool()
        full = batches[0].batch_size
        counts = [len(data) for data in batches]
        tokens = []
        if self._encoder is not None:
            tokens = [replica.batches.count_tokens(self._encoder) for replica in active]
        for index in range(counts[0]):
            sizes = {}
            for number, replica in enumerate(active):
                if index < counts[number]:
                    sizes[number] = min(full, replica.batches.num_samples - index * full)
            for kind in _group_by_size(sizes, full):
                is_full = kind.batch_size == full
                if self._encoder is not None and is_full:  # others would be kinds of their own
                    most = max(tokens[number][index] for number in kind.replicas)
                    length = batches[0].tensors[0].shape[1]
                    kind = kind._replace(rows=choose_rows(most, full, length))
                self._take_step(kind, is_full)
        sums = torch.stack([replica.loss_sum for replica in active]).tolist()
        return [total / count for total, count in zip(sums, counts, strict=True)]

    def _take_step(self, kind: StepKind, is_full: bool) -> None:
        replicas = [self._replicas[number] for number in kind.replicas]
        for replica in replicas:
            replica.prepare_step()
        steps = [partial(replica.take_step, self._step, *kind[1:]) for replica in replicas]
        if kind.kernels not in self._known_kernels:
            self._known_kernels.add(kind.kernels)
            with self._prepare("first step", kind, is_full):
                for step in steps:
                    with self._recorder.step_context(len(steps) - 1):
                        step()
            return
        if kind not in self._captured:
            rngs = [replica.rng for replica in replicas if replica.rng is not None]
            with self._prepare("capturing a step", kind, is_full):
                self._captured[kind] = self._recorder.capture(steps, self._pool, rngs)
            for replica in replicas:  # the capture allocated gradients in the pool
                replica.optimizer.zero_grad(set_to_none=True)
        self._captured[kind]()

    @contextmanager
    def _prepare(self, what: str, kind: StepKind, is_full: bool) -> Iterator[None]:
        """Show what is prepared; without cuDNN's trials if it is for smaller batches."""
        text = f"preparing {self._name}: {what} ({len(kind.replicas)} x {kind.batch_size} samples)"
        with self._preparing(text), nullcontext() if is_full else without_trials():
            yield


def network_name(module: nn.Module) -> str:
    """Return the class of a module's network, without the prefix of its fast version."""
    return type(getattr(module, "model", module)).__name__.removeprefix("Fast")


def _group_by_size(sizes: dict[int, int], full: int) -> list[StepKind]:
    """Group replicas whose next batches are full; others are single, unless all have one size."""
    if len(set(sizes.values())) == 1:
        return [StepKind(tuple(sizes), next(iter(sizes.values())))]
    with_full = tuple(number for number, size in sizes.items() if size == full)
    groups = [StepKind(with_full, full)] if with_full else []
    groups += [StepKind((number,), size) for number, size in sizes.items() if size != full]
    return groups
