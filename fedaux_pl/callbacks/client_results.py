"""The metrics of each client as a run tells them: a line, a table and the values of a figure."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedaux_pl.names import markdown_safe, terminal_safe

if TYPE_CHECKING:
    import pandas as pd  # which a run without named clients does not import

Measured = Mapping[str, float]
MAX_NAMED = 5  # of more clients, a line has the worst and the best
_JOINT = ["(mean)", "(worst)"]  # of all clients


def last_measured(history: Sequence[Measured]) -> Measured:
    """Return the metrics of the last round with an evaluation; empty if there is none."""
    return next((e for e in reversed(history) if e.keys() & {"accuracy", "val/accuracy"}), {})


def by_client(measured: Measured) -> "pd.DataFrame":
    """Return a row for each client, ``(mean)`` and ``(worst)``, and a column for each metric.

    The names of the clients are safe for a terminal.

    Examples:
        >>> by_client({"val/mean_client/f1": 0.5, "val/client_f1/north": 0.5}).to_dict()
        {'val/f1': {'north': 0.5, '(mean)': 0.5}}
    """
    import pandas as pd

    columns = {}
    for key in filter(_is_mean, measured):
        prefix, _, metric = key.partition("mean_client/")
        head = f"{prefix}client_{metric}/"
        named = {k.removeprefix(head): v for k, v in measured.items() if k.startswith(head)}
        column = {terminal_safe(name): value for name, value in named.items()}
        column["(mean)"] = measured[key]
        worst = f"{prefix}worst_client/{metric}"
        if worst in measured:
            column["(worst)"] = measured[worst]
        columns[prefix + metric] = column
    return pd.DataFrame(columns)


def blend_weights(history: Sequence[Measured]) -> dict[str, dict[int, float]]:
    """Return the weight of the distilled model by architecture and round; empty without a vote.

    Examples:
        >>> blend_weights([{"round": 1, "blend/resnet8": 0.25}])
        {'resnet8': {1: 0.25}}
    """
    weights: dict[str, dict[int, float]] = {}
    for entry in history:
        for key, value in entry.items():
            if key.startswith("blend/"):
                by_round = weights.setdefault(key.removeprefix("blend/"), {})
                by_round[int(entry["round"])] = value
    return weights


def _is_mean(key: str) -> bool:
    return "mean_client/" in key


def describe_clients(measured: Measured) -> str | None:
    """Return the accuracy of the clients in one line, or of many their worst and best one.

    None without clients.
    """
    if not any(map(_is_mean, measured)):
        return None
    table = by_client(measured)
    metric = table.columns[0]
    values = table[metric].dropna()
    clients = values.drop(_JOINT, errors="ignore")
    start = f"{metric.replace('val/', 'validation ')} by client: mean {values['(mean)']:.1%}, "
    if len(clients) <= MAX_NAMED:
        return start + ", ".join(f"{name} {value:.1%}" for name, value in clients.items())
    return (
        f"{start}worst {clients.min():.1%} ({clients.idxmin()}), "
        f"best {clients.max():.1%} ({clients.idxmax()})"
    )


def client_accuracies(tested: Measured) -> tuple[list[str], list[float]]:
    """Return the clients that a test names, and the accuracy of each; empty without names.

    Examples:
        >>> client_accuracies({"accuracy": 0.4, "client_accuracy/north": 0.5})
        (['north'], [0.5])
    """
    head = "client_accuracy/"
    named = {k.removeprefix(head): v for k, v in tested.items() if k.startswith(head)}
    return list(named), list(named.values())


def client_table(measured: Measured) -> list[list[Any]]:
    """Return a header and a row for each client, the mean and the worst; empty without clients."""
    if not any(map(_is_mean, measured)):
        return []
    table = by_client(measured).astype(object)
    rows = table.where(table.notna(), None).reset_index(names="client")
    return [list(rows), *rows.to_numpy().tolist()]


def as_markdown(table: Sequence[Sequence[Any]]) -> str:
    """Return a table with its header as Markdown; numbers with three digits.

    Texts are shown as they are, whatever Markdown is in them, unless they are ``Markup``.
    """
    lines = [
        [f"{v:.3g}" if isinstance(v, float) else markdown_safe(v) for v in row] for row in table
    ]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def client_curves(
    history: Sequence[Measured],
) -> tuple[list[int], list[str], dict[str, NDArray[np.float64]]]:
    """Return the measured rounds, the clients and each metric of shape (clients, rounds)."""
    entries = [entry for entry in history if any(map(_is_mean, entry))]
    if not entries:
        return [], [], {}
    import pandas as pd

    table = pd.concat({int(entry["round"]): by_client(entry) for entry in entries})
    rounds = table.index.unique(0)
    names = table.index.unique(1).drop(_JOINT, errors="ignore")
    curves = {}
    for metric in table:
        curves[metric] = table[metric].unstack(0).reindex(names).to_numpy(float)
    return list(rounds), list(names), curves
