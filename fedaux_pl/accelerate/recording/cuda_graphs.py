"""The recorder: training steps are captured in CUDA graphs and replayed with one launch.

Tests replace ``CudaGraphs`` by a class with the same methods that runs on the CPU.
"""

import copy
import gc
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.convolution.weight_gradients import weight_gradients_on
from fedaux_pl.engine.optimizer_state import is_resettable, snapshot
from fedaux_pl.engine.stage import create_optimizer
from fedaux_pl.lightning import pl

# On an H200 with ResNet-8 at batch size 32 a client's step takes 0.69 ms alone, 0.52 ms with 2
# replicas, 0.39 ms with 4, 0.34 ms with 8, and no less with 16.
MAX_REPLICAS = 8
MEMORY_FRACTION = 0.5  # of the free memory that replicas may use
MAX_THREADS = 16  # that compile kernels

# takes one optimization step with (module, optimizer, batch, batch index); returns the loss
Step = Callable[[pl.LightningModule, Optimizer, Any, int], Tensor]
Replay = Callable[[], None]


@dataclass(frozen=True)
class ProbeResult:
    """Whether and how the steps of a module can be captured."""

    obstacle: str = ""  # why they cannot be captured; empty if they can
    max_replicas: int = 1  # how many replicas of the module may train at the same time
    uses_rng: bool = False  # whether the steps draw random numbers on the device
    # a state of the module's optimizer, with values that mean nothing
    optimizer_state: dict[str, Any] | None = field(default=None, compare=False, repr=False)


