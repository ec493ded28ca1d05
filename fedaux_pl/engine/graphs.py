"""Optimization steps as CUDA graphs: recorded once, replayed without the host in between."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.optim import Optimizer

from fedaux_pl.engine.optimizers import RESETTABLE
from fedaux_pl.engine.replicas import Step, Trial
from fedaux_pl.models.batch_norm import gradients_added
from fedaux_pl.models.overlap import overlapping
from fedaux_pl.models.tiling import crowded

# Measured on an H200 with ResNet-8 at batch 32: a step of a client takes 0.69 ms alone, 0.52 ms
# beside one other, 0.39 ms beside three, 0.34 ms beside seven, and no less beside fifteen (the last
# with kernels that left no room for each other).
MOST_REPLICAS = 8
# The share of the free memory that replicas may take.
MEMORY_SHARE = 0.5


class DeviceNumbers:
    """Random numbers of the device that go on from where they were left, recorded or not.

    The device's default generator, which dropout and attention draw from, takes over the state of
    another one. Recordings refer to that state, so that each replay draws new numbers.

    Args:
        device: Where they are drawn.
    """

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._default = torch.cuda.default_generators[index]
        self.generator = torch.Generator(device)

    def seed(self, seed: int) -> None:
        """Begins anew, as the default generator would with that seed."""
        self.generator.manual_seed(seed)

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Within it these are the random numbers of the device."""
        before = self._default.graphsafe_get_state()
        self._default.graphsafe_set_state(self.generator)
        try:
            yield
        finally:
            self._default.graphsafe_set_state(before)


class CudaGraphs:
    """Records steps of several replicas into one CUDA graph, each on a stream of its own.

    A replica alone leaves room for the weight gradients beside everything else, see
    ``fedaux_pl.models.overlap``.

    Args:
        device: Where the steps run.
        overlap: Whether that room is used.
    """

    def __init__(self, device: torch.device, overlap: bool = True) -> None:
        self.device = device
        self._overlap = overlap
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._streams = [torch.cuda.Stream(device) for _ in range(MOST_REPLICAS)]  # type: ignore[no-untyped-call]

    def pool(self) -> object:
        """Memory for the recordings of one module.

        They are replayed one after another and keep nothing in between, so that one pool serves
        all of them; when the last one goes, so does the pool.
        """
        return torch.cuda.graph_pool_handle()

    def prepare(self, optimizer: Optimizer) -> None:
        """Has one of ``RESETTABLE`` work in one kernel, with its counters on the device."""
        for group in optimizer.param_groups:
            group["foreach"], group["fused"] = False, True
            if "capturable" in group:
                group["capturable"] = True
        # a fused step looks at infinite gradients itself, without asking the host
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]

    def numbers(self) -> DeviceNumbers:
        """Random numbers for one replica."""
        return DeviceNumbers(self.device)

    def record(
        self,
        steps: Sequence[Callable[[], None]],
        pool: Any,
        numbers: Sequence[DeviceNumbers] = (),
    ) -> Callable[[], None]:
        """Records steps that do not touch each other's tensors; they may run at the same time."""
        graph = torch.cuda.CUDAGraph()
        for one in numbers:
            graph.register_generator_state(one.generator)
        # thread_local: what other threads, such as those of NCCL, do meanwhile is no business of it
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            first = torch.cuda.current_stream(self.device)
            for step, stream in zip(steps, self._streams, strict=False):
                stream.wait_stream(first)
                with torch.cuda.stream(stream), self._recorded_beside(len(steps) - 1):
                    step()
            for stream in self._streams[: len(steps)]:
                first.wait_stream(stream)
        return graph.replay

    @contextmanager
    def beside(self, others: int) -> Iterator[None]:
        """Has kernels leave room for those of others."""
        with gradients_added(), crowded() if others else nullcontext():
            yield

    @contextmanager
    def _recorded_beside(self, others: int) -> Iterator[None]:
        """The same, and the weight gradients of a replica on its own computed aside."""
        aside = self._overlap and not others
        with self.beside(others), overlapping(self._side) if aside else nullcontext():
            yield

    def attempt(
        self,
        module: pl.LightningModule,
        optimizer_of: Callable[[pl.LightningModule], Optimizer],
        batch: tuple[Tensor, ...],
        step: Step,
    ) -> Trial:
        """Tries steps on a copy of the module: a recording that fails halfway cannot be undone."""
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        trial = copy.deepcopy(module)
        optimizer = optimizer_of(trial)
        if not isinstance(optimizer, RESETTABLE):
            return Trial(f"the optimizer {type(optimizer).__name__} cannot be reset in place", 1)
        self.prepare(optimizer)
        with torch.random.fork_rng([self.device]), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode")
            step(trial, optimizer, batch, 0)  # creates the optimizer's state, which may wait
            states = torch.get_rng_state(), torch.cuda.get_rng_state(self.device)
            torch.cuda.synchronize(self.device)
            torch.cuda.set_sync_debug_mode("error")
            try:
                with self._recorded_beside(0):
                    step(trial, optimizer, batch, 0)
            except RuntimeError as error:
                return Trial(str(error).partition("\n")[0], 1)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            if not torch.equal(states[0], torch.get_rng_state()):
                return Trial("it draws random numbers on the CPU", 1)
            draws = not torch.equal(states[1], torch.cuda.get_rng_state(self.device))
        taken = torch.cuda.max_memory_allocated(self.device) - before
        free = torch.cuda.mem_get_info(self.device)[0]
        free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        limit = max(1, min(MOST_REPLICAS, int(MEMORY_SHARE * free / max(taken, 1))))
        return Trial("", limit, draws)
