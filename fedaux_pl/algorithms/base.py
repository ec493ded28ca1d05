"""The interface of a method, and the records that it works on."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import Signature, signature
from numbers import Real
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from fedaux_pl.algorithms.memory import TeacherMemory
from fedaux_pl.algorithms.steps import (
    Aggregate,
    FurtherRelease,
    LocalResult,
    Released,
    ServerState,
)
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional import pack_logits, unpack_logits
from fedaux_pl.functional.averaging import State
from fedaux_pl.processes import Processes
from fedaux_pl.scoring import Scoring
from fedaux_pl.scoring.plan import PublicNumbers, plan


@dataclass(frozen=True)
class Answer:
    """A client's answer in a round, without its weights.

    Attributes:
        client: The client's id.
        architecture: The name of its model.
        size: |D_i|.
        loss: Its mean training loss, for the log.
    """

    client: int
    architecture: str
    size: int
    loss: float


@dataclass(frozen=True)
class Update(Answer):
    """A client's answer in a round, with its weights.

    Attributes:
        state: theta_i, parameters and buffers.
        payload: What the client sends besides its weights; empty in most methods.
    """

    state: dict[str, Tensor]
    payload: State = field(default_factory=dict)

    @property
    def answer(self) -> Answer:
        """The update without its weights."""
        return Answer(self.client, self.architecture, self.size, self.loss)


@dataclass(frozen=True)
class Round:
    """The models of a communication round.

    Attributes:
        number: t, counted from 1.
        updates: The clients' updates: those of this process, or of all processes where the method
            sets ``needs_all_updates``.
        clients: The ids of the clients that answered, of all processes.
        averages: theta^P, the weighted average of each architecture after ``server_step``.
        buffers: For each architecture, the entries of its state dict that are not parameters.
        seed: For methods that sample.
    """

    number: int
    updates: Sequence[Update]
    clients: Sequence[int] = ()
    averages: Mapping[str, State] = field(default_factory=dict)
    buffers: Mapping[str, Collection[str]] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True)
class Ensemble:
    """The models of a round and their predictions on one part of the data.

    Attributes:
        round: The models.
        predict: f(x) on the data, given an architecture and its weights; shape (N, C). The
            positions of M samples as a third argument restrict it to them; shape (M, C).
        shape: (N, C), the shape of a prediction.
        scores: s_i(x) of every client of the federation, shape (n, N); None without scoring.
        labels: p(c | x) of a teacher that is made of releases alone, shape (N, C); None without.
        part: The name of the data, ``distill`` or ``evaluation``.
        memory: The logits of absent clients; empty unless the method stores them there.
        processes: The processes that share the clients.
        min_share: The smallest share of the teachers' weights with which a teacher counts on a
            sample, for methods that weight by sample; see ``Distillation``.
    """

    round: Round
    predict: Callable[..., Tensor]
    shape: tuple[int, int] = (0, 0)
    scores: Tensor | None = None
    labels: Tensor | None = None
    part: str = "distill"
    memory: TeacherMemory = field(default_factory=TeacherMemory)
    processes: Processes = field(default_factory=Processes)
    min_share: float = 0.0

    @property
    def clients(self) -> Sequence[int]:
        """The ids of the clients of the round, of all processes."""
        return self.round.clients or [update.client for update in self.round.updates]

    def zeros(self) -> Tensor:
        """The sum of no predictions."""
        return torch.zeros(self.shape, device=self.processes.device)

    def predictions(
        self, remember: bool = False, choose: Callable[[int], Tensor | None] = lambda _: None
    ) -> Iterator[tuple[int, Tensor]]:
        """The id and the logits f_i(x), shape (N, C), of each client of the round.

        The clients of all processes come in the same order in every process, so that sums over them
        do not depend on the number of processes. Every process must iterate to the end.

        Args:
            remember: Whether each process stores its clients' logits in the memory.
            choose: Returns which samples a client predicts, bool, shape (N,); None for all. Logits
                of the others are 0 and are not stored.
        """
        own = {update.client: update for update in self.round.updates}

        def compute(client: int) -> list[Tensor]:
            update, chosen = own[client], choose(client)
            if chosen is None:
                logits = found = self.predict(update.architecture, update.state)
            else:
                rows = chosen.nonzero().flatten()
                found = self.predict(update.architecture, update.state, rows)
                logits = self.zeros().index_copy(0, rows, found)
            if remember:
                self.memory.remember(client, self.part, found, chosen)
            return [logits]

        items = self.processes.in_order(self.clients, list(own), compute, lambda _: [self.zeros()])
        for client, [logits] in items:
            yield client, logits

    def absent_teachers(self) -> Iterator[tuple[int, int, Tensor]]:
        """The id, the age in rounds and the logits of each absent client, ordered by id.

        Logits are NaN on samples that the client has not predicted. The clients of all processes
        come in the same order in every process, as in ``predictions``.
        """
        own, ages = self.memory.absent(self.part, self.round.clients), self.absent_ages()
        items = self.processes.in_order(
            list(ages),
            list(own),
            compute=lambda client: [own[client].packed(self.part).to(self.processes.device)],
            like=lambda _: [pack_logits(self.zeros())],
        )
        for client, [logits] in items:
            yield client, ages[client], unpack_logits(logits)

    def absent_ages(self) -> dict[int, int]:
        """The age in rounds of the logits of each absent client, ordered by id."""
        own = self.memory.absent(self.part, self.round.clients)
        rounds = self.processes.merge({client: memory.round for client, memory in own.items()})
        return {client: self.round.number - rounds[client] for client in sorted(rounds)}


class Algorithm:
    """A method of federated learning: FedAVG, unless a subclass overrides something.

    In every method the selected clients train from the server's model, and the server averages
    their weights within each architecture. A method may change the clients' loss (``mu``), take
    another step than to the average (``server_step``), score the clients' certainty (``scoring``),
    and aggregate the clients' predictions into soft labels, from which the averages are distilled
    further (``distills``, ``soft_labels``).

    With ``has_payload`` server and clients send more than weights, and clients keep tensors between
    rounds (``server_payload``, ``correction``, ``client_payload``). All tensors that these methods
    and ``server_step`` return are new ones: none that they are given may be modified, because a
    failed round is undone.

    If several processes share the clients, ``soft_labels`` gets the updates of its own process and
    sums over ``ensemble.predictions()``, those of all processes, as FedDF does. A method that needs
    all updates at once sets ``needs_all_updates``; it can still split the work between the
    processes, as FedBE does.

    With ``trains_clients = False`` clients send what they release before the first round, of which
    ``label`` makes a teacher, and nothing afterwards; see ``OneRelease``.

    Every imported subclass can be chosen by its name on the command line.

    Args:
        pretrained: Whether models start from the features h_0 learned on the auxiliary data (the
            paper's +P) instead of random weights. A class attribute of methods that always do.

    Examples:
        >>> Algorithm().needs_auxiliary, Algorithm(pretrained=True).needs_auxiliary
        (False, True)
    """

    distills: ClassVar[bool] = False
    trains_clients: ClassVar[bool] = True
    needs_all_updates: ClassVar[bool] = False
    has_payload: ClassVar[bool] = False
    pretrained: bool = False
    mu: float = 0.0
    scoring: Scoring | None = None
    remember: bool = False
    discount: float = 1.0
    _given: tuple[tuple[Any, ...], dict[str, Any]] = (), {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Show the constructor's signature in help, not that of ``__new__``."""
        super().__init_subclass__(**options)
        parameters = list(signature(cls.__init__).parameters.values())
        cls.__signature__ = Signature(parameters[1:])  # type: ignore[attr-defined]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Keep the arguments of the constructor for ``arguments``."""
        algorithm = super().__new__(cls)
        algorithm._given = args, options
        return algorithm

    def __init__(self, pretrained: bool = False) -> None:
        self.pretrained = pretrained

    def arguments(self) -> dict[str, Any]:
        """The arguments that the method was created with, by name."""
        args, options = self._given
        bound = signature(type(self).__init__).bind(self, *args, **options).arguments
        del bound["self"]
        return bound

    @property
    def name(self) -> str:
        """The name in tables, as the paper writes it: +P if it could do without pre-training."""
        chosen = self.pretrained and not type(self).pretrained
        memory = " with memory" if self.remember else ""
        return type(self).__name__ + ("+P" if chosen else "") + memory

    @property
    def secret_noise(self) -> bool:
        """Whether the noise of a release comes from the operating system, not from the seed."""
        return self.scoring is not None and self.scoring.privacy.secret

    def use_secret_noise(self) -> None:
        """Take the noise of releases from the operating system, whatever was configured."""
        if self.scoring is not None:
            secret = replace(self.scoring.privacy, secret=True)
            self.scoring = replace(self.scoring, privacy=secret)

    @property
    def needs_auxiliary(self) -> bool:
        """Whether the method needs auxiliary data."""
        return self.pretrained or self.distills

    def check_architectures(self, clients: Mapping[str, int]) -> None:
        """Raise a ConfigurationError for numbers of clients that the method cannot use.

        Args:
            clients: How many clients train each architecture.
        """
        privacy, fewest = self.scoring and self.scoring.privacy, min(clients.values())
        if privacy and privacy.sums == "secure" and fewest < privacy.least_clients:
            raise ConfigurationError(
                f"privacy.sums is secure, but {fewest} clients share an architecture: a sum needs "
                f"at least {privacy.least_clients} of them; set privacy.sums to local"
            )

    def check_clients(self, optimizer: Mapping[str, Any], precision: str) -> None:
        """Raise a ConfigurationError for a training of the clients that the method cannot use.

        Args:
            optimizer: ``optimizer``, ``lr``, ``momentum`` and ``weight_decay`` of the clients.
            precision: The Trainer's precision.
        """

    def own_entries(self, model: nn.Module) -> list[str]:
        """Names of the state dict's entries that a client keeps from round to round as its own."""
        return []

    def server_payload(self, state: ServerState) -> State:
        """What the server sends to each client besides its model, from what it keeps."""
        return {}

    def correction(self, received: State, kept: State) -> State:
        """What a client adds to its gradients, by the names of the parameters; empty for nothing.

        Args:
            received: The ``server_payload``.
            kept: What the client has kept since its last round; empty in its first.
        """
        return {}

    def client_payload(self, result: LocalResult) -> tuple[State, State]:
        """What a client sends besides its weights, and what it keeps until its next round.

        Called only for methods with ``has_payload = True``, which must override it. All clients of
        an architecture send tensors of the same names and shapes.
        """
        raise NotImplementedError(
            f"{type(self).__name__} sets has_payload to True: it must override client_payload"
        )

    def server_step(self, aggregate: Aggregate) -> tuple[State, ServerState]:
        """The server's new parameters of one architecture, and what it keeps until the next step.

        Called for each architecture that has a client in the round, before distillation.
        """
        return aggregate.average, {}

    def soft_labels(self, ensemble: Ensemble) -> Tensor:
        """The probabilities from which students are distilled, shape (N, C).

        Called only for methods with ``distills = True``, which must override it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} sets distills to True: it must override soft_labels"
        )

    def plan(self, numbers: PublicNumbers | None) -> Scoring | None:
        """Return what clients release, planned by public numbers; None if they release nothing."""
        return None if self.scoring is None else plan(self.scoring, numbers)

    def next_release(
        self, released: Released, asked: Collection[str]
    ) -> tuple[str, FurtherRelease] | None:
        """Return a further release that clients are asked for, with its name; None for no more.

        Args:
            released: What clients have released so far.
            asked: The names of further releases that they have been asked for.
        """
        return None

    def score(self, released: Released, labels: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return s_i(x) of all clients on each part of the data, shapes (n, N); empty for none.

        Args:
            released: What clients have released.
            labels: What ``label`` has returned.
        """
        return {}

    def label(self, released: Released) -> dict[str, Tensor]:
        """Return the probabilities of the classes on each part of the data, shapes (N, C).

        They are those of a teacher that is made of releases alone; empty for none. Methods with
        ``trains_clients = False`` must override it.
        """
        return {}

    def settings(self) -> dict[str, Any]:
        """The method and its options as plain values, which must not change within a run."""
        plain: dict[str, Any] = {"method": type(self).__name__}
        for name, value in vars(self).items():
            if name == "_given":
                continue
            plain |= value.settings() if isinstance(value, Scoring) else {name: value}
        return plain


def check_positive(**options: float) -> None:
    """Raise a ValueError for an option that is not a positive number.

    Examples:
        >>> check_positive(server_lr=0.1, tau=1e-3)
        >>> check_positive(server_lr=-1)
        Traceback (most recent call last):
        ValueError: server_lr must be a positive number, but is -1
    """
    for name, value in options.items():
        if not (isinstance(value, Real) and 0 < value < math.inf):
            raise ValueError(f"{name} must be a positive number, but is {value!r}")


def check_decay(**options: float) -> None:
    """Raise a ValueError for an option that does not lie in [0, 1)."""
    for name, value in options.items():
        if not (isinstance(value, Real) and 0 <= value < 1):
            raise ValueError(f"{name} must lie in [0, 1), but is {value!r}")
