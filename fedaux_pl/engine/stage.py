"""Stages of training inside a round, under the precision and the device of the outer Trainer."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.optim import Optimizer

from fedaux_pl.data import TensorBatches
from fedaux_pl.engine.graphs import CudaGraphs
from fedaux_pl.engine.optimizers import restore, snapshot
from fedaux_pl.engine.randomness import isolated_rng
from fedaux_pl.engine.replicas import Recorder, Replicas
from fedaux_pl.models.overlap import join

_log = logging.getLogger(__name__)


class Batches(Iterable[Any], Sized, Protocol):
    """Batches in memory whose order is a function of the epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next pass is."""


@dataclass(frozen=True)
class Job:
    """One training that is to be done.

    Attributes:
        batches: The data of an epoch; those of epoch e are the same whenever it runs.
        epochs: Passes over the data.
        seed: Of everything random in the module's steps.
        state: Where the module's model starts; None for where it is. Such a module has
            ``start_from`` and ``trained_state``, as ClientModule and DistillationModule do.
        optimizer_state: Where the optimizer goes on from; None starts afresh.
        keep_optimizer: Whether the optimizer's state is wanted afterwards.
    """

    batches: Batches
    epochs: int
    seed: int
    state: Mapping[str, Tensor] | None = None
    optimizer_state: dict[str, Any] | None = None
    keep_optimizer: bool = True


@dataclass(frozen=True)
class StageResult:
    """What a training leaves behind.

    Attributes:
        loss: The mean loss over the last epoch; NaN if there was none.
        steps: Optimizer steps taken.
        state: The model's weights, where the job said where they start.
        optimizer_state: The state of the optimizer, to be carried into the next stage.
    """

    loss: float
    steps: int
    state: dict[str, Tensor] | None
    optimizer_state: dict[str, Any] | None


EpochHook = Callable[[float], None]


class StageRunner:
    """Trains any LightningModule that has a ``training_step`` and ``configure_optimizers``.

    An inner Trainer would print a page for every client, inherit no precision and split each
    client's batches over the processes; this runs the same steps with the outer Trainer's
    precision plugin, and the modules need not know.

    On CUDA the steps of a module are recorded once and replayed, several jobs side by side (see
    ``Replicas``), with the same samples in the same order. A module whose step cannot be recorded
    runs step by step, and a line in the log says why.

    Args:
        trainer: The outer Trainer.
        recorder: What records steps; by default CUDA graphs where the Trainer runs on CUDA.
    """

    def __init__(self, trainer: pl.Trainer, recorder: Recorder | None = None) -> None:
        self.trainer = trainer
        device = trainer.strategy.root_device
        if recorder is None and device.type == "cuda":
            recorder = CudaGraphs(device)
        self.recorder = recorder
        self._replicas: dict[pl.LightningModule, Replicas | None] = {}

    def run(
        self,
        module: pl.LightningModule,
        batches: Batches,
        epochs: int,
        seed: int,
        optimizer_state: dict[str, Any] | None = None,
        on_epoch: EpochHook | None = None,
        record: bool = True,
    ) -> StageResult:
        """Trains a module in place; see ``Job`` for the arguments.

        Args:
            module: Trained on the device of the outer Trainer.
            batches: The data.
            epochs: Passes over them.
            seed: Of the steps.
            optimizer_state: Where the optimizer goes on from.
            on_epoch: Called with the mean loss after every epoch.
            record: Whether steps may be recorded.

        Raises:
            FloatingPointError: If the loss becomes NaN or infinite.
        """
        job = Job(batches, epochs, seed, optimizer_state=optimizer_state)
        return self.run_all(module, [job], on_epoch, record=record)[0]

    def run_all(
        self,
        module: pl.LightningModule,
        jobs: Sequence[Job],
        on_epoch: EpochHook | None = None,
        on_done: Callable[[StageResult], None] | None = None,
        record: bool = True,
    ) -> list[StageResult]:
        """Does jobs of the same kind, all with the same module; their order changes nothing.

        Args:
            module: What is trained; its weights are those of one of the jobs afterwards.
            jobs: Trainings, all of the same epochs and batch size.
            on_epoch: Called with the mean loss after every epoch.
            on_done: Called with each result as soon as it is there.
            record: Whether steps may be recorded.
        """
        device = self.trainer.strategy.root_device
        module.to(device)
        if device.type == "cuda" and module not in self._replicas:
            module.to(memory_format=torch.channels_last)  # in which convolutions are fast there
        results: dict[int, StageResult] = {}
        with torch.enable_grad():
            replicas = self._recordable(module, jobs) if record else None
            if replicas is None:
                waves: Iterable[Sequence[int]] = [[number] for number in range(len(jobs))]
            else:
                lengths = [len(job.batches) for job in jobs]
                waves = replicas.waves(sorted(range(len(jobs)), key=lambda n: -lengths[n]))
            for wave in waves:
                if replicas is None:
                    done = [self._train(module, jobs[wave[0]], on_epoch)]
                else:
                    done = self._replay(replicas, [jobs[number] for number in wave], on_epoch)
                results.update(zip(wave, done, strict=True))
                if on_done is not None:
                    for result in done:
                        on_done(result)
        return [results[number] for number in range(len(jobs))]

    def forget(self, module: pl.LightningModule) -> None:
        """Frees what was recorded for a module that will not be trained again."""
        self._replicas.pop(module, None)

    # --- step by step --------------------------------------------------------------------------

    def _train(
        self, module: pl.LightningModule, job: Job, on_epoch: EpochHook | None
    ) -> StageResult:
        optimizer = _optimizer_of(module)
        if job.state is not None:
            module.start_from(job.state)  # type: ignore[operator]
        restore(optimizer, job.optimizer_state)
        module.train()
        self._fresh_scaler()
        loss, steps = math.nan, 0
        with isolated_rng(job.seed):
            for epoch in range(job.epochs):
                job.batches.set_epoch(epoch)
                losses = [
                    self._step(module, optimizer, batch, index)
                    for index, batch in enumerate(job.batches)
                ]
                steps += len(losses)
                if losses:
                    # One transfer from the device for an epoch, not one for each step.
                    loss = _checked(torch.stack(losses).mean().item(), module, epoch)
                if on_epoch is not None:
                    on_epoch(loss)
        return _result(module, optimizer, job, loss, steps)

    def _step(
        self, module: pl.LightningModule, optimizer: Optimizer, batch: Any, index: int
    ) -> Tensor:
        strategy = self.trainer.strategy
        optimizer.zero_grad(set_to_none=True)
        with strategy.precision_plugin.train_step_context():
            loss = module.training_step(batch, index)
        if not isinstance(loss, Tensor):
            raise TypeError(f"{type(module).__name__}.training_step must return the loss")
        outer = self.trainer.lightning_module
        plugin = strategy.precision_plugin

        def closure() -> None:
            plugin.backward(plugin.pre_backward(loss, outer), outer, optimizer)
            join()  # where weight gradients are computed aside, the optimizer waits for them
            module.on_after_backward()

        plugin.optimizer_step(optimizer, model=outer, closure=closure)
        return loss.detach()

    def _fresh_scaler(self) -> None:
        """Starts a GradScaler anew: what one client's gradients taught it is not another's."""
        if (scaler := self._scaler) is not None:
            scaler.load_state_dict(type(scaler)(scaler._device).state_dict())

    @property
    def _scaler(self) -> Any:
        """The GradScaler of 16-mixed precision; None under any other."""
        return getattr(self.trainer.strategy.precision_plugin, "scaler", None)

    # --- recorded ------------------------------------------------------------------------------

    def _recordable(self, module: pl.LightningModule, jobs: Sequence[Job]) -> Replicas | None:
        """The replicas of a module; None where its steps are not recorded."""
        if self.recorder is None or not jobs or not jobs[0].epochs:
            return None
        if not all(isinstance(job.batches, TensorBatches) and len(job.batches) for job in jobs):
            return None
        if module not in self._replicas:
            module.train()
            batches = jobs[0].batches
            assert isinstance(batches, TensorBatches)  # noqa: S101 - see above
            index = batches.positions(0)[0]
            batch = tuple(tensor[index] for tensor in batches.tensors)
            self._fresh_scaler()
            trial = self.recorder.attempt(module, _optimizer_of, batch, self._step)
            if trial.obstacle:
                _log.info(
                    f"{type(module).__name__}: steps run one by one, because they cannot be "
                    f"recorded ({trial.obstacle})"
                )
                self._replicas[module] = None
            else:
                limit = 1 if self._scaler else trial.limit  # replicas would share the scaler
                self._replicas[module] = Replicas(
                    module, _optimizer_of, self._step, self.recorder, limit, trial.draws
                )
        return self._replicas[module]

    def _replay(
        self, replicas: Replicas, jobs: Sequence[Job], on_epoch: EpochHook | None
    ) -> list[StageResult]:
        modules = replicas.take(len(jobs))
        for (module, optimizer), job in zip(modules, jobs, strict=True):
            if job.state is not None:
                module.start_from(job.state)  # type: ignore[operator]
            restore(optimizer, job.optimizer_state)
            module.train()
        self._fresh_scaler()
        losses, steps = [math.nan] * len(jobs), [0] * len(jobs)
        replicas.seed([job.seed for job in jobs])
        with isolated_rng(jobs[0].seed):  # what replicas draw is their own
            for epoch in range(jobs[0].epochs):
                batches = [job.batches for job in jobs]
                means, counts = replicas.epoch(batches, epoch)  # type: ignore[arg-type]
                losses = [_checked(mean, modules[0][0], epoch) for mean in means]
                steps = [total + count for total, count in zip(steps, counts, strict=True)]
                if on_epoch is not None:
                    on_epoch(sum(losses) / len(losses))
        return [
            _result(module, optimizer, job, loss, count)
            for (module, optimizer), job, loss, count in zip(
                modules, jobs, losses, steps, strict=True
            )
        ]


def _optimizer_of(module: pl.LightningModule) -> Optimizer:
    optimizer = module.configure_optimizers()
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"{type(module).__name__}.configure_optimizers must return one optimizer to be "
            f"run as a stage, but returned {type(optimizer).__name__}"
        )
    return optimizer


def _checked(loss: float, module: pl.LightningModule, epoch: int) -> float:
    if not math.isfinite(loss):
        raise FloatingPointError(
            f"the loss of {type(module).__name__} became {loss} in epoch {epoch + 1}: "
            "lower its learning rate or use 32-bit precision"
        )
    return loss


def _result(
    module: pl.LightningModule, optimizer: Optimizer, job: Job, loss: float, steps: int
) -> StageResult:
    return StageResult(
        loss,
        steps,
        None if job.state is None else module.trained_state(),  # type: ignore[operator]
        snapshot(optimizer) if job.keep_optimizer else None,
    )
