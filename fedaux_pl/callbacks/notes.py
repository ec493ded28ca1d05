"""The notes of a run: that scores do nothing, that a class has no client, and so on."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.callbacks.run_figures import class_counts
from fedaux_pl.callbacks.run_view import RunView
from fedaux_pl.data.input_checks import shorten
from fedaux_pl.functional.soft_labels import MAX_SHARPNESS
from fedaux_pl.scoring import (
    ClassStatistics,
    ReleasedHead,
    Scoring,
    Sigmoid,
    Standardized,
    first_step,
    pool_statistics,
    stack_heads,
)

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

    def find(self, federation: RunView) -> list[tuple[str, str]]:
        """Return the kind and the text of each note about a federation and its rounds so far."""
        if self._of_data is None:
            self._counts = class_counts(federation)
            self._of_data = [*_describe_releases(federation), *_describe_clients(federation)]
        notes = list(self._of_data)
        text = _describe_scores(federation)
        if text:
            notes.append(("effective teachers", text))
        self._find_missing_classes(federation)
        notes += [("missing classes", text) for text in self._incomplete[:MAX_ROUNDS]]
        further = len(self._incomplete) - MAX_ROUNDS
        if further > 0:
            text = f"{further} further rounds: no client holds some classes"
            notes.append(("missing classes", text))
        return notes

    def _find_missing_classes(self, federation: RunView) -> None:
        """Look for missing classes in the rounds that were not looked at before."""
        new = federation.history[self._seen :]
        self._seen += len(new)
        if self._counts is None:
            return
        for entry in new:
            round_ = int(entry["round"])
            selected = federation.select_clients(round_)
            if not selected:
                continue  # the teacher is made of the releases of all clients
            counts = self._counts[selected]
            text = describe_missing_classes(round_, counts, federation.data.classes)
            if text:
                self._incomplete.append(text)


def _describe_scores(federation: RunView) -> str | None:
    """Say that the scores are nearly uniform, if they are and an option can change it."""
    release = federation.algorithm.release
    remedy = None if release is None else describe_remedy(release.scoring)
    key = "certainty/effective_teachers"
    measured = [e for e in federation.history if key in e or f"val/{key}" in e]
    if not measured or remedy is None:
        return None
    present = len(federation.select_clients(1))
    effective = [entry.get(key, entry.get(f"val/{key}", 0.0)) for entry in measured]
    teachers = []
    for entry in measured:
        in_memory = entry.get("memory/clients", present)  # after the round
        teachers.append(int(in_memory + entry.get("memory/forgotten", 0)))
    return describe_effective_teachers(effective, teachers, remedy)


def describe_remedy(scoring: Scoring) -> str | None:
    """Say which option lets scores differ more; None if there is none.

    Class statistics weigh the teachers by what each client knows about a class. If these weights
    are equal, the clients hold the same classes, and no option should change that.
    """
    if isinstance(scoring.scorer, ClassStatistics):
        return None
    calibration = scoring.calibration
    if isinstance(calibration, Sigmoid):
        return "set --model.algorithm.scoring MeanScoring"
    if isinstance(calibration, Standardized) and calibration.sharpness < MAX_SHARPNESS:
        return (
            f"raise --model.algorithm.scoring.sharpness above {calibration.sharpness:g} (at most "
            f"{MAX_SHARPNESS:g})"
        )
    return None


def describe_effective_teachers(
    effective: Sequence[float], teachers: Sequence[int], remedy: str
) -> str | None:
    """Say that the scores are nearly uniform, if they are in all rounds, and what changes it.

    ``effective`` is, for each round, the mean over x of 1 / sum_i w_i(x)^2 for weights w_i(x) that
    sum to 1: n if n ``teachers`` have equal weights, 1 if one has all of it.

    Examples:
        >>> describe_effective_teachers([9.99], [10], "raise it").split(":")[0]
        'effective teachers 9.99 of 10'
    """
    pairs = zip(effective, teachers, strict=True)
    if max(teachers) < 2 or any(value < UNIFORM * count for value, count in pairs):
        return None
    return (
        f"effective teachers {effective[-1]:.2f} of {teachers[-1]}: the scores are nearly uniform, "
        f"so the clients' models count alike, as in FedDF; to let the scores decide more, {remedy}"
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
    listed = missing.pop()
    if missing:
        listed = f"{', '.join(missing)} or {listed}"
    return f"round {round_}: no client of the round holds class {listed}"


def _describe_clients(federation: RunView) -> list[tuple[str, str]]:
    """Say which clients have no test data, or none of a class, if test data name their clients."""
    test = federation.data.test_examples
    classes = federation.data.classes
    if test.clients is None:
        return []
    names = federation.client_labels(test.client_names)
    is_held = torch.zeros(len(names), len(classes), dtype=torch.bool)
    is_held[test.clients, test.targets.cpu()] = True
    without_data = []
    lacking = []
    for name, held in zip(names, is_held, strict=True):
        missing = [classes[k] for k in (~held).nonzero().flatten()]
        if len(missing) == len(classes):
            without_data.append(name)
        elif missing:
            lacking.append(f"{name} ({shorten(missing)})")
    texts = []
    if without_data:
        texts.append(f"no test data of {shorten(without_data)}: not among the metrics by client")
    if lacking and federation.chosen_metrics:
        texts.append(
            f"the test data of some clients lack classes: {shorten(lacking)}; their averages over "
            "classes are over those that occur"
        )
    return [(text, text) for text in texts]


def _describe_releases(federation: RunView) -> Iterator[tuple[str, str]]:
    """Say for which architectures noise hides what their clients have released."""
    for name in federation.clients:
        heads = [h for h in federation.heads if federation.architectures[h.client] == name]
        text = _describe_release(heads, federation) if heads else None
        if text:
            yield f"noise of {name}", text


def _describe_release(heads: Sequence[ReleasedHead], federation: RunView) -> str | None:
    """Say that noise hides what the clients of an architecture have released, if it does."""
    scorer = first_step(federation.plan).scorer
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
        "epsilon, lower the dimensions of the scoring, or give clients more data"
    )
