"""The teachers of a distillation: which models teach, and what they predict."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from fedaux_pl.algorithms.memory import TeacherMemory
from fedaux_pl.algorithms.updates import Answer, Update
from fedaux_pl.functional import pack_logits, unpack_logits
from fedaux_pl.functional.averaging import State
from fedaux_pl.processes import Processes

_SMALLEST_PROBABILITY = 1e-6  # of which a logarithm is taken


@dataclass(frozen=True)
class Member:
    """A model that teaches. Only one process holds its weights; the others have None."""

    architecture: str
    state: State | None
    client: int | None = None  # None for a model that is no client's
    size: int = 0  # |D_i| of the client


@dataclass(frozen=True)
class Round:
    """The models of a communication round, of which ``Algorithm.members`` chooses the teachers."""

    number: int  # t, counted from 1
    updates: Sequence[Update] = ()  # of the clients that this process has trained
    answers: Sequence[Answer] = ()  # of the clients of all processes, in the order of S_t
    averages: Mapping[str, State] = field(default_factory=dict)  # theta^P after the server step
    buffers: Mapping[str, Collection[str]] = field(default_factory=dict)  # names, by architecture
    seed: int = 0  # for methods that sample
    processes: Processes = field(default_factory=Processes)

    @property
    def clients(self) -> list[int]:
        """The clients that have answered, of all processes."""
        return [answer.client for answer in self.answers]

    def client_members(self) -> list[Member]:
        """Return the model of every client that has answered."""
        states = {update.client: update.state for update in self.updates}
        return [
            Member(answer.architecture, states.get(answer.client), answer.client, answer.size)
            for answer in self.answers
        ]

    @cached_property
    def all_updates(self) -> list[Update]:
        """The updates of all processes, for methods that need them in every process."""
        merged = self.processes.merge({update.client: update for update in self.updates})
        return [merged[client] for client in self.clients]

    def divide(self, members: Sequence[Member]) -> list[Member]:
        """Divide members, whose weights every process holds, among the processes.

        One process keeps the weights of a member and predicts with it; the others get None.
        """
        mine = self.processes.local(range(len(members)))
        return [
            member if index in mine else replace(member, state=None)
            for index, member in enumerate(members)
        ]


@dataclass(frozen=True)
class Teacher:
    """What a teacher predicts for the N samples of one part of the data."""

    logits: Tensor  # f_i(x), shape (N, C)
    certainty: Tensor | None = None  # s_i(x), shape (N,), in methods that score their clients
    client: int | None = None  # None for a teacher that is no client
    architecture: str = ""
    size: int = 0  # |D_i| of the client


@dataclass(frozen=True)
class Teachers:
    """The teachers of a round, one after another; ``for teacher in teachers`` iterates over them.

    Iterating predicts with each model, and keeps the logits of clients for rounds in which they are
    absent.

    First come the members of the round, then the remembered clients that are absent, and last, with
    class statistics, the classifier that the server has made of them. All processes see the same
    teachers in the same order, so that sums over them do not depend on the number of processes.
    Every process must iterate to the end. The logits of one teacher at a time are in memory.

    Attributes:
        members: The models of the round that teach.
        predict: Returns f(x) of an architecture with given weights, shape (N, C).
        shape: (N, C), the shape of a prediction.
        part: The data that are labeled: ``distill`` for D_distill, or ``evaluation``.
        round: The number of the round.
        certainty: s_i(x) of every client, shape (n, N), in methods that score their clients.
        class_probabilities: p(c | x) by what clients have released, shape (N, C), if the method
            makes a classifier of it.
        memory: The remembered teachers; None in methods that remember none.
        architectures: The architecture of every client of the run.
        sizes: |D_i| of every client of the run.
        processes: The processes that share the clients.
    """

    members: Sequence[Member]
    predict: Callable[[str, State], Tensor]
    shape: tuple[int, int]
    part: str = "distill"
    round: int = 1
    certainty: Tensor | None = None
    class_probabilities: Tensor | None = None
    memory: TeacherMemory | None = None
    architectures: Sequence[str] = ()
    sizes: Sequence[int] = ()
    processes: Processes = field(default_factory=Processes)

    def __iter__(self) -> Iterator[Teacher]:
        yield from self._members()
        present = [member.client for member in self.members if member.client is not None]
        absent = [] if self.memory is None else self.memory.absent(self.part, present)
        yield from self._remembered(absent)
        yield from self._class_teacher([*present, *absent])

    def _members(self) -> Iterator[Teacher]:
        """Yield the members' predictions; a memory keeps those of the clients."""

        def compute(index: int) -> list[Tensor]:
            member = self.members[index]
            assert member.state is not None  # noqa: S101 - this process holds the model
            logits = self.predict(member.architecture, member.state)
            if self.memory is not None and member.client is not None:
                self.memory.remember(member.client, self.round, self.part, logits)
            return [logits]

        predictions = self.processes.in_order(
            range(len(self.members)),
            [index for index, member in enumerate(self.members) if member.state is not None],
            compute,
            template=lambda _: [self._zeros()],
        )
        for index, [logits] in predictions:
            member = self.members[index]
            certainty = self._certainty_of(member.client)
            yield Teacher(logits, certainty, member.client, member.architecture, member.size)

    def _remembered(self, absent: Sequence[int]) -> Iterator[Teacher]:
        """Yield the logits of remembered clients that are absent."""
        memory = self.memory
        if memory is None:
            return
        logits_of = self.processes.in_order(
            absent,
            [client for client in absent if client in memory.teachers],
            lambda client: [memory.teachers[client].logits[self.part].to(self.processes.device)],
            template=lambda _: [pack_logits(self._zeros())],
        )
        for client, [packed] in logits_of:
            yield Teacher(
                unpack_logits(packed),
                self._certainty_of(client),
                client,
                self.architectures[client] if self.architectures else "",
                self.sizes[client] if self.sizes else 0,
            )

    def _class_teacher(self, teaching: Sequence[int]) -> Iterator[Teacher]:
        """Yield log p(c | x), weighted by the sum of s_i(x) over all clients not ``teaching``."""
        if self.certainty is None or self.class_probabilities is None:
            return
        does_not_teach = torch.ones(len(self.certainty), device=self.certainty.device)
        does_not_teach[list(teaching)] = 0
        logits = self.class_probabilities.clamp(min=_SMALLEST_PROBABILITY).log()
        yield Teacher(logits, does_not_teach @ self.certainty)

    def _certainty_of(self, client: int | None) -> Tensor | None:
        if self.certainty is None or client is None:
            return None
        return self.certainty[client]

    def _zeros(self) -> Tensor:
        return torch.zeros(self.shape, device=self.processes.device)
