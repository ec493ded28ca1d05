"""The results of a benchmark as plain values, and as a table."""

import copy
import math
import os
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.benchmark.flops import forward_flops, matmul_peak, training_flops
from fedaux_pl.benchmark.measured_federation import MeasuredFederation, RoundClock
from fedaux_pl.modules import SimCLR

_DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
_UNITS = {"pre-": "views", "whol": "rounds"}  # by the beginning of a stage's name
_COUNTED = 8  # samples on which FLOPs are counted
_STAGES = ("clients", "averaging", "teachers", "distillation", "evaluation")  # of a round

Laps = list[tuple[float, float, float]]
"""The seconds, samples and FLOPs of each repetition of a stage; NaN for what it does not have."""


class Workload:
    """The samples and FLOPs of the stages; a sample counts once for every epoch and model.

    Args:
        federation: The federation after its rounds.
    """

    def __init__(self, federation: MeasuredFederation) -> None:
        self.federation, self.data = federation, federation.data
        tested = self.data.evaluation_examples.inputs
        # texts of D_distill can have other lengths than the private ones
        public = tested if self.data.auxiliary is None else self.data.distill_inputs
        model = next(iter(federation.students.values()))
        self.tested, private = len(tested), _representative(model, tested)
        self._public = _representative(model, public)
        labels = torch.zeros(len(private), dtype=torch.long)
        soft = torch.ones(len(self._public), len(self.data.classes)) / len(self.data.classes)
        students, modules = federation.students.items(), federation.pool.modules
        distillers = federation.server.distillers
        forward = {name: forward_flops(model, private) for name, model in students}
        self._flops = {
            "clients": {name: training_flops(modules[name], (private, labels)) for name in modules},
            "teachers": {name: forward_flops(model, self._public) for name, model in students},
            "distillation": {
                name: training_flops(module, (self._public, soft))
                for name, module in distillers.items()
            },
            "evaluation": forward,
            "validation": forward,
        }

    def pretraining(self, architecture: str) -> tuple[float, float]:
        """Return the views (one of a text, two of an image) and FLOPs of a pre-training epoch."""
        settings = self.federation.pretraining
        batches = self.data.pretrain_batches(settings.batch_size)
        module = settings.create_module(copy.deepcopy(self.federation.students[architecture]))
        samples = sum(len(index) for index in batches.positions(0))
        flops = training_flops(module, (self._public,))
        return samples * (2 if isinstance(module, SimCLR) else 1), flops * samples

    def of_round(self, stage: str, index: int) -> tuple[float, float]:
        """Return the samples and FLOPs of a stage in a round, from 0; NaN for a stage without."""
        federation = self.federation
        samples = dict.fromkeys(federation.clients, 0)
        if stage == "clients":
            for client in federation.select_clients(index + 1):
                epochs, size = federation.local.epochs, self.data.client_sizes[client]
                samples[federation.architectures[client]] += epochs * size
        elif stage == "distillation":
            each = federation.distillation.epochs * len(self.data.distill_inputs)
            samples = dict.fromkeys(samples, each)
        elif stage == "validation":
            samples = dict.fromkeys(samples, self.tested)
        elif stage in self._flops:
            samples = {name: federation.predicted[index][stage, name] for name in samples}
        else:
            return math.nan, math.nan
        flops = self._flops[stage]
        return sum(samples.values()), sum(count * flops[name] for name, count in samples.items())


def _representative(model: nn.Module, inputs: Tensor) -> Tensor:
    """A few inputs with the lengths of all, since the FLOPs of a text grow with its length."""
    lengths: Tensor = model.lengths(inputs)  # type: ignore[operator]
    count = min(_COUNTED, len(inputs))
    quantiles = (2 * torch.arange(count) + 1) * len(inputs) // (2 * count)
    return inputs[lengths.argsort(stable=True)[quantiles.to(inputs.device)]]


def summarize(
    federation: MeasuredFederation, clock: RoundClock, warmup: int, args: Sequence[str]
) -> dict[str, Any]:
    """Collect all measurements, the machine and the settings as plain values.

    Args:
        federation: The federation after its rounds.
        clock: The clock of its rounds.
        warmup: The number of rounds at the beginning that do not count.
        args: The command line.
    """
    device, precision = federation.measured_device, str(federation.trainer.precision)
    is_cuda = device.type == "cuda"
    host_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # before the matrix product
    dtype = _DTYPES.get(precision, torch.float32)
    peak, size = matmul_peak(device, dtype)
    name = (
        torch.cuda.get_device_name(device) if is_cuda else f"{device.type} ({platform.machine()})"
    )
    peaks = federation.device_peaks
    return {
        "machine": {
            "device": name,
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
            stage: {
                **_rates(laps, peak),
                "unit": _UNITS.get(stage[:4], "samples"),
                "device_peak_bytes": peaks.get("preparation" if stage[:4] == "pre-" else stage),
            }
            for stage, laps in _laps(federation, clock, warmup).items()
        },
        "memory": {
            "host_peak_bytes": host_peak if sys.platform == "darwin" else 1024 * host_peak,
            "device_peak_bytes": max(peaks.values()) if is_cuda else None,
            "device_reserved_bytes": federation.device_reserved or None,
        },
        "start": {
            "preparation_seconds": federation.preparation_seconds
            - sum(map(sum, clock.epochs.values())),
            "extra_seconds": _extra_seconds(federation, clock),
            "prepared": {
                kind: {"count": len(seconds), "seconds": sum(seconds)}
                for kind, seconds in federation.start.items()
            },
        },
    }


