"""Runs stages of training inside a round, with the outer Trainer's precision and device."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.engine.inference import predict_features, predict_logits
from fedaux_pl.engine.optimizer_state import restore, set_lr, snapshot
from fedaux_pl.engine.seeds import isolated_rng
from fedaux_pl.functional.averaging import State
from fedaux_pl.lightning import pl
from fedaux_pl.modules.optimizers import OptimizedModule


class Batches(Iterable[Any], Sized, Protocol):
    """Batches in memory whose order is a function of the epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""


@dataclass(frozen=True)
class StageResult:
    """The result of a training."""

    loss: float  # the mean of the last epoch; NaN without epochs
    steps: int
    state: dict[str, Tensor]  # the trained weights; empty if the job gave no initial weights
    optimizer_state: dict[str, Any] | None  # if the job keeps it


@dataclass(frozen=True)
class Job:
    """One training to be run.

    A module that is given weights has ``start_from`` and ``copy_model_state``, as ClientModule.
    """

    batches: Batches  # those of an epoch do not depend on when it runs
    epochs: int
    seed: int  # of all randomness in the steps
    state: Mapping[str, Tensor] | None = None  # the initial weights; None for the module's own
    optimizer_state: dict[str, Any] | None = None  # None for a fresh start
    keep_optimizer: bool = True  # whether the result holds the optimizer's state
    correction: State | None = None  # added to the gradients of a ``corrected`` ClientModule
    name: str = ""  # whose training it is, for messages; empty for the server's
    lr: Callable[[int], float] | None = None  # of a step, from 0; None for that of the optimizer

    def start(self, module: pl.LightningModule, optimizer: Optimizer) -> None:
        """Put the initial weights and optimizer state in place."""
        if self.state is not None:
            module.start_from(self.state)  # type: ignore[operator]
        if self.correction is not None:
            module.set_correction(self.correction)  # type: ignore[operator]
        restore(optimizer, self.optimizer_state)
        module.train()

    def result(
        self, module: pl.LightningModule, optimizer: Optimizer, loss: float, steps: int
    ) -> StageResult:
        """Collect the result after the last step."""
        return StageResult(
            loss,
            steps,
            {} if self.state is None else module.copy_model_state(),  # type: ignore[operator]
            snapshot(optimizer) if self.keep_optimizer else None,
        )


Preparing = Callable[[str], AbstractContextManager[Any]]
EpochHook = Callable[[float], None]
DoneHook = Callable[[StageResult], None]


class StageRunner:
    """Trains LightningModules and predicts with models, under the outer Trainer.

    A module needs a ``training_step`` and ``configure_optimizers``. Its steps run with the outer
    Trainer's precision plugin. A nested Trainer would not inherit that, would log a page for every
    client, and would split each client's batches over the processes.

    ``fedaux_pl.accelerate`` has a faster subclass for CUDA, see ``federation.create_runner``.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self.trainer = trainer
        self.preparing: Preparing = nullcontext  # shows what a subclass prepares, such as a capture

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.trainer.strategy.root_device

    def adopt(self, module: nn.Module) -> None:
        """Move a module to the device, before it is trained or predicts."""
        module.to(self.device)

    def run_all(
        self,
        module: pl.LightningModule,
        jobs: Sequence[Job],
        on_epoch: EpochHook | None = None,
        on_done: DoneHook | None = None,
    ) -> list[StageResult]:
        """Run jobs of the same epochs and batch size; their results do not depend on each other.

        The module is trained in place: afterwards it has the weights of any of the jobs.
        ``on_epoch`` gets the mean loss after every epoch, ``on_done`` each result at once.
        """
        self.adopt(module)
        results = []
        with torch.enable_grad():
            for job in jobs:
                results.append(self._run_job(module, job, on_epoch))
                if on_done is not None:
                    on_done(results[-1])
        return results

    def forget(self, module: pl.LightningModule) -> None:
        """Free the memory of a module that will not be trained again."""

    def predict(self, model: nn.Module, state: State, inputs: Inputs) -> Tensor:
        """Compute the logits of all inputs with the given weights, shape (N, C), float32.

        The model may have these weights afterwards.
        """
        model.load_state_dict(state)
        return predict_logits(model, inputs)

    def predict_features(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """Compute h(x) of a large data set, shape (N, d), float32."""
        return predict_features(model, inputs)

    def _run_job(
        self, module: pl.LightningModule, job: Job, on_epoch: EpochHook | None
    ) -> StageResult:
        optimizer = create_optimizer(module)
        job.start(module, optimizer)
        self.reset_scaler()
        loss = math.nan
        steps = 0
        with isolated_rng(job.seed):
            for epoch in range(job.epochs):
                job.batches.set_epoch(epoch)
                losses = []
                for index, batch in enumerate(job.batches):
                    if job.lr is not None:
                        set_lr(optimizer, job.lr(steps + index))
                    losses.append(self.step(module, optimizer, batch, index))
                steps += len(losses)
                if losses:
                    loss = torch.stack(losses).mean().item()  # one transfer per epoch
                    self.check_finite(loss, module, epoch, job.name)
                if on_epoch is not None:
                    on_epoch(loss)
        return job.result(module, optimizer, loss, steps)

    def step(
        self, module: pl.LightningModule, optimizer: Optimizer, batch: Any, index: int
    ) -> Tensor:
        """Take one optimization step and return its loss, on the device."""
        plugin = self.trainer.strategy.precision_plugin
        outer = self.trainer.lightning_module
        optimizer.zero_grad(set_to_none=True)
        with plugin.train_step_context():
            loss = cast("Tensor", module.training_step(batch, index))

        def closure() -> None:
            plugin.backward(plugin.pre_backward(loss, outer), outer, optimizer)
            self.finish_backward()
            module.on_after_backward()
            if isinstance(module, OptimizedModule):  # before a GradScaler divides by its scale
                scale = 1.0 if self.scaler is None else self.scaler._scale
                module.on_before_optimizer_step(optimizer, scale)

        plugin.optimizer_step(optimizer, model=outer, closure=closure)
        return loss.detach()

    def check_finite(
        self, loss: float, module: pl.LightningModule, epoch: int, owner: str = ""
    ) -> None:
        """Raise a FloatingPointError that names the learning rate if a loss is NaN or infinite."""
        if math.isfinite(loss):
            return
        advice = "lower its learning rate"
        option = getattr(module, "option", "")  # see OptimizedModule
        if option:
            lr = module.optimizer_settings.lr  # type: ignore[union-attr]
            advice = f"lower {option}.lr (--model.{option}.lr), which is {lr:g}"
        if self.trainer.precision != "32-true":
            advice += f", or use 32-true in place of trainer.precision {self.trainer.precision}"
        name = type(module).__name__ + (f" at {owner}" if owner else "")
        raise FloatingPointError(f"the loss of {name} became {loss} in epoch {epoch + 1}: {advice}")

    def finish_backward(self) -> None:
        """Run between the backward pass and the optimizer, in subclasses."""

    def reset_scaler(self) -> None:
        """Reset the GradScaler, whose scale must not depend on the job before."""
        scaler = self.scaler
        if scaler is not None:
            scaler.load_state_dict(type(scaler)(scaler._device).state_dict())

    @property
    def scaler(self) -> Any:
        """The GradScaler of 16-mixed precision; None with any other precision."""
        return getattr(self.trainer.strategy.precision_plugin, "scaler", None)


def create_optimizer(module: pl.LightningModule) -> Optimizer:
    """Return the one optimizer of a module, from ``configure_optimizers``."""
    return cast("Optimizer", module.configure_optimizers())
