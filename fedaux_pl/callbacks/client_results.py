"""The metrics of each client as a run tells them: a line, a table and the values of a figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Measured = Mapping[str, float]
_JOINT = ("(mean)", "(worst)")  # of all clients


def last_measured(history: Sequence[Measured]) -> Measured:
    """Return the metrics of the last round with an evaluation; empty if there is none."""
    return next((e for e in reversed(history) if e.keys() & {"accuracy", "val/accuracy"}), {})


def by_client(measured: Measured) -> dict[str, dict[str, float]]:
    """Return the values of each client, of ``(mean)`` and ``(worst)``, by metric.

    Examples:
        >>> by_client({"val/mean_client/f1": 0.5, "val/client_f1/north": 0.5})
        {'val/f1': {'north': 0.5, '(mean)': 0.5}}
    """
    found: dict[str, dict[str, float]] = {}
    for mean in [key for key in measured if "mean_client/" in key]:
        head = mean.replace("mean_client/", "client_") + "/"
        own = {k.removeprefix(head): v for k, v in measured.items() if k.startswith(head)}
        for part in ("mean", "worst"):
            if (key := mean.replace("mean_", f"{part}_")) in measured:
                own[f"({part})"] = measured[key]
        found[mean.replace("mean_client/", "")] = own
    return found


def describe_clients(measured: Measured) -> str | None:
    """Return the mean, worst and best accuracy of the clients in one line; None without clients."""
    if not (found := by_client(measured)):
        return None
    metric, values = next(iter(found.items()))
    own = sorted((value, name) for name, value in values.items() if name not in _JOINT)
    low, worst, high, best = *own[0], *own[-1]
    return (
        f"{metric.replace('val/', 'validation ')} by client: mean {values['(mean)']:.1%}, "
        f"worst {low:.1%} ({worst}), best {high:.1%} ({best})"
    )


def client_table(measured: Measured) -> list[list[Any]]:
    """Return a header and a row for each client, the mean and the worst; empty without clients."""
    columns = by_client(measured)
    names = dict.fromkeys(name for own in columns.values() for name in own)
    rows = [[name, *(own.get(name) for own in columns.values())] for name in names]
    return [["client", *columns], *rows] if rows else []


def as_markdown(table: Sequence[Sequence[Any]]) -> str:
    """Return a table with its header as Markdown; numbers with three digits."""
    lines = [
        [f"{v:.3g}" if isinstance(v, float) else str(v).replace("|", "\\|") for v in row]
        for row in table
    ]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def client_curves(
    history: Sequence[Measured],
) -> tuple[list[int], list[str], dict[str, NDArray[np.float64]]]:
    """Return the measured rounds, the clients and each metric of shape (clients, rounds)."""
    entries = {int(entry["round"]): by_client(entry) for entry in history}
    entries = {number: found for number, found in entries.items() if found}
    rows = [own for found in entries.values() for own in found.items()]
    names = list(dict.fromkeys(n for _, own in rows for n in own if n not in _JOINT))
    curves = {
        metric: np.array(
            [[found.get(metric, {}).get(n, np.nan) for found in entries.values()] for n in names]
        )
        for metric in dict(rows)
    }
    return list(entries), names, curves
