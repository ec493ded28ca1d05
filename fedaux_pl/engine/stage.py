"""One stage of training inside a round, under the precision and the device of the outer Trainer."""

import copy
import math
from collections.abc import Iterable, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.optim import Optimizer

from fedaux_pl.engine.randomness import isolated_rng


class Batches(Iterable[Any], Sized, Protocol):
    """Batches in memory whose order is a function of the epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next pass is."""


@dataclass(frozen=True)
class StageResult:
    """What a stage leaves behind, beside the trained module.

    Attributes:
        loss: The mean loss over the last epoch; NaN if there was none.
        steps: Optimizer steps taken.
        optimizer_state: The state of the optimizer, to be carried into the next stage.
    """

    loss: float
    steps: int
    optimizer_state: dict[str, Any]


class StageRunner:
    """Trains any LightningModule that has a ``training_step`` and ``configure_optimizers``.

    An inner Trainer would print a page for every client, inherit no precision and split each
    client's batches over the processes; this runs the same steps with the outer Trainer's
    precision plugin, and the modules need not know.

    Args:
        trainer: The outer Trainer.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self.trainer = trainer

    def run(
        self,
        module: pl.LightningModule,
        batches: Batches,
        epochs: int,
        seed: int,
        optimizer_state: dict[str, Any] | None = None,
        on_epoch: "EpochHook | None" = None,
    ) -> StageResult:
        """Trains a module.

        Args:
            module: Trained in place, on the device of the outer Trainer.
            batches: The data of an epoch; those of epoch e are the same whenever it runs.
            epochs: Passes over the data.
            seed: Of everything random in the module's steps.
            optimizer_state: Where the optimizer goes on from; None starts afresh.
            on_epoch: Called with the mean loss after every epoch.

        Raises:
            FloatingPointError: If the loss becomes NaN or infinite.
        """
        module.to(self.trainer.strategy.root_device)
        optimizer = module.configure_optimizers()
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"{type(module).__name__}.configure_optimizers must return one optimizer to be "
                f"run as a stage, but returned {type(optimizer).__name__}"
            )
        if optimizer_state is not None:
            # A copy: the optimizer would work on the tensors that it is given.
            optimizer.load_state_dict(copy.deepcopy(optimizer_state))
        module.train()
        loss, steps = math.nan, 0
        with isolated_rng(seed), torch.enable_grad():
            for epoch in range(epochs):
                batches.set_epoch(epoch)
                losses = [
                    self._step(module, optimizer, batch, index)
                    for index, batch in enumerate(batches)
                ]
                steps += len(losses)
                # One transfer from the device for an epoch, not one for each step.
                loss = torch.stack(losses).mean().item() if losses else math.nan
                if losses and not math.isfinite(loss):
                    raise FloatingPointError(
                        f"the loss of {type(module).__name__} became {loss} in epoch {epoch + 1}: "
                        "lower its learning rate or use 32-bit precision"
                    )
                if on_epoch is not None:
                    on_epoch(loss)
        return StageResult(loss, steps, optimizer.state_dict())

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

        plugin.optimizer_step(optimizer, model=outer, closure=closure)
        return loss.detach()


class EpochHook(Protocol):
    """What wants to know how a stage goes."""

    def __call__(self, loss: float) -> None:
        """After an epoch, with its mean loss."""
