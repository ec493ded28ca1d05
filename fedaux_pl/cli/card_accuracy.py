"""The accuracies on a model card: test data first, then validation data, and what chose the round.

A checkpoint knows the accuracy of its round on one part of the data. If a run has validation data,
``fit`` measures the test data after the last round and writes them to summary.json.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedaux_pl.cli.client_option import ClientModel

Figures = Mapping[str, float]

OPTIMISTIC = "this figure is the best of all rounds, and optimistic"


def find_test_figures(checkpoint: Path, federation: Mapping[str, Any], round_: int) -> Figures:
    """Return what ``fit`` measured on test data with these weights; empty if it measured nothing.

    summary.json is used only if it is of the same data, the same seed and the same round.
    """
    path = checkpoint.absolute().parent.parent / "summary.json"
    settings = federation["settings"]
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        if summary["settings"]["seed"] != settings["seed"]:
            return {}
        if summary["settings"]["data"] != json.loads(json.dumps(settings["data"])):
            return {}
        parts = (summary.get("test", {}), summary.get("last_test", {}))
        return next((part for part in parts if part.get("round") == round_), {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # it was moved, or is not of this run


def find_monitor(checkpoint: Path, callbacks: Mapping[str, Any]) -> str:
    """Return the metric by which a checkpoint was chosen among the rounds; empty if by none.

    ``callbacks`` are the states of the callbacks in the checkpoint.
    """
    for state in callbacks.values():
        best = state.get("best_model_path") if isinstance(state, Mapping) else None
        if best and state.get("monitor") and Path(best).name == checkpoint.name:
            return str(state["monitor"])
    return ""


def accuracy_rows(
    federation: Mapping[str, Any],
    last: Figures,
    tested: Figures,
    monitor: str,
    client: ClientModel | None,
) -> list[tuple[str, str]]:
    """Return the rows of a card about accuracy: its split first, then the figure.

    Args:
        federation: The entry ``federation`` of the checkpoint.
        last: The metrics of its round.
        tested: Metrics on test data with the same weights, of ``find_test_figures``.
        monitor: The metric of ``find_monitor``.
        client: Whose model the card is about; None for the server's.
    """
    settings = federation["settings"]
    if client is not None and client.statistics != settings["batchnorm_statistics"]:
        return [("test accuracy", "not measured")]
    name = "accuracy" if client is None else f"client_accuracy/{client.name}"
    whose = client.name if client else federation.get("data_names", settings["data"])["private"]
    on_test = {**last, **tested}
    text = "not measured"
    if name in on_test:
        how = _how(on_test, name, settings, client)
        text = f"{on_test[name]:.2%} on the test data of {whose}{how}"
    if monitor in on_test and not monitor.startswith("val/"):
        text += f"; the round was chosen by {monitor} on these data: {OPTIMISTIC}"
    rows = [("test accuracy", text)]
    if f"val/{name}" in last:
        how = _how(last, f"val/{name}", settings, client)
        text = f"{last[f'val/{name}']:.2%} on the validation data of {whose}{how}"
        if monitor == f"val/{name}":
            text += f"; the round was chosen by it: {OPTIMISTIC}"
        elif monitor.startswith("val/"):
            text += f"; the round was chosen by {monitor} on the same data"
        if settings.get("distillation", {}).get("blend") == "vote":
            text += "; the clients voted on the models by the same data"
        rows.append(("validation accuracy", text))
    return rows


def _how(
    measured: Figures, name: str, settings: Mapping[str, Any], client: ClientModel | None
) -> str:
    """Say how an accuracy of the server's models was measured."""
    if client is not None:
        return ""
    text = ""
    models = list(settings["clients"])
    if len(models) > 1:
        text = ", by the ensemble"
        known = [model for model in models if f"{name}/{model}" in measured]
        each = [f"{model} {measured[f'{name}/{model}']:.2%}" for model in known]
        if each:
            text += f" ({', '.join(each)} alone)"
    return text
