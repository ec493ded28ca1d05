"""Measures what a process prepares once: trial steps, first steps, captures, Triton's kernels."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fedaux_pl.benchmark.flops import synchronize
from fedaux_pl.engine.stage import Preparing


class StartClock:
    """Measures the preparations of a stage runner, by their kind.

    A first step compiles Triton's kernels and, in a Trainer with ``benchmark``, lets cuDNN try its
    kernels for each shape. Triton reports its own times, of kernels that it compiles and of those
    that it loads from its cache on disk; they are part of the steps'. The rest of a first step,
    less a usual step, is cuDNN's.

    Args:
        device: The device to wait for.

    Attributes:
        seconds: The seconds of each preparation, by its kind, such as "first step".
        kernels: The seconds of each kernel of Triton: "compiled" or "from the disk cache".
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.kernels: defaultdict[str, list[float]] = defaultdict(list)

    def watch(self, preparing: Preparing) -> Preparing:
        """Returns a hook that measures and calls the given one."""

        @contextmanager
        def measured(text: str) -> Iterator[Any]:
            synchronize(self.device)
            started = time.perf_counter()
            with preparing(text) as stage:
                yield stage
            synchronize(self.device)
            self.seconds[_kind(text)].append(time.perf_counter() - started)

        return measured

    def listen(self) -> None:
        """Collects the times of Triton's kernels from now on; without Triton there are none."""
        try:
            from triton import knobs  # Triton 3.4 or later, on Linux
        except ImportError:
            return
        knobs.compilation.listener = self._add_kernel

    def _add_kernel(self, *, times: Any, cache_hit: bool, **_: Any) -> None:
        kind = "from the disk cache" if cache_hit else "compiled"
        self.kernels[kind].append(times.total / 1e6)

    def summarize(self) -> dict[str, dict[str, dict[str, float]]]:
        """The number and the seconds of all preparations, by their kind."""
        return {
            name: {kind: {"count": len(s), "seconds": sum(s)} for kind, s in parts.items()}
            for name, parts in (("preparations", self.seconds), ("kernels", self.kernels))
        }


def _kind(text: str) -> str:
    """The kind of "preparing ResNet8: first step (8 x 32 samples)": "first step"."""
    return text.partition(": ")[2].partition(" (")[0]
