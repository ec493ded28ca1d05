"""The notes of a run: what a user should know about it, in words."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaux_pl.callbacks import notes, run_figures

MAX_ROUNDS = 10
"""So many rounds with missing classes have a note of their own."""

_EFFECTIVE = "certainty/effective_teachers"


class RunNotes:
    """Finds the notes of one run. Heads and every round are looked at once: runs can be long."""

    def __init__(self) -> None:
        self._noise: dict[str, str] | None = None  # by architecture
        self._counts: NDArray[np.int64] | None = None  # of classes at clients, None if private
        self._seen = 0  # rounds
        self._incomplete: list[str] = []  # the first rounds with missing classes
        self._further = 0  # the number of all others

    def find(self, federation: Any) -> list[tuple[str, str]]:
        """The kind and the text of each note about a prepared federation and its rounds so far."""
        if self._noise is None:
            self._noise = _describe_noise(federation)
            self._counts = run_figures.class_counts(federation)
        found = [(f"noise of {name}", text) for name, text in self._noise.items()]
        if (text := _describe_teachers(federation)) is not None:
            found.append(("effective teachers", text))
        self._look_for_missing_classes(federation)
        incomplete = list(self._incomplete)
        if self._further:
            incomplete.append(f"{self._further} further rounds: no client holds some classes")
        return found + [("missing classes", text) for text in incomplete]

    def _look_for_missing_classes(self, federation: Any) -> None:
        new, self._seen = federation.history[self._seen :], len(federation.history)
        if self._counts is None:
            return
        for round_ in (int(entry["round"]) for entry in new):
            if not (selected := federation.select_clients(round_)):
                continue  # the teacher is made of the releases of all clients
            own = self._counts[selected]
            text = notes.describe_missing_classes(round_, own, federation.data.classes)
            if text is not None and len(self._incomplete) < MAX_ROUNDS:
                self._incomplete.append(text)
            else:
                self._further += text is not None


def _describe_noise(federation: Any) -> dict[str, str]:
    found = {}
    for name in federation.clients:
        group = [h for h in federation.heads if federation.architectures[h.client] == name]
        if (text := notes.describe_noise(group)) is not None:
            found[name] = text
    return found


def _describe_teachers(federation: Any) -> str | None:
    keys = (_EFFECTIVE, f"val/{_EFFECTIVE}")
    effective = [entry[key] for entry in federation.history for key in keys if key in entry]
    if not effective:
        return None
    count = len(federation.select_clients(1))  # in every round
    return notes.describe_effective_teachers(effective, [count] * len(effective))