class DeviceRNG:
    """The random number generator of one replica, which can be captured.

    While it is active, the device's default generator uses its state. Captured steps refer to that
    state, so each replay draws new numbers.
    """

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._default = torch.cuda.default_generators[index]
        self.generator = torch.Generator(device)

    def seed(self, seed: int) -> None:
        """Seed the generator; it then draws what the default generator would with that seed."""
        self.generator.manual_seed(seed)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within this context, the device draws its random numbers from this generator."""
        before = self._default.graphsafe_get_state()
        self._default.graphsafe_set_state(self.generator)
        try:
            yield
        finally:
            self._default.graphsafe_set_state(before)


class CudaGraphs:
    """Captures the steps of several replicas in one CUDA graph, each on its own stream."""

    def __init__(self, device: torch.device, overlap: bool = True) -> None:
        self.device = device
        self._overlap = overlap  # a single replica's weight gradients are on a side stream
        self._side_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._streams = [torch.cuda.Stream(device) for _ in range(MAX_REPLICAS)]  # type: ignore[no-untyped-call]

    def memory_pool(self) -> object:
        """Create the memory pool that all graphs of one module share, one replayed at a time."""
        return torch.cuda.graph_pool_handle()

    def prepare_optimizer(self, optimizer: Optimizer) -> None:
        """Make an optimizer capturable: fused, with its counters on the device."""
        for group in optimizer.param_groups:
            group["foreach"] = False
            group["fused"] = True
            if "capturable" in group:
                group["capturable"] = True
        # The GradScaler leaves the check for infinite gradients to the fused step.
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]

    @staticmethod
    @contextmanager
    def compiling() -> Iterator[None]:
        """Within this context, our kernels are compiled in threads and not launched.

        A network has dozens of kernels that take a second each on one core. Meanwhile cuDNN tries
        its own kernels in the thread of the step, so what the step computes means nothing.
        """
        if find_spec("triton") is None:
            yield
            return
        from triton import AsyncCompileMode, JITFunction
        from triton.runtime._async_compile import active_mode

        from fedaux_pl.accelerate import kernels

        functions = [value for value in vars(kernels).values() if isinstance(value, JITFunction)]
        with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as threads:
            mode = AsyncCompileMode(threads)

            def compile_only(function: Any, *args: Any, **options: Any) -> None:
                token = active_mode.set(mode)
                try:
                    type(function).run(function, *args, **(options | {"warmup": True}))
                finally:
                    active_mode.reset(token)

            for function in functions:
                # on the object: the backward pass launches kernels in a thread of autograd's, which
                # does not see the context variable
                function.run = partial(compile_only, function)
            try:
                yield
            finally:
                for function in functions:
                    del function.run
            for kernel in mode.future_kernels.values():
                kernel.result(ignore_errors=True)  # its launch raises them

    def create_rng(self) -> DeviceRNG:
        """Create the generator of one replica."""
        return DeviceRNG(self.device)

    def capture(
        self,
        steps: Sequence[Callable[[], None]],
        pool: Any,
        rngs: Sequence[DeviceRNG] = (),
    ) -> Replay:
        """Capture steps without running them, and return a function that runs them concurrently.

        At most ``MAX_REPLICAS`` steps that share no tensors. A replay reads and writes the same
        tensors, whose values may be new.
        """
        graph = torch.cuda.CUDAGraph()
        for rng in rngs:
            graph.register_generator_state(rng.generator)
        ended_by: Exception | None = None
        try:
            with ExitStack() as stack:
                if gc.isenabled():  # the destruction of an old graph would invalidate the capture
                    gc.disable()
                    stack.callback(gc.enable)
                # thread_local: CUDA calls of other threads, such as NCCL's, do not end the capture
                capture = torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")
                stack.enter_context(capture)
                try:
                    self._take_concurrently(steps)
                except Exception as error:
                    ended_by = error
                    raise
        except RuntimeError as error:  # of the capture's end, which hides that of a step
            raise ended_by or error from None
        return graph.replay

    def _take_concurrently(self, steps: Sequence[Callable[[], None]]) -> None:
        main = torch.cuda.current_stream(self.device)
        for step, stream in zip(steps, self._streams, strict=False):
            stream.wait_stream(main)
            with torch.cuda.stream(stream), self.step_context(len(steps) - 1):
                step()
        for stream in self._streams[: len(steps)]:
            main.wait_stream(stream)

    @contextmanager
    def step_context(self, others: int) -> Iterator[None]:
        """Let a replica take a step at the same time as ``others``; alone, gradients overlap."""
        overlaps = self._overlap and not others
        side_stream = weight_gradients_on(self._side_stream) if overlaps else nullcontext()
        with using(fuses_gradient_sums=True), side_stream:
            yield

    def probe(
        self,
        module: pl.LightningModule,
        batch: tuple[Tensor, ...],
        step: Step,
        others: int = 0,
    ) -> ProbeResult:
        """Find out whether a module's steps can be captured, and for how many replicas.

        It takes two steps with a copy of the module, because a failed capture cannot be undone. A
        step cannot be captured if it synchronizes with the host, draws random numbers on the CPU or
        has an optimizer that is not ``is_resettable``.
        """
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        replica = copy.deepcopy(module)
        optimizer = create_optimizer(replica)
        if not is_resettable(optimizer):
            return ProbeResult(f"the optimizer {type(optimizer).__name__} cannot be reset in place")
        self.prepare_optimizer(optimizer)
        with torch.random.fork_rng([self.device]), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode")
            # creates optimizer state, which may synchronize; the copy's weights mean nothing then
            with self.step_context(others), self.compiling():
                step(replica, optimizer, batch, 0)
            cpu_state = torch.get_rng_state()
            cuda_state = torch.cuda.get_rng_state(self.device)
            torch.cuda.synchronize(self.device)
            torch.cuda.set_sync_debug_mode("error")
            try:
                with self.step_context(others):
                    step(replica, optimizer, batch, 0)
            except RuntimeError as error:
                return ProbeResult(str(error).partition("\n")[0])
            finally:
                torch.cuda.set_sync_debug_mode("default")
            if not torch.equal(cpu_state, torch.get_rng_state()):
                return ProbeResult("it draws random numbers on the CPU")
            uses_rng = not torch.equal(cuda_state, torch.cuda.get_rng_state(self.device))
        used = torch.cuda.max_memory_allocated(self.device) - before
        free = torch.cuda.mem_get_info(self.device)[0]
        free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        fitting = int(MEMORY_FRACTION * free / max(used, 1))
        return ProbeResult(
            max_replicas=max(1, min(MAX_REPLICAS, fitting)),
            uses_rng=uses_rng,
            optimizer_state=snapshot(optimizer),
        )
