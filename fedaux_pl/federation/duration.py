"""The duration of a run on a CPU, estimated from a few measured steps before it begins."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.callbacks.progress import print_above_bars
from fedaux_pl.engine import isolated_rng
from fedaux_pl.federation.pretraining import H0Source
from fedaux_pl.federation.run import Run
from fedaux_pl.federation.students import Students

LONG = 1800.0  # minimum seconds of a run that is announced
_SAMPLES = 32  # of a measured step
_STEPS = 2


@dataclass(frozen=True)
class RoundWork:
    """What a round computes, as far as its duration depends on it."""

    participation: float  # the fraction of the clients that train; 0 if a method trains none
    client_epochs: int
    distillation_epochs: int  # 0 if a method does not distill
    reads_features: bool  # whether heads are trained on h(x), which is computed once


def announce_duration(
    source: H0Source, students: Students, work: RoundWork, learns_h0: bool, rounds: int
) -> None:
    """Print how long the run takes, unless it is short; see ``describe_duration``."""
    duration = describe_duration(source, students, work, learns_h0=learns_h0, rounds=rounds)
    if duration is not None:
        print_above_bars(f"note: {duration}")


def describe_duration(
    source: H0Source,
    students: Students,
    work: RoundWork,
    *,
    learns_h0: bool,
    rounds: int,
) -> str | None:
    """Describe how long the run takes; None if it is short or cannot be estimated.

    Copies of the students take steps with random numbers of their own: the run is not changed.

    Args:
        source: Where h_0 comes from.
        students: The students as they are before the run.
        work: What each round computes.
        learns_h0: Whether the run needs an h_0 that no checkpoint has restored.
        rounds: How many rounds are left; unknown if it is negative.
    """
    run = source.run
    trainer = run.runner.trainer
    is_measured = run.runner.device.type == "cpu" and not run.data.at_sites
    if not is_measured or trainer.world_size > 1 or trainer.fast_dev_run:  # type: ignore[attr-defined]
        return None
    with isolated_rng(0), torch.enable_grad():
        pretraining = _estimate_pretraining(source, students) if learns_h0 else 0.0
        features, each = _estimate_round(run, students, work) if rounds > 0 else (0.0, 0.0)
    seconds = pretraining + features + max(rounds, 0) * each
    if seconds < LONG:
        return None
    named = {"to learn h_0": pretraining, "for features": features, "a round": each}
    parts = [f"{_format(value)} {name}" for name, value in named.items() if value]
    return (
        f"this run takes about {_format(seconds)} on this CPU ({', '.join(parts)}, by a few "
        "measured steps); `fedaux-pl fit --config quickstart` takes a minute"
    )


def _estimate_pretraining(source: H0Source, students: Students) -> float:
    """Estimate the seconds of pre-training all architectures that are not in the cache."""
    epochs = source.settings.epochs
    if not epochs:
        return 0.0
    inputs = source.run.data.auxiliary_inputs
    batch = inputs[:_SAMPLES]
    total = 0.0
    for name, student in students.items():
        if source.has_h0(name, student):
            continue
        module = source.settings.create_module(copy.deepcopy(student))
        targets = module.targets(batch)
        if targets is not None:
            total += _seconds(_compute_targets, module, batch) * len(inputs)
        step = partial(_pretrain, targets=targets)
        total += _seconds(step, module, batch) * len(inputs) * epochs
    return total


def _estimate_round(run: Run, students: Students, work: RoundWork) -> tuple[float, float]:
    """Estimate a round: clients train, teachers predict, students are distilled and evaluated.

    Returns the seconds for features of a fixed h, which are computed once, and those of each round.
    """
    data = run.data
    distills = work.distillation_epochs > 0
    batch = data.all_inputs[0][:_SAMPLES]
    total = 0.0
    once = 0.0
    for name, student in students.items():
        model: Any = copy.deepcopy(student)
        clients = zip(run.architectures, data.client_sizes, strict=True)
        sizes = [size for architecture, size in clients if architecture == name]
        inputs = batch
        if work.reads_features:
            counts = [*sizes, len(data.evaluation_examples)]
            counts += [len(data.distill_inputs)] if distills else []
            once += sum(counts) * _seconds(_predict, model, batch)
            inputs = model.features(batch).detach()
            model = model.head
        train = _seconds(_train, model, inputs)
        predict = _seconds(_predict, model, inputs)
        total += work.participation * sum(sizes) * work.client_epochs * train
        total += len(data.evaluation_examples) * predict
        if distills:
            distilled = len(data.distill_inputs)
            total += distilled * work.distillation_epochs * train
            total += distilled * work.participation * len(sizes) * predict
    return once, total


def _pretrain(module: Any, batch: Tensor, targets: Tensor | None) -> None:
    module.training_step((batch, targets), 0).backward()


def _compute_targets(module: Any, batch: Tensor) -> None:
    module.targets(batch)


def _train(model: nn.Module, batch: Tensor) -> None:
    model.train()(batch).square().mean().backward()


@torch.no_grad()
def _predict(model: nn.Module, batch: Tensor) -> None:
    model.eval()(batch)


def _seconds(step: Callable[[Any, Tensor], None], model: nn.Module, batch: Tensor) -> float:
    """Measure the seconds of a step for each sample, after one that warms up."""
    step(model, batch)
    start = time.perf_counter()
    for _ in range(_STEPS):
        step(model, batch)
    return (time.perf_counter() - start) / _STEPS / len(batch)


def _format(seconds: float) -> str:
    """Return a duration with its unit.

    Examples:
        >>> _format(144000), _format(2400), _format(1.26)
        ('40 h', '40 min', '1.3 s')
    """
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
