"""The stage runner for CUDA: steps and predictions are captured in CUDA graphs and replayed."""

import copy
import dataclasses
import logging
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from fedaux_pl.accelerate.bert.fast_encoder import find_packable
from fedaux_pl.accelerate.context import KernelError
from fedaux_pl.accelerate.convolution.weight_gradients import join_weight_gradients
from fedaux_pl.accelerate.recording.captured_predictions import CapturedPredictor
from fedaux_pl.accelerate.recording.cuda_graphs import CudaGraphs
from fedaux_pl.accelerate.recording.replicas import Replicas, network_name
from fedaux_pl.accelerate.versions import fall_back, speed_up
from fedaux_pl.data import TensorBatches
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.engine.inference import (
    predict_features,
    prediction_batch_size,
)
from fedaux_pl.engine.seeds import isolated_rng
from fedaux_pl.engine.stage import DoneHook, EpochHook, Job, StageResult, StageRunner
from fedaux_pl.functional.averaging import State
from fedaux_pl.lightning import pl
from fedaux_pl.models.adapted_network import AdaptedNetwork

_log = logging.getLogger(__name__)


class CudaRunner(StageRunner):
    """Captures the steps of a module and replays them, for several jobs at the same time.

    Samples and their order are those of plain training. A module whose steps cannot be captured
    runs as in ``StageRunner``, and the reason is logged.
    """

    def __init__(self, trainer: pl.Trainer, recorder: CudaGraphs | None = None) -> None:
        super().__init__(trainer)
        self.recorder = CudaGraphs(self.device) if recorder is None else recorder
        self._replicas: dict[pl.LightningModule, Replicas | None] = {}
        self._predictors: dict[nn.Module, CapturedPredictor] = {}

    def adopt(self, module: nn.Module) -> None:
        """Move a module to the device, with the fast versions of its layers, channels last."""
        super().adopt(module)
        if self.device.type == "cuda" and module not in self._replicas:
            speed_up(module)
            module.to(memory_format=torch.channels_last)

    def run_all(
        self,
        module: pl.LightningModule,
        jobs: Sequence[Job],
        on_epoch: EpochHook | None = None,
        on_done: DoneHook | None = None,
    ) -> list[StageResult]:
        """Run several jobs with one module, as many at the same time as the device can hold.

        If a kernel fails, they start again with plain layers. Kernels are new in a first epoch
        only, so no epoch is repeated.
        """
        self.adopt(module)
        start = copy.deepcopy(module.state_dict())
        try:
            return self._run_all(module, jobs, on_epoch, on_done)
        except KernelError as error:
            fall_back(module, error)
        self.forget(module)
        module.load_state_dict(start)
        return self._run_all(module, jobs, on_epoch, on_done)

    def _run_all(
        self,
        module: pl.LightningModule,
        jobs: Sequence[Job],
        on_epoch: EpochHook | None,
        on_done: DoneHook | None,
    ) -> list[StageResult]:
        with torch.enable_grad():
            replicas = self._find_replicas(module, jobs)
            if replicas is None:
                return super().run_all(module, jobs, on_epoch, on_done)
            results: dict[int, StageResult] = {}
            longest_first = sorted(range(len(jobs)), key=lambda n: -len(jobs[n].batches))
            for wave in replicas.waves(longest_first):
                done = self._run_wave(replicas, [jobs[number] for number in wave], on_epoch)
                results.update(zip(wave, done, strict=True))
                if on_done is not None:
                    for result in done:
                        on_done(result)
        return [results[number] for number in range(len(jobs))]

    def forget(self, module: pl.LightningModule) -> None:
        """Free the replicas and captured steps of a module."""
        self._replicas.pop(module, None)

    def predict(self, model: nn.Module, state: State, inputs: Inputs) -> Tensor:
        """Compute the logits of a model with the given weights.

        Passes of our architectures are captured, with inputs of a fixed size. A network of others
        may synchronize, which cannot be captured.
        """
        is_foreign = isinstance(model, AdaptedNetwork)
        if is_foreign or not getattr(model, "fixed_size_inputs", False):
            return super().predict(model, state, inputs)
        if model not in self._predictors:
            self._predictors[model] = CapturedPredictor(model, self.recorder, self.preparing)
        return self._predictors[model].predict(state, inputs)

    def predict_features(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """Compute h(x) of a large data set; before that, kernels are compiled in threads."""
        if getattr(model, "fixed_size_inputs", False):  # otherwise a batch may be all inputs
            first = inputs[: prediction_batch_size(model, inputs)]
            text = f"preparing {network_name(model)}: first prediction ({len(first)} samples)"
            with self.preparing(text), self.recorder.compiling():
                predict_features(model, first)
        return predict_features(model, inputs)

    def finish_backward(self) -> None:
        """Wait for weight gradients that are computed on a side stream."""
        join_weight_gradients()

    def _find_replicas(self, module: pl.LightningModule, jobs: Sequence[Job]) -> Replicas | None:
        """Return the replicas of a module; None if its steps are not captured."""
        if not jobs or not jobs[0].epochs or getattr(module, "is_distributed", False):
            return None
        if not all(isinstance(job.batches, TensorBatches) and len(job.batches) for job in jobs):
            return None
        if module not in self._replicas:
            self._replicas[module] = self._create_replicas(module, jobs[0], len(jobs) - 1)
        return self._replicas[module]

    def _create_replicas(
        self, module: pl.LightningModule, job: Job, others: int
    ) -> Replicas | None:
        batches = cast("TensorBatches", job.batches)
        module.train()
        index = batches.positions(0)[0]
        batch = tuple(tensor[index] for tensor in batches.tensors)
        self.reset_scaler()
        if self.scaler:  # replicas would share its scale
            others = 0
        with self.preparing(f"preparing {network_name(module)}: trial step"):
            probe = self.recorder.probe(module, batch, self.step, others)
        if probe.obstacle:
            _log.info(
                f"{type(module).__name__}: steps run one by one, because they cannot be "
                f"captured ({probe.obstacle})"
            )
            return None
        if self.scaler:
            probe = dataclasses.replace(probe, max_replicas=1)
        encoder = None
        # Under deterministic algorithms texts are not packed: the number of rows, and so the order
        # of sums, depends on which replicas train at the same time.
        is_fixed = (
            torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
        )
        if not is_fixed:
            with self.trainer.strategy.precision_plugin.train_step_context():
                encoder = find_packable(module, batch[0])
        return Replicas(
            module,
            step=self.step,
            recorder=self.recorder,
            probe=probe,
            # cuDNN tries no kernels for smaller batches, so those of the probe are others
            tried=(len(index), 0, others > 0) if len(index) == batches.batch_size else None,
            preparing=self.preparing,
            encoder=encoder,
            scheduled=job.lr is not None,
        )

    def _run_wave(
        self, replicas: Replicas, jobs: Sequence[Job], on_epoch: EpochHook | None
    ) -> list[StageResult]:
        """Run jobs at the same time, each with its own replica."""
        wave = replicas.take(len(jobs))
        for replica, job in zip(wave, jobs, strict=True):
            replica.start(job)
        self.reset_scaler()
        batches = [cast("TensorBatches", job.batches) for job in jobs]
        losses: list[float] = []
        with isolated_rng(jobs[0].seed):  # replicas draw from their own generators
            for epoch in range(jobs[0].epochs):
                losses = replicas.train_epoch(batches, epoch)
                for job, loss in zip(jobs, losses, strict=True):
                    self.check_finite(loss, wave[0].module, epoch, job.name)
                if on_epoch is not None:
                    on_epoch(sum(losses) / len(losses))
        return [
            job.result(replica.module, replica.optimizer, loss, job.epochs * len(job.batches))
            for replica, job, loss in zip(wave, jobs, losses, strict=True)
        ]
