"""The request ``evaluate`` and its answer: a site measures the models on test data of its own."""

from collections.abc import Collection, Mapping
from typing import Any

from fedaux_pl.federation.evaluation_metrics import ACCURACY
from fedaux_pl.functional.averaging import State
from fedaux_pl.sites import wire
from fedaux_pl.sites.wire import Message, join_states

_LARGEST_METRIC = 1e30


def write_request(round_: int, states: Mapping[str, State]) -> Message:
    """Write the request to all sites; ``states`` are the models of all architectures."""
    return Message({"round": round_}, wire.write_tensors(join_states(states)))


def write_answer(count: int, metrics: Mapping[str, float]) -> tuple[dict[str, Any], bytes]:
    """Write the plain values of the answer; ``count`` is the number of test samples."""
    return {"count": count, "metrics": dict(metrics)}, b""


def write_noisy_answer(
    count: int, metrics: Mapping[str, float], epsilon: float | None
) -> tuple[dict[str, Any], bytes]:
    """Write the plain values of an answer with noise, and its epsilon; None in a rehearsal."""
    return {"count": count, "epsilon": epsilon, "metrics": dict(metrics)}, b""


def read_answer(answer: Message, chosen: Collection[str]) -> dict[str, float]:
    """Read the accuracy of a site, and those of the chosen metrics that it has sent."""
    values = answer.fields.get("metrics")
    if not isinstance(values, Mapping):
        values = {}
    metrics = {ACCURACY: float(wire.read_number(values, ACCURACY, 0, 1))}
    for name in chosen:
        if name in values:
            value = wire.read_number(values, name, -_LARGEST_METRIC, _LARGEST_METRIC)
            metrics[name] = float(value)
    return metrics
