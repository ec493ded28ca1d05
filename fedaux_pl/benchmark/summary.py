"""The results of a benchmark as plain values."""

import math
import os
import platform
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from fedaux_pl.benchmark.flops import matmul_peak
from fedaux_pl.benchmark.measured_federation import MeasuredFederation
from fedaux_pl.benchmark.round_clock import RoundClock
from fedaux_pl.benchmark.workload import Workload

_DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


@dataclass
class _Stage:
    """The seconds, samples and FLOPs of each repetition of a stage."""

    unit: str
    seconds: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)

    def add(self, seconds: float, samples: float = math.nan, flops: float = math.nan) -> None:
        self.seconds.append(seconds)
        self.samples.append(samples)
        self.flops.append(flops)

    def summarize(self, peak: float, device_peak: int | None) -> dict[str, Any]:
        """The measurements as plain values; peak is the best FLOP/s of the device."""

        def rate(amounts: Sequence[float]) -> float | None:
            result = median(a / max(s, 1e-9) for a, s in zip(amounts, self.seconds, strict=True))
            return result if math.isfinite(result) else None

        speed = rate(self.flops)
        return {
            "seconds": spread(self.seconds),
            "unit": self.unit,
            "per_second": rate(self.samples),
            "tflops": None if speed is None else speed / 1e12,
            "share_of_peak": None if speed is None else speed / peak,
            "device_peak_bytes": device_peak,
        }


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median, the minimum and the maximum."""
    return {"median": median(values), "min": min(values), "max": max(values)}


def summarize(
    federation: MeasuredFederation, clock: RoundClock, warmup: int, args: Sequence[str]
) -> dict[str, Any]:
    """Collects all measurements, the machine and the settings as plain values.

    Args:
        federation: The federation after its rounds.
        clock: The clock of its rounds.
        warmup: The number of rounds at the beginning that do not count.
        args: The command line.
    """
    # the device of the rounds; after a fit the federation itself is on the CPU
    device, precision = federation.stopwatch.device, str(federation.trainer.precision)
    host_peak = _host_peak()  # before matmul_peak allocates its matrices
    dtype = _DTYPES.get(precision, torch.float32)
    peak, size = matmul_peak(device, dtype)
    work = Workload(federation)
    stages = _preparation(federation, work) | _rounds(federation, work, clock, warmup)
    peaks = federation.device_peaks
    of_preparation = {name: peaks["preparation"] for name in stages if name not in _ROUND_STAGES}
    device_peaks = (of_preparation | peaks) if device.type == "cuda" else {}
    summary: dict[str, Any] = {
        "machine": {
            "device": _device_name(device),
            "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
            "threads": federation.threads,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "precision": precision,
        },
        "config": {"command_line": list(args), "settings": federation.settings()},
        "matrix_product": {
            "dtype": str(dtype).removeprefix("torch."),
            "size": size,
            "tflops": peak / 1e12,
        },
        "warmup_rounds": warmup,
        "measured_rounds": len(clock.rounds) - warmup,
        "stages": {
            name: stage.summarize(peak, device_peaks.get(name)) for name, stage in stages.items()
        },
        "memory": {
            "host_peak_bytes": host_peak,
            "device_peak_bytes": max(peaks.values()) if device.type == "cuda" else None,
            "device_reserved_bytes": federation.device_reserved or None,
        },
    }
    if len(clock.rounds) > 1:
        summary["start"] = _start(federation, clock)
    if clock.plain:
        ours, plain = clock.rounds[warmup:], clock.plain[warmup:]
        summary["plain"] = {
            "seconds": spread(plain),
            "ratio_of_minima": min(ours) / min(plain),
            "ratio": spread([a / b for a, b in zip(ours, plain, strict=True)]),
            "same_weights": not clock.differing,
        }
    return summary


def _preparation(federation: MeasuredFederation, work: Workload) -> dict[str, _Stage]:
    stages = {}
    for name, laps in federation.stopwatch.laps.items():
        stage = stages[name] = _Stage("views" if name.startswith("pre-training") else "clients")
        if stage.unit == "views":
            samples, flops = work.pretraining(name.removeprefix("pre-training "))
            for seconds in laps[1:]:  # the first epoch is the warm-up
                stage.add(seconds, samples, flops)
        else:
            stage.add(sum(laps), len(laps))
    return {name: stage for name, stage in stages.items() if stage.seconds}


_ROUND_STAGES = ("clients", "averaging", "teachers", "distillation", "evaluation")


def _rounds(
    federation: MeasuredFederation, work: Workload, clock: RoundClock, warmup: int
) -> dict[str, _Stage]:
    names = (*_ROUND_STAGES, "validation", "logs, checkpoint")
    stages = {name: _Stage("samples") for name in names}
    whole = stages["whole round"] = _Stage("rounds")
    for index in range(warmup, len(clock.rounds)):
        entry = federation.history[index]
        remaining, total_flops = clock.rounds[index], 0.0
        timed = {name: entry.get(f"seconds/{name}") for name in _ROUND_STAGES}
        timed["validation"] = clock.validations[index] or None
        for name, seconds in timed.items():
            if seconds is None:
                continue
            samples, flops = work.of_round(name, index)
            stages[name].add(seconds, samples, flops)
            remaining -= seconds
            total_flops += flops if math.isfinite(flops) else 0.0
        stages["logs, checkpoint"].add(remaining)
        whole.add(clock.rounds[index], 1, total_flops)
    return {name: stage for name, stage in stages.items() if stage.seconds}


def _start(federation: MeasuredFederation, clock: RoundClock) -> dict[str, Any]:
    """How much longer first epochs and the first round take than later ones, and for what."""
    laps = federation.stopwatch.laps.items()
    epochs = {name: times for name, times in laps if name.startswith("pre-training")}
    rounds = {
        name: [entry[f"seconds/{name}"] for entry in federation.history]
        for name in _ROUND_STAGES
        if all(f"seconds/{name}" in entry for entry in federation.history)
    }
    return {
        "preparation_seconds": federation.preparation_seconds,
        "extra_seconds": {
            name: times[0] - median(times[1:])
            for name, times in (epochs | rounds | {"whole round": clock.rounds}).items()
            if len(times) > 1
        },
        **federation.start.summarize(),
    }


def _host_peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()})"
