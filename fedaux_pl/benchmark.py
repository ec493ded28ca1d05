"""The measurement of rounds: what ``fit`` does with a clock, and its summary."""

import dataclasses
import os
import platform
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fedaux_pl.callbacks.hooks import FederationCallback
from fedaux_pl.callbacks.run_view import RunView
from fedaux_pl.data import FederatedDataModule, TensorBatches
from fedaux_pl.federation import Federation
from fedaux_pl.lightning import pl

_PRETRAINING_EPOCHS = 3  # the first one is the warm-up
_STAGES = ("clients", "averaging", "teachers", "distillation", "evaluation")  # of a round


class MeasuredFederation(Federation):
    """A simulation that measures its preparation; its rounds log their seconds anyway.

    Attributes:
        once: The seconds of what the process prepares once, by kind: trial steps, first steps,
            captures, and kernels of Triton, which are a part of the steps.
        preparation_seconds: The seconds of Algorithm 1.
    """

    once: defaultdict[str, list[float]]
    preparation_seconds: float

    def setup(self, stage: str) -> None:
        """Set up the federation, and forget earlier measurements."""
        self.once = defaultdict(list)
        self.preparation_seconds = 0.0
        super().setup(stage)

    def start(self) -> None:
        """Create the clients and the server, and watch what the runner prepares."""
        super().start()
        runner = self.run.runner
        self._listen_to_triton(runner.device)
        runner.preparing = self._watch(runner.preparing, runner.device)
        # the quality of h_0 does not matter here
        short = dataclasses.replace(self.h0_source.settings, epochs=_PRETRAINING_EPOCHS)
        self.h0_source = dataclasses.replace(self.h0_source, settings=short)

    def announce_duration(self, has_rounds: bool = True) -> None:
        """Print no estimate: this run measures."""

    def prepare(self) -> None:
        """Run Algorithm 1 with a clock."""
        device = self.run.runner.device
        begin = now(device)
        super().prepare()
        self.preparation_seconds = now(device) - begin

    def _watch(self, preparing: Callable[[str], Any], device: torch.device) -> Callable[[str], Any]:
        @contextmanager
        def measured(text: str) -> Iterator[Any]:
            started = now(device)
            with preparing(text) as stage:
                yield stage
            kind = text.partition(": ")[2].partition(" (")[0]  # X: first step (8 x 32 samples)
            self.once[kind].append(now(device) - started)

        return measured

    def _listen_to_triton(self, device: torch.device) -> None:
        if device.type != "cuda":  # no other device runs kernels of Triton
            return
        try:
            from triton import knobs  # Triton 3.4 or later, on Linux
        except ImportError:
            return

        def add(*, times: Any, cache_hit: bool, **_: Any) -> None:
            kind = "from the disk cache" if cache_hit else "compiled"
            self.once[f"kernels {kind}"].append(times.total / 1e6)

        knobs.compilation.listener = add


class MeasuredData(FederatedDataModule):
    """The data of a federation, whose pre-training uses only the first samples of D_aux."""

    pretraining_steps = 20  # of an epoch, at most

    def pretrain_batches(
        self, batch_size: int = 512, seed: int = 0, targets: Tensor | None = None
    ) -> TensorBatches:
        """Return shuffled batches of the first samples of D_aux; start the clock."""
        self.pretraining_started = time.perf_counter()
        batches = super().pretrain_batches(batch_size, seed, targets)
        count = self.pretraining_steps * batch_size
        batches.subset = torch.arange(min(batches.num_samples, count))
        self.pretraining_samples = sum(len(index) for index in batches.positions(0))
        return batches