def _laps(federation: MeasuredFederation, clock: RoundClock, warmup: int) -> dict[str, Laps]:
    work = Workload(federation)
    laps: dict[str, Laps] = {}
    for name, epochs in clock.epochs.items():  # the first epoch is the warm-up
        amounts = work.pretraining(name)
        laps[f"pre-training {name}"] = [(lap, *amounts) for lap in epochs[1:]]
    laps |= {name: [] for name in (*_STAGES, "validation", "logs, checkpoint", "whole round")}
    for index in range(warmup, len(clock.rounds)):
        seconds_of = {name: federation.history[index].get(f"seconds/{name}") for name in _STAGES}
        seconds_of["validation"] = clock.validations[index] or None
        own = [(name, s, *work.of_round(name, index)) for name, s in seconds_of.items() if s]
        rest = clock.rounds[index] - sum(lap[1] for lap in own)
        flops = sum(lap[3] for lap in own if math.isfinite(lap[3]))
        own.append(("logs, checkpoint", rest, math.nan, math.nan))
        own.append(("whole round", clock.rounds[index], 1, flops))
        for name, seconds, samples, operations in own:
            laps[name].append((seconds, samples, operations))
    return {name: stage for name, stage in laps.items() if stage}


def _rates(laps: Laps, peak: float) -> dict[str, Any]:
    def rate(position: int) -> float | None:
        result = median(lap[position] / max(lap[0], 1e-9) for lap in laps)
        return result if math.isfinite(result) else None

    seconds, flops = [lap[0] for lap in laps], rate(2)
    return {
        "seconds": {"median": median(seconds), "min": min(seconds), "max": max(seconds)},
        "per_second": rate(1),
        "tflops": None if flops is None else flops / 1e12,
        "share_of_peak": None if flops is None else flops / peak,
    }


def _extra_seconds(federation: MeasuredFederation, clock: RoundClock) -> dict[str, float]:
    """How much longer first epochs and the first round take than later ones."""
    rounds = [[entry.get(f"seconds/{name}") for entry in federation.history] for name in _STAGES]
    times: Mapping[str, Any] = {
        **{f"pre-training {name}": laps for name, laps in clock.epochs.items()},
        **{name: s for name, s in zip(_STAGES, rounds, strict=True) if None not in s},
        "whole round": clock.rounds,
    }
    return {name: s[0] - median(s[1:]) for name, s in times.items() if len(s) > 1}


def format_table(summary: Mapping[str, Any]) -> str:
    """Format a summary: the machine, a table of the stages, memory and the start."""
    machine, product = summary["machine"], summary["matrix_product"]
    columns = "{:24}{:>28}{:>20}{:>10}{:>9}{:>10}"
    lines = [
        f"{machine['device']}, {machine['cores']} CPU cores, {machine['threads']} threads, "
        f"{machine['precision']}, torch {machine['torch']}",
        f"matrix product {product['size']} x {product['size']}, {product['dtype']}: "
        f"{product['tflops']:.3g} TFLOP/s",
        f"{summary['measured_rounds']} rounds after {summary['warmup_rounds']} of warm-up; "
        "median (min to max)",
        "",
        columns.format("stage", "seconds", "per second", "TFLOP/s", "of peak", "memory"),
    ]
    for name, stage in summary["stages"].items():
        seconds, rate, speed = stage["seconds"], stage["per_second"], stage["tflops"]
        cells = [
            f"{seconds['median']:.4g} ({seconds['min']:.4g} to {seconds['max']:.4g})",
            "" if rate is None else f"{rate:{',.0f' if rate >= 100 else '.3g'}} {stage['unit']}",
            "" if speed is None else f"{speed:.3g}",
            "" if speed is None else f"{stage['share_of_peak']:.1%}",
            _bytes(stage["device_peak_bytes"]),
        ]
        lines.append(columns.format(name, *cells).rstrip())
    memory, start = summary["memory"], summary["start"]
    lines += ["", f"host memory at most {_bytes(memory['host_peak_bytes'])}"]
    if memory["device_peak_bytes"] is not None:
        device, reserved = (_bytes(memory[f"device_{k}_bytes"]) for k in ("peak", "reserved"))
        lines[-1] += f", device memory at most {device} ({reserved} reserved)"
    seconds = start["preparation_seconds"]
    lines.append(f"before the first round, without pre-training: {seconds:.3g} s")
    if extra := [f"{name} {s:.3g} s" for name, s in start["extra_seconds"].items()]:
        lines.append(f"the first epoch or round takes longer by: {', '.join(extra)}")
    for kind, part in start["prepared"].items():
        lines.append(f"  {kind}: {part['count']}, {part['seconds']:.3g} s in all")
    return "\n".join(lines)


def _bytes(count: int | None) -> str:
    if count is None:
        return ""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
