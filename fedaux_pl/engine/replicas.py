"""Copies of a module that train side by side, their steps recorded and replayed.

The first step of a kind, that is for these replicas and this batch size, is taken as any step is;
when the kind comes again it is recorded, and from then on replayed. A last batch that is smaller
is a kind of its own, so every step uses exactly the samples that plain training would use.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.optim import Optimizer

from fedaux_pl.data import TensorBatches
from fedaux_pl.engine.samples import Samples

Step = Callable[[pl.LightningModule, Optimizer, Any, int], Tensor]
_Job = TypeVar("_Job")


@dataclass(frozen=True)
class Trial:
    """Whether the steps of a module can be recorded.

    Attributes:
        obstacle: Why they cannot; empty if they can.
        limit: How many replicas may train side by side.
        draws: Whether they draw random numbers on the device.
    """

    obstacle: str
    limit: int
    draws: bool = False


class Numbers(Protocol):
    """Random numbers of a replica's own: what others draw beside it changes none of them."""

    def seed(self, seed: int) -> None:
        """Begins anew."""

    def drawn(self) -> AbstractContextManager[None]:
        """Within it these are the random numbers of the device."""


class Recorder(Protocol):
    """Records steps, so that they can be taken again on the same tensors with other values."""

    def attempt(
        self,
        module: pl.LightningModule,
        optimizer_of: Callable[[pl.LightningModule], Optimizer],
        batch: tuple[Tensor, ...],
        step: Step,
    ) -> Trial:
        """Finds out whether a module's steps can be recorded, and how many at once."""

    def prepare(self, optimizer: Optimizer) -> None:
        """Makes an optimizer fit for recording."""

    def pool(self) -> object:
        """What the recordings of one module share."""

    def numbers(self) -> Numbers:
        """Random numbers for one replica."""

    def beside(self, others: int) -> AbstractContextManager[None]:
        """Within it a step is taken as it is where so many others run at the same time."""

    def record(
        self, steps: Sequence[Callable[[], None]], pool: Any, numbers: Sequence[Any]
    ) -> Callable[[], None]:
        """Records steps without taking them; what it returns takes them.

        Args:
            steps: What is recorded.
            pool: What ``pool`` gave.
            numbers: What ``numbers`` gave for those that the steps draw.
        """


class _Replica:
    """One copy, with its optimizer and the samples that its steps read."""

    def __init__(
        self, module: pl.LightningModule, optimizer: Optimizer, numbers: Numbers | None
    ) -> None:
        self.module = module
        self.optimizer = optimizer
        self.numbers = numbers
        self.loss = torch.zeros((), device=next(module.parameters()).device)
        self.samples = Samples()

    def advance(self, step: Step, size: int) -> None:
        """Takes a step with the next samples."""
        batch = self.samples.take(size)
        with nullcontext() if self.numbers is None else self.numbers.drawn():
            self.loss += step(self.module, self.optimizer, batch, 0)


class Replicas:
    """A module and copies of it, as many as there are jobs to be done side by side.

    Args:
        module: The first of them.
        optimizer_of: Creates the optimizer of a replica.
        step: Takes an optimization step and returns its loss.
        recorder: Records steps.
        limit: How many replicas there may be.
        draws: Whether steps draw random numbers, of which each replica then has its own.
    """

    def __init__(
        self,
        module: pl.LightningModule,
        optimizer_of: Callable[[pl.LightningModule], Optimizer],
        step: Step,
        recorder: Recorder,
        limit: int,
        draws: bool = False,
    ) -> None:
        self._optimizer_of = optimizer_of
        self._step = step
        self._recorder = recorder
        self._limit = limit
        self._draws = draws
        self._pool = recorder.pool()
        self._replicas: list[_Replica] = []
        self._recorded: dict[tuple[tuple[int, ...], int], Callable[[], None]] = {}
        self._seen: set[tuple[tuple[int, ...], int]] = set()
        self._add(module)

    def _add(self, module: pl.LightningModule) -> None:
        optimizer = self._optimizer_of(module)
        self._recorder.prepare(optimizer)
        numbers = self._recorder.numbers() if self._draws else None
        self._replicas.append(_Replica(module, optimizer, numbers))

    def waves(self, jobs: Sequence[_Job]) -> Iterator[Sequence[_Job]]:
        """Jobs in as few groups as the limit allows, of sizes as equal as can be."""
        count = -(-len(jobs) // self._limit)
        for number in range(count):
            yield jobs[number * len(jobs) // count : (number + 1) * len(jobs) // count]

    def take(self, count: int) -> list[tuple[pl.LightningModule, Optimizer]]:
        """That many replicas, with their optimizers."""
        while len(self._replicas) < count:
            self._add(copy.deepcopy(self._replicas[0].module))
        return [(replica.module, replica.optimizer) for replica in self._replicas[:count]]

    def seed(self, seeds: Sequence[int]) -> None:
        """Begins the random numbers of that many replicas, where they draw any."""
        for replica, seed in zip(self._replicas, seeds, strict=False):
            if replica.numbers is not None:
                replica.numbers.seed(seed)

    def epoch(self, batches: Sequence[TensorBatches], epoch: int) -> tuple[list[float], list[int]]:
        """Trains each replica on its batches of an epoch: mean losses and numbers of steps.

        Args:
            batches: Of each replica, longest first: those that have batches left are then always
                the first ones, which keeps the kinds of steps few.
            epoch: Which one.
        """
        for replica in self._replicas:
            replica.loss.zero_()
        own = self._replicas[: len(batches)]
        for replica, one in zip(own, batches, strict=True):
            if replica.samples.begin(one, epoch):
                self._recorded.clear()  # they read from where the samples were
                self._pool = self._recorder.pool()  # that of the others is gone with them
        full = batches[0].batch_size
        counts = [len(one) for one in batches]
        for step in range(counts[0]):
            left = {
                number: min(full, replica.samples.count - step * full)
                for number, replica in enumerate(own)
                if step < counts[number]
            }
            for which, size in _together(left, full):
                self._advance(which, size)
        sums = torch.stack([replica.loss for replica in own]).tolist()
        return [total / count for total, count in zip(sums, counts, strict=True)], counts

    def _advance(self, which: tuple[int, ...], size: int) -> None:
        kind = (which, size)
        steps = [partial(self._replicas[n].advance, self._step, size) for n in which]
        if kind in self._recorded:
            self._recorded[kind]()
        elif kind in self._seen:
            numbers = [self._replicas[n].numbers for n in which] if self._draws else []
            self._recorded[kind] = self._recorder.record(steps, self._pool, numbers)
            for number in which:  # the gradients are in memory that belongs to the recording
                self._replicas[number].optimizer.zero_grad(set_to_none=True)
            self._recorded[kind]()
        else:
            self._seen.add(kind)
            for step in steps:
                with self._recorder.beside(len(steps) - 1):
                    step()


def _together(left: dict[int, int], full: int) -> list[tuple[tuple[int, ...], int]]:
    """Who takes a step with whom: those with full batches, or all with equal last ones."""
    sizes = set(left.values())
    if len(sizes) == 1:
        return [(tuple(left), sizes.pop())]
    together = tuple(number for number, size in left.items() if size == full)
    groups = [(together, full)] if together else []
    groups += [((number,), size) for number, size in left.items() if number not in together]
    return groups