class RoundClock(FederationCallback):
    """Measures every round, in seconds, from its first hook to the first hook of the next round.

    It must be the first callback of the Trainer: then the time includes the work of the other
    callbacks, such as writing a checkpoint.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epochs: defaultdict[str, list[float]] = defaultdict(list)  # by architecture
        self.rounds: list[float] = []
        self.validations: list[float] = []  # 0 in a round without validation
        self._epoch_started = 0.0
        self._started = 0.0
        self._validation_started = 0.0

    def on_pretraining_epoch(
        self, trainer: pl.Trainer, federation: RunView, architecture: str, epoch: int, loss: float
    ) -> None:
        """Stop the clock of the epoch and start that of the next one."""
        started = self._epoch_started
        if epoch == 1:
            started = federation.data.pretraining_started  # type: ignore[attr-defined]
        self._epoch_started = now(trainer.strategy.root_device)
        self.epochs[architecture].append(self._epoch_started - started)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Stop the clock of the previous round and start that of this one."""
        self.on_train_end(trainer, pl_module)
        self.validations.append(0.0)
        self._started = now(pl_module.device)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Stop the clock of the last round."""
        if len(self.rounds) < len(self.validations):
            self.rounds.append(now(pl_module.device) - self._started)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Start the clock of the validation."""
        self._validation_started = now(pl_module.device)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Stop the clock of the validation."""
        self.validations[-1] = now(pl_module.device) - self._validation_started


def now(device: torch.device) -> float:
    """Return the time in seconds, after all kernels on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def summarize(
    federation: MeasuredFederation,
    clock: RoundClock,
    warmup: int,
    args: Sequence[str],
) -> dict[str, Any]:
    """Collect measurements, machine and settings as plain values, without ``warmup`` rounds."""
    device = federation.trainer.strategy.root_device
    is_cuda = device.type == "cuda"
    kind = f"{device.type} ({platform.machine()})"
    host_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    epochs = {f"pre-training {name}": seconds for name, seconds in clock.epochs.items()}
    # the seconds of each stage in each round; 0 in a round without it
    rounds: dict[str, list[float]] = {}
    for name in _STAGES:
        rounds[name] = [entry.get(f"seconds/{name}", 0.0) for entry in federation.history]
    rounds["validation"] = clock.validations
    known = [sum(laps) for laps in zip(*rounds.values(), strict=True)]
    rest = [whole - stages for whole, stages in zip(clock.rounds, known, strict=True)]
    rounds |= {"logs, checkpoint": rest, "whole round": clock.rounds}
    stages = {name: _spread(seconds[1:]) for name, seconds in epochs.items()}  # after a warm-up
    for stage in stages.values():
        views = 2 if len(federation.data.input_shape) == 3 else 1  # two of an image by SimCLR
        samples = federation.data.pretraining_samples  # type: ignore[attr-defined]
        stage["views_per_second"] = views * samples / stage["seconds"]["median"]
    for name, laps in rounds.items():
        counted = list(filter(None, laps[warmup:]))
        if counted:
            stages[name] = _spread(counted)
    first = {**epochs, **{name: laps for name, laps in rounds.items() if all(laps)}}
    before = federation.preparation_seconds - sum(map(sum, epochs.values()))
    return {
        "machine": {
            "device": torch.cuda.get_device_name(device) if is_cuda else kind,
            "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
            "threads": federation.threads,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "precision": str(federation.trainer.precision),
        },
        "config": {"command_line": list(args), "settings": federation.settings()},
        "warmup_rounds": warmup,
        "measured_rounds": len(clock.rounds) - warmup,
        "stages": stages,
        "memory": {
            "host_peak_bytes": host_peak if sys.platform == "darwin" else 1024 * host_peak,
            "device_peak_bytes": torch.cuda.max_memory_allocated(device) if is_cuda else None,
            "device_reserved_bytes": torch.cuda.max_memory_reserved(device) if is_cuda else None,
        },
        "start": {
            "preparation_seconds": before,
            "extra_seconds": {n: s[0] - median(s[1:]) for n, s in first.items() if len(s) > 1},
            "prepared": {
                kind: {"count": len(seconds), "seconds": sum(seconds)}
                for kind, seconds in federation.once.items()
            },
        },
    }


def _spread(laps: Sequence[float]) -> dict[str, Any]:
    return {"seconds": {"median": median(laps), "min": min(laps), "max": max(laps)}}


def format_table(summary: Mapping[str, Any]) -> str:
    """Format a summary: the machine, a table of the stages, memory and the start."""
    machine = summary["machine"]
    memory = summary["memory"]
    start = summary["start"]
    width = max(24, 1 + max(map(len, summary["stages"])))
    lines = [
        f"{machine['device']}, {machine['cores']} CPU cores, {machine['threads']} threads, "
        f"{machine['precision']}, torch {machine['torch']}",
        f"{summary['measured_rounds']} rounds after {summary['warmup_rounds']} of warm-up; "
        "median (min to max)",
        "",
        f"{'stage':{width}}{'seconds':>28}",
    ]
    for name, stage in summary["stages"].items():
        laps = stage["seconds"]
        views = stage.get("views_per_second")
        seconds = f"{laps['median']:.4g} ({laps['min']:.4g} to {laps['max']:.4g})"
        rate = "" if views is None else f"    {views:,.0f} views per second"
        lines.append(f"{name:{width}}{seconds:>28}{rate}")
    lines += ["", f"host memory at most {_bytes(memory['host_peak_bytes'])}"]
    if memory["device_peak_bytes"] is not None:
        device = _bytes(memory["device_peak_bytes"])
        reserved = _bytes(memory["device_reserved_bytes"])
        lines[-1] += f", device memory at most {device} ({reserved} reserved)"
    seconds = f"{start['preparation_seconds']:.3g}"
    lines.append(f"before the first round, without pre-training: {seconds} s")
    extra = [f"{name} {seconds:.3g} s" for name, seconds in start["extra_seconds"].items()]
    if extra:
        lines.append(f"the first epoch or round takes longer by: {', '.join(extra)}")
    for kind, prepared in start["prepared"].items():
        lines.append(f"  {kind}: {prepared['count']}, {prepared['seconds']:.3g} s in all")
    return "\n".join(lines)


def _bytes(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
