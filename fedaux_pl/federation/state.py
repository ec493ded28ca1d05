"""What a run has learned: all that a checkpoint holds besides the weights of the students."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.algorithms import RememberedTeacher, RememberedTeachers, ServerState
from fedaux_pl.functional.averaging import State
from fedaux_pl.lightning import move_data_to_device
from fedaux_pl.modules.state_dicts import copy_state
from fedaux_pl.processes import Processes
from fedaux_pl.scoring import Collected, Plan, ReleasedHead, pack, unpack

_CHANGED_BY_ROUNDS = ("teachers", "client_optimizers", "client_states", "server_states", "votes")


@dataclass
class RunState:
    """What the preparation has learned, and what a round leaves to the next one.

    A round replaces entries and never modifies one, so that a shallow copy holds what the round
    began with.

    Attributes:
        h0: The weights of h_0 by architecture; empty until they are learned or given.
        releases: What clients have released so far, by step, such as ``gradient/resnet8``. A failed
            round keeps them, because they have been paid for.
        teachers: The remembered teachers, in methods that remember them.
        client_optimizers: The state of each client's optimizer, in methods that keep it.
        client_states: The tensors that each client keeps.
        server_states: What the server step of each architecture keeps.
        votes: What clients have voted so far, for each candidate of an architecture.
        history: The metrics of the finished rounds.
        metrics: The metrics of the current round, or of the last one.
    """

    h0: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    releases: dict[str, Collected] = field(default_factory=dict)
    teachers: RememberedTeachers = field(default_factory=dict)
    client_optimizers: dict[int, dict[str, Any] | None] = field(default_factory=dict)
    client_states: dict[int, State] = field(default_factory=dict)
    server_states: dict[str, ServerState] = field(default_factory=dict)
    votes: Mapping[str, Tensor] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    _round_start: "RoundStart | None" = None

    @property
    def all_heads(self) -> list[ReleasedHead]:
        """What clients have released in all steps."""
        return [head for collected in self.releases.values() for head in collected.heads]

    @contextmanager
    def transaction(self, students: nn.Module) -> Iterator[None]:
        """Run a round: if the block raises, restore the students and what rounds change.

        What the round began with is kept until ``finish_round``, because a checkpoint that a signal
        writes before then must repeat the round.
        """
        start = RoundStart(
            weights=copy_state(students),
            entries={name: copy.copy(getattr(self, name)) for name in _CHANGED_BY_ROUNDS},
        )
        self._round_start = start
        try:
            yield
        except BaseException:
            vars(self).update(start.entries)
            students.load_state_dict(start.weights)
            raise

    def finish_round(self) -> None:
        """Add the metrics of the round to the history."""
        self.history.append(self.metrics)
        self._round_start = None

    def unfinished_weights(self) -> State | None:
        """Return the students' weights at the start of a round that is not finished."""
        return None if self._round_start is None else self._round_start.weights

    def content(
        self, processes: Processes, *, remembers: bool, at_round_start: bool
    ) -> dict[str, Any]:
        """Return the state as tensors and plain values, for a checkpoint.

        Args:
            processes: The processes, each of which remembers some of the teachers.
            remembers: Whether the method remembers teachers.
            at_round_start: Whether to return what the unfinished round began with, because it will
                be repeated.
        """
        entries = {name: getattr(self, name) for name in _CHANGED_BY_ROUNDS}
        if at_round_start and self._round_start is not None:
            entries = dict(self._round_start.entries)
        teachers = {client: dict(vars(t)) for client, t in entries["teachers"].items()}
        releases = {}
        for name, collected in self.releases.items():
            releases[name] = {
                "step": collected.step.name,
                "clients": list(collected.clients),
                "sent": collected.step.scorer.tensors(),
                "heads": pack(collected.heads),
            }
        return {
            **entries,
            "teachers": processes.merge(teachers) if remembers else {},
            "h0": self.h0,
            "releases": releases,
            "history": self.history,
            "metrics": self.metrics,  # not in the history if saved right after validation
        }

    def load(
        self, content: Mapping[str, Any], plan: Plan, processes: Processes, device: torch.device
    ) -> None:
        """Replace the state by what ``content`` has returned.

        Args:
            content: The entries of a checkpoint.
            plan: The steps in which clients release; without one, releases are not read.
            processes: The processes, which divide the remembered teachers between them.
            device: Where tensors are moved to.
        """
        self.h0 = content["h0"]
        self.history = content["history"]
        self.metrics = content["metrics"]
        if plan:
            for name, saved in content["releases"].items():
                step = plan[saved["step"]].with_sent(saved["sent"])
                heads = unpack(saved["heads"], step)
                self.releases[name] = Collected(step, saved["clients"], heads)
        for name in _CHANGED_BY_ROUNDS:
            if name != "teachers" and name in content:  # earlier minor versions may lack some
                setattr(self, name, move_data_to_device(content[name], device))
        # divided between the processes, however many have written the checkpoint
        remembered = processes.local(sorted(content["teachers"].items()))
        self.teachers = {client: RememberedTeacher(**teacher) for client, teacher in remembered}


@dataclass(frozen=True)
class RoundStart:
    """What a round began with."""

    weights: dict[str, Tensor]  # of the students
    entries: Mapping[str, Any]  # of the state, by name
