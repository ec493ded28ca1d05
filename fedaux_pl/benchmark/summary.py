"""The results of a benchmark as plain values, and as a table."""

import os
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

from fedaux_pl.benchmark.measured_federation import MeasuredFederation, RoundClock

_STAGES = ("clients", "averaging", "teachers", "distillation", "evaluation")  # of a round


def summarize(
    federation: MeasuredFederation, clock: RoundClock, warmup: int, args: Sequence[str]
) -> dict[str, Any]:
    """Collect measurements, machine and settings as plain values, without ``warmup`` rounds."""
    device = federation.trainer.strategy.root_device
    is_cuda = device.type == "cuda"
    kind = f"{device.type} ({platform.machine()})"
    host_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    epochs = {f"pre-training {name}": seconds for name, seconds in clock.epochs.items()}
    rounds = _rounds(federation.history, clock)
    stages = {name: _spread(seconds[1:]) for name, seconds in epochs.items()}  # after a warm-up
    for stage in stages.values():
        views = 2 if len(federation.data.input_shape) == 3 else 1  # two of an image by SimCLR
        samples = federation.data.pretraining_samples  # type: ignore[attr-defined]
        stage["views_per_second"] = views * samples / stage["seconds"]["median"]
    counted = {name: [s for s in laps[warmup:] if s] for name, laps in rounds.items()}
    stages |= {name: _spread(laps) for name, laps in counted.items() if laps}
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
                for kind, seconds in federation.start.items()
            },
        },
    }


def _rounds(history: Sequence[Mapping[str, float]], clock: RoundClock) -> dict[str, list[float]]:
    """Return the seconds of each stage in each round; 0 in a round without it."""
    stages = {name: [entry.get(f"seconds/{name}", 0.0) for entry in history] for name in _STAGES}
    stages["validation"] = clock.validations
    known = [sum(laps) for laps in zip(*stages.values(), strict=True)]
    rest = [whole - part for whole, part in zip(clock.rounds, known, strict=True)]
    return {**stages, "logs, checkpoint": rest, "whole round": clock.rounds}


def _spread(laps: Sequence[float]) -> dict[str, Any]:
    return {"seconds": {"median": median(laps), "min": min(laps), "max": max(laps)}}


def format_table(summary: Mapping[str, Any]) -> str:
    """Format a summary: the machine, a table of the stages, memory and the start."""
    machine, memory, start = summary["machine"], summary["memory"], summary["start"]
    lines = [
        f"{machine['device']}, {machine['cores']} CPU cores, {machine['threads']} threads, "
        f"{machine['precision']}, torch {machine['torch']}",
        f"{summary['measured_rounds']} rounds after {summary['warmup_rounds']} of warm-up; "
        "median (min to max)",
        "",
        f"{'stage':24}{'seconds':>28}",
    ]
    for name, stage in summary["stages"].items():
        laps, views = stage["seconds"], stage.get("views_per_second")
        seconds = f"{laps['median']:.4g} ({laps['min']:.4g} to {laps['max']:.4g})"
        rate = "" if views is None else f"    {views:,.0f} views per second"
        lines.append(f"{name:24}{seconds:>28}{rate}")
    lines += ["", f"host memory at most {_bytes(memory['host_peak_bytes'])}"]
    if memory["device_peak_bytes"] is not None:
        device, reserved = (_bytes(memory[f"device_{k}_bytes"]) for k in ("peak", "reserved"))
        lines[-1] += f", device memory at most {device} ({reserved} reserved)"
    seconds = f"{start['preparation_seconds']:.3g}"
    lines.append(f"before the first round, without pre-training: {seconds} s")
    if extra := [f"{name} {s:.3g} s" for name, s in start["extra_seconds"].items()]:
        lines.append(f"the first epoch or round takes longer by: {', '.join(extra)}")
    for kind, part in start["prepared"].items():
        lines.append(f"  {kind}: {part['count']}, {part['seconds']:.3g} s in all")
    return "\n".join(lines)


def _bytes(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
