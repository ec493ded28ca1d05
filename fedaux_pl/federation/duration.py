"""What a run takes on a CPU, estimated from a few measured steps before it begins."""

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.engine import isolated_rng
from fedaux_pl.federation.federation_module import FederationModule
from fedaux_pl.federation.preparation import Preparation

LONG = 1800.0  # minimum seconds of a run that is announced
_SAMPLES = 32  # of a measured step
_STEPS = 2


def describe_duration(federation: FederationModule, preparation: Preparation) -> str | None:
    """Say what the run takes; None for a short run, and where only some of it is known.

    Copies of the students take steps with random numbers of their own: the run is not changed.
    """
    trainer = federation.trainer
    is_measured = federation.device.type == "cpu" and not federation.data.at_sites
    if not is_measured or trainer.world_size > 1 or trainer.fast_dev_run:  # type: ignore[attr-defined]
        return None
    rounds = 0
    if federation.role.has_rounds:
        rounds = (trainer.max_epochs or -1) - len(federation.history)
    with isolated_rng(0), torch.enable_grad():
        pretraining = _pretraining_seconds(federation, preparation)
        features, each = _round_seconds(federation) if rounds > 0 else (0.0, 0.0)
    seconds = pretraining + features + max(rounds, 0) * each
    if seconds < LONG:
        return None
    named = {"to learn h_0": pretraining, "for features": features, "a round": each}
    parts = [f"{_format(value)} {name}" for name, value in named.items() if value]
    return (
        f"this run takes about {_format(seconds)} on this CPU ({', '.join(parts)}, by a few "
        "measured steps); `fedaux-pl fit --config quickstart` takes a minute"
    )


def _pretraining_seconds(federation: FederationModule, preparation: Preparation) -> float:
    """Estimate the pre-training of all architectures that are not in the cache."""
    epochs = preparation.settings.epochs
    if federation.h0 or not federation.algorithm.pretrained or not epochs:
        return 0.0
    inputs = federation.data.auxiliary_inputs
    batch = inputs[:_SAMPLES]
    total = 0.0
    for name, student in federation.students.items():
        if preparation.has_h0(name, student):
            continue
        module = preparation.settings.create_module(copy.deepcopy(student))
        targets = module.targets(batch)
        if targets is not None:
            total += _seconds(_compute_targets, module, batch) * len(inputs)
        step = partial(_pretrain, targets=targets)
        total += _seconds(step, module, batch) * len(inputs) * epochs
    return total


def _round_seconds(federation: FederationModule) -> tuple[float, float]:
    """Estimate a round: clients train, teachers predict, students are distilled and evaluated.

    Returns the seconds for features of a fixed h, which are computed once, and those of each round.
    """
    data = federation.data
    algorithm = federation.algorithm
    share = federation.participation if algorithm.trains_clients else 0.0
    batch = data.all_inputs[0][:_SAMPLES]
    total = 0.0
    once = 0.0
    for name, student in federation.students.items():
        model: Any = copy.deepcopy(student)
        clients = zip(federation.architectures, data.client_sizes, strict=True)
        sizes = [size for architecture, size in clients if architecture == name]
        inputs = batch
        if federation.reads_features:
            counts = [*sizes, len(data.evaluation_examples)]
            counts += [len(data.distill_inputs)] if algorithm.distills else []
            once += sum(counts) * _seconds(_predict, model, batch)
            inputs = model.features(batch).detach()
            model = model.head
        train = _seconds(_train, model, inputs)
        predict = _seconds(_predict, model, inputs)
        total += share * sum(sizes) * federation.local.epochs * train
        total += len(data.evaluation_examples) * predict
        if algorithm.distills:
            distilled = len(data.distill_inputs)
            total += distilled * federation.distillation.epochs * train
            total += distilled * share * len(sizes) * predict
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
