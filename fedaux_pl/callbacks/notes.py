"""The notes of a run: that scores do nothing, that a class has no client, and so on."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.callbacks.run_figures import class_counts
from fedaux_pl.data.input_checks import shorten
from fedaux_pl.scoring import ClassStatistics, ReleasedHead
from fedaux_pl.scoring.class_scorers import pool_statistics
from fedaux_pl.scoring.release import stack_heads

MAX_ROUNDS = 10  # of further rounds with missing classes, a note has the number
MAX_NAMES = 10  # of further missing classes, a note has the number
UNIFORM = 0.99  # the share of effective teachers at which weights vary by 10 %


class RunNotes:
    """Finds the notes of one run. Heads and every round are looked at once: runs can be long."""

    def __init__(self) -> None:
        self._of_data: list[tuple[str, str]] | None = None  # notes that do not depend on rounds
        self._counts: NDArray[np.int64] | None = None  # of classes at clients, None if private
        self._seen = 0  # rounds
        self._incomplete: list[str] = []  # of the rounds with missing classes

    def find(self, federation: Any) -> list[tuple[str, str]]:
        """Return the kind and the text of each note about a federation and its rounds so far."""
        if self._of_data is None:
            self._counts, self._of_data = class_counts(federation), []
            for name in federation.clients:
                own = [h for h in federation.heads if federation.architectures[h.client] == name]
                if own and (text := _describe_release(own, federation)):
                    self._of_data.append((f"noise of {name}", text))
            self._of_data += _describe_clients(federation)
        found = list(self._of_data)
        keys = [f"{data}certainty/effective_teachers" for data in ("", "val/")]
        measured = [(e, e[key]) for e in federation.history for key in keys if key in e]
        if measured:
            present = len(federation.select_clients(1))
            teachers = [_count_teachers(entry, present) for entry, _ in measured]
            if text := describe_effective_teachers([value for _, value in measured], teachers):
                found.append(("effective teachers", text))
        new, self._seen = federation.history[self._seen :], len(federation.history)
        for round_ in (int(entry["round"]) for entry in new):
            if self._counts is None or not (selected := federation.select_clients(round_)):
                continue  # none selected: the teacher is made of the releases of all clients
            counts = self._counts[selected]
            if text := describe_missing_classes(round_, counts, federation.data.classes):
                self._incomplete.append(text)
        incomplete = self._incomplete[:MAX_ROUNDS]
        if further := len(self._incomplete) - len(incomplete):
            incomplete.append(f"{further} further rounds: no client holds some classes")
        return found + [("missing classes", text) for text in incomplete]


def _count_teachers(entry: Mapping[str, float], present: int) -> int:
    """The clients that taught in a round, whose ``present`` ones are in the memory after it."""
    return int(entry.get("memory/clients", present) + entry.get("memory/forgotten", 0))


def describe_effective_teachers(effective: Sequence[float], teachers: Sequence[int]) -> str | None:
    """Say that the scores are nearly uniform, if they are in all rounds.

    ``effective`` is, for each round, the mean over x of 1 / sum_i w_i(x)^2 for weights w_i(x) that
    sum to 1: n if n ``teachers`` have equal weights, 1 if one has all of it.

    Examples:
        >>> describe_effective_teachers([9.99], [10]).split(":")[0]
        'effective teachers 9.99 of 10'
    """
    pairs = zip(effective, teachers, strict=True)
    if max(teachers) < 2 or any(value < UNIFORM * count for value, count in pairs):
        return None
    return (
        f"effective teachers {effective[-1]:.2f} of {teachers[-1]}: the scores are nearly uniform, "
        "this run equals FedDF"
    )


def describe_missing_classes(
    round_: int, counts: NDArray[np.int64], classes: Sequence[str]
) -> str | None:
    """Say which classes nobody holds in a round, by the samples of its n clients, shape (n, C).

    Examples:
        >>> describe_missing_classes(3, np.array([[5, 0, 1], [2, 0, 0]]), ["cat", "dog", "bird"])
        'round 3: no client of the round holds class dog'
    """
    missing = [classes[k] for k in np.flatnonzero(counts.sum(axis=0) == 0).tolist()]
    if not missing:
        return None
    if len(missing) > MAX_NAMES:
        missing[MAX_NAMES:] = [f"{len(missing) - MAX_NAMES} others"]
    listed = " or ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
    return f"round {round_}: no client of the round holds class {listed}"


def _describe_clients(federation: Any) -> list[tuple[str, str]]:
    """Say which clients have no test data, or none of a class, if test data name their clients."""
    test, classes = federation.data.test_examples, federation.data.classes
    if test.clients is None:
        return []
    names = federation.client_labels(test.client_names)
    cells = test.clients * len(classes) + test.targets.cpu()
    counts = torch.bincount(cells, minlength=len(names) * len(classes)).view(len(names), -1)
    missing = [[classes[k] for k in (own == 0).nonzero().flatten()] for own in counts]
    pairs = list(zip(names, missing, strict=True))
    without = [name for name, own in pairs if len(own) == len(classes)]
    lacking = [f"{name} ({shorten(own)})" for name, own in pairs if 0 < len(own) < len(classes)]
    found = []
    if without:
        found.append(f"no test data of {shorten(without)}: not among the metrics by client")
    if lacking and federation.chosen_metrics:
        found.append(
            f"the test data of some clients lack classes: {shorten(lacking)}; their averages over "
            "classes are over those that occur"
        )
    return [(text, text) for text in found]


def _describe_release(heads: Sequence[ReleasedHead], federation: Any) -> str | None:
    """Say that noise hides what the clients of an architecture have released, if it does."""
    scorer = federation.scoring.scorer
    if isinstance(scorer, ClassStatistics):
        pooled = pool_statistics(heads, len(federation.data.classes), scorer.second_moment)
        what = f"the mean rows of {len(pooled.means)} classes that the clients released"
        return describe_noise(pooled.means, pooled.variances.sqrt(), what)
    return describe_noise(*stack_heads(heads), f"the vectors that {len(heads)} clients released")


def describe_noise(vectors: Tensor, sigmas: Tensor, what: str) -> str | None:
    """Say that noise hides how vectors differ: those of clients, or the means of classes.

    A vector is w_i = v_i + noise with sigma_i in each of d coordinates; scores use the differences
    between the vectors. If there were none (equal v_i), then

        T = sum_i |w_i - mean(w)|^2 / sigma_i^2,

    with the mean by 1 / sigma_i^2, would have the mean (n - 1) d and at most the variance 2 n d.
    The note appears unless T exceeds that mean by two standard deviations. Nothing private is
    used. The noise of a single vector is no criterion: v_i lies in the few directions in which
    data vary, so scores can work although the norm sigma sqrt(d) exceeds that of v_i.
    """
    if len(vectors) < 2 or bool((sigmas == 0).any()):
        return None
    count, dimensions = vectors.shape
    weights = 1 / sigmas.square()
    mean = weights @ vectors / weights.sum()
    spread = float((weights @ (vectors - mean).square()).sum())
    if spread > (count - 1) * dimensions + 2 * math.sqrt(2 * dimensions * count):
        return None
    noise = dimensions * float(sigmas.square().mean())
    signal = max(0.0, float(vectors.square().sum(dim=1).mean()) - noise)
    return (
        f"noise exceeds the signal: {what} differ by no more than their noise (of norm "
        f"{math.sqrt(noise):.2g}, around vectors of norm about {math.sqrt(signal):.2g}); raise "
        "epsilon, lower the dimensions of the feature map, or give clients more data"
    )
