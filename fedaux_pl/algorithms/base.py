"""The interface of a method, and the records that it works on."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import Signature, signature
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from fedaux_pl.algorithms.memory import TeacherMemory, absent_clients, remember
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional import (
    LinearClassifier,
    blend_states,
    most_votes,
    pack_logits,
    unpack_logits,
)
from fedaux_pl.functional.averaging import State
from fedaux_pl.processes import Processes
from fedaux_pl.scoring import (
    Collected,
    Plan,
    PublicNumbers,
    ReleasedHead,
    Scoring,
    Step,
    clients_of,
    first_step,
    plan,
)

ServerState = Mapping[str, State]
"""Tensors that a server step keeps of one architecture, by the method's names for them."""
Blend = float | Literal["vote"]
"""How far the server's new models go from the averages (0) to the distilled ones (1)."""
CANDIDATES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The weights that clients vote on."""
VOTE_DISCOUNT = 0.7
"""What votes of the round before count."""


@dataclass(frozen=True)
class Answer:
    """A client's answer in a round, without its weights."""

    client: int
    architecture: str
    size: int  # |D_i|
    loss: float  # the mean training loss, for the log


@dataclass(frozen=True)
class Update(Answer):
    """A client's answer in a round, with its weights."""

    state: dict[str, Tensor]  # theta_i, parameters and buffers
    payload: State = field(default_factory=dict)  # what it sends besides; empty in most methods

    @property
    def answer(self) -> Answer:
        """The update without its weights."""
        return Answer(self.client, self.architecture, self.size, self.loss)


@dataclass(frozen=True)
class Round:
    """The models of a communication round."""

    number: int  # t, counted from 1
    updates: Sequence[Update]  # those of this process's clients; of all with ``needs_all_updates``
    clients: Sequence[int] = ()  # the ids of the clients that answered, of all processes
    averages: Mapping[str, State] = field(default_factory=dict)  # theta^P after ``server_step``
    buffers: Mapping[str, Collection[str]] = field(default_factory=dict)  # by architecture
    seed: int = 0  # for methods that sample
    scores: Mapping[str, Tensor] = field(default_factory=dict)  # s_i(x) on the parts of the data
    labels: Mapping[str, Tensor] = field(default_factory=dict)  # of a teacher made of releases


@dataclass(frozen=True)
class Ensemble:
    """The models of a round and their predictions on one part of the data.

    ``predict`` returns f(x) of an architecture with given weights, shape (N, C).
    """

    round: Round  # the models
    predict: Callable[[str, State], Tensor]
    shape: tuple[int, int] = (0, 0)  # (N, C), the shape of a prediction
    scores: Tensor | None = None  # s_i(x) of every client, shape (n, N)
    labels: Tensor | None = None  # p(c | x), shape (N, C), of a teacher made of releases
    part: str = "distill"  # the name of the data, ``distill`` or ``evaluation``
    memory: TeacherMemory = field(default_factory=dict)  # absent clients teach from it
    processes: Processes = field(default_factory=Processes)  # the processes that share the clients

    @property
    def clients(self) -> Sequence[int]:
        """The ids of the clients of the round, of all processes."""
        return self.round.clients or [update.client for update in self.round.updates]

    def zeros(self) -> Tensor:
        """The sum of no predictions."""
        return torch.zeros(self.shape, device=self.processes.device)

    def predictions(self, remembers: bool = False) -> Iterator[tuple[int, Tensor]]:
        """The id and the logits f_i(x), shape (N, C), of each client of the round.

        The clients of all processes come in the same order in every process, so that sums over them
        do not depend on the number of processes. Every process must iterate to the end. If it
        ``remembers``, the logits are kept for rounds in which the client is absent.
        """
        updates = {update.client: update for update in self.round.updates}

        def compute(client: int) -> list[Tensor]:
            update = updates[client]
            logits = self.predict(update.architecture, update.state)
            if remembers:
                remember(self.memory, client, self.round.number, self.part, logits)
            return [logits]

        items = self.processes.in_order(
            self.clients, list(updates), compute, lambda _: [self.zeros()]
        )
        for client, [logits] in items:
            yield client, logits

    def teachers(self, remembers: bool) -> Iterator[tuple[int, Tensor]]:
        """The ``predictions``, and then those of the remembered clients, which are absent."""
        yield from self.predictions(remembers)
        absent = self.absent_clients
        items = self.processes.in_order(
            absent,
            [client for client in absent if client in self.memory],
            compute=lambda i: [self.memory[i].logits[self.part].to(self.processes.device)],
            like=lambda _: [pack_logits(self.zeros())],
        )
        for client, [logits] in items:
            yield client, unpack_logits(logits)

    @cached_property
    def absent_clients(self) -> list[int]:
        """The ids of the remembered clients that are absent, of all processes, in order."""
        return absent_clients(self.memory, self.part, self.clients, self.processes)


@dataclass(frozen=True)
class LocalResult:
    """A client's training in a round."""

    start: State  # theta^P, the trained parameters that the server has sent
    end: State  # theta_i, the same parameters after the training
    steps: int  # K, the number of optimizer steps, with the learning rate ``lr``
    lr: float
    received: State = field(default_factory=dict)  # what the server has sent besides its model
    kept: State = field(default_factory=dict)  # since its last round; empty in its first


@dataclass(frozen=True)
class Aggregate:
    """The averages of a round, of the clients of one architecture.

    ``theta`` and ``average`` hold the trained parameters only: buffers take the average, and an h
    that is not trained stays as it is.

    Examples:
        >>> weights = {"weight": torch.ones(2)}
        >>> Aggregate(theta=weights, average=weights).kept("momentum")
        {'weight': tensor([0., 0.])}
    """

    theta: State  # theta^P, the server's model before the round
    average: State  # the average of the clients' models, by |D_i|
    payload: State = field(default_factory=dict)  # what clients send besides, by |D_i|
    fraction: float = 1.0  # sum_i |D_i| over the round's clients / sum_i |D_i| over all clients
    state: ServerState = field(default_factory=dict)  # of the last ``server_step``

    def kept(self, name: str, initial: float = 0.0) -> State:
        """Tensors of the state with the names of the parameters, at first all ``initial``."""
        if name in self.state:
            return self.state[name]
        return {key: torch.full_like(tensor, initial) for key, tensor in self.theta.items()}


@dataclass(frozen=True)
class Distilled:
    """The models before and after a round's distillation, by architecture.

    ``ask`` lets all clients that can be reached vote on the models between them: given weights, it
    returns the sum of the votes for each, by architecture (``functional.blending``).
    """

    averages: Mapping[str, State]
    students: Mapping[str, State]
    blend: Blend  # the option
    ask: Callable[[Sequence[float]], Mapping[str, Tensor]]
    votes: Mapping[str, Tensor] = field(default_factory=dict)  # kept since the round before


@dataclass(frozen=True)
class Blended:
    """The server's new models, by architecture."""

    students: Mapping[str, State]
    metrics: Mapping[str, float] = field(default_factory=dict)  # to log
    votes: Mapping[str, Tensor] = field(default_factory=dict)  # to keep for the next round


@dataclass(frozen=True)
class Released:
    """What the server has when all clients have sent their releases, and public data to label.

    ``parts`` holds h_0(x), shape (N, d), of D_distill (``distill``) and of the evaluated data
    (``evaluation``), by part and architecture.
    """

    plan: Plan  # the steps of ``Algorithm.plan``
    collected: Mapping[str, Collected]  # what clients have released so far, by step
    architectures: Sequence[str]  # the architecture of each client, in whose features its vector is
    sizes: Sequence[int]  # |D_i| of each client, which is public
    num_negatives: int  # |D^-|
    num_classes: int  # C
    parts: Mapping[str, Mapping[str, Tensor]]

    @property
    def first(self) -> Step:
        """The first step."""
        return first_step(self.plan)

    @property
    def heads(self) -> Sequence[ReleasedHead]:
        """The vectors of the first step, ordered by client."""
        return self.collected[self.first.name].heads

    @property
    def reference(self) -> Mapping[str, Tensor]:
        """h_0(x) of D_distill: other data must not influence a teacher."""
        return self.parts["distill"]

    def group(self, architecture: str) -> list[ReleasedHead]:
        """The heads of the clients of an architecture."""
        return [head for head in self.heads if self.architectures[head.client] == architecture]

    def ask(
        self, step: Step, send: Callable[["Released", str], Mapping[str, Tensor]]
    ) -> dict[str, Collected]:
        """Return whom the server asks for a step: all clients, later those of the first step.

        If it sends something, ``send`` makes it for the clients of one architecture, which are then
        asked apart, under names such as ``gradient/resnet8``.
        """
        if not step.sends:
            clients = list(range(len(self.architectures)))
            if step.name != self.first.name:
                clients = clients_of(self.heads)
            collected = self.collected.get(step.name, Collected(step, clients))
            return {step.name: replace(collected, clients=clients)}
        asked = {}
        for architecture in self.reference:
            clients = clients_of(self.group(architecture))
            if not clients:  # sites that have never been there
                continue
            name = f"{step.name}/{architecture}"
            if name in self.collected:
                asked[name] = replace(self.collected[name], clients=clients)
            else:
                asked[name] = Collected(step.with_sent(send(self, architecture)), clients)
        return asked


_FORMER_HOOKS = {
    "sends_weights": "every method averages the weights of its clients now, so leave it out",
    "has_payload": "override client_payload, server_payload or correction, and leave it out",
    "teacher_weights": "override FedDF.teachers, which yields logits with their weights",
    "add_further_teachers": "override FedDF.teachers, which yields logits with their weights",
}
"""What classes of a user may still define, and nothing calls."""


class Algorithm:
    """A method of federated learning: FedAVG, unless a subclass overrides something.

    Selected clients train from the server's model, and the server averages their weights within
    each architecture. A method may change the clients' loss (``mu``), take another step than to the
    average (``server_step``), score the clients' certainty (``scoring``), and aggregate their
    predictions into soft labels, from which the averages are distilled (``distills``,
    ``soft_labels``). Every imported subclass can be chosen by its name on the command line.

    Server and clients may send more than weights, and clients may keep tensors between rounds
    (``server_payload``, ``correction``, ``client_payload``). No tensor that they are given may be
    modified, because a failed round is undone.

    If several processes share the clients, ``soft_labels`` gets the updates of its own process and
    sums over ``ensemble.predictions()``, those of all processes, as FedDF does; with
    ``needs_all_updates`` it gets all updates, as FedBE. With ``trains_clients = False`` clients
    send only what they release before the first round; see ``OneRelease``. With
    ``keeps_optimizer`` clients go on with the optimizer's state of their last round instead of a
    new one; see ``Centralized``.

    Args:
        pretrained: Whether to start from h_0, learned on the auxiliary data (the paper's +P).

    Examples:
        >>> Algorithm().needs_auxiliary, Algorithm(pretrained=True).needs_auxiliary
        (False, True)
    """

    distills: ClassVar[bool] = False
    trains_clients: ClassVar[bool] = True
    needs_all_updates: ClassVar[bool] = False
    keeps_optimizer: ClassVar[bool] = False
    pretrained: bool = False
    mu: float = 0.0
    scoring: Scoring | None = None
    remember: bool = False
    _given: tuple[tuple[Any, ...], dict[str, Any]] = (), {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Show the constructor's signature in help, not that of ``__new__``."""
        super().__init_subclass__(**options)
        for name, advice in _FORMER_HOOKS.items():
            if name in vars(cls):
                raise TypeError(f"{cls.__name__}.{name} is of version 1.0: {advice}")
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
        """Raise a ConfigurationError for numbers of clients, by architecture, that cannot be."""
        secure = self.scoring and self.scoring.privacy.secure
        fewest = min(clients.values())
        if secure and fewest < secure.least_clients:
            raise ConfigurationError(
                f"privacy.secure is set, but {fewest} clients share an architecture: a sum needs "
                f"at least {secure.least_clients} of them; set privacy.secure to null"
            )

    def check_clients(self, optimizer: Mapping[str, Any], precision: str) -> None:
        """Raise a ConfigurationError for a training of the clients that the method cannot use.

        ``optimizer`` holds ``optimizer``, ``lr``, ``momentum``, ``weight_decay`` and ``clip_norm``.
        """

    def own_entries(self, model: nn.Module) -> list[str]:
        """Names of the state dict's entries that a client keeps from round to round as its own."""
        return []

    def server_payload(self, state: ServerState) -> State:
        """What the server sends to each client besides its model, from what it keeps."""
        return {}

    def correction(self, received: State, kept: State) -> State:
        """What a client adds to its gradients, by the names of the parameters; empty for nothing.

        It has ``received`` the ``server_payload`` and ``kept`` its own since its last round.
        """
        return {}

    def client_payload(self, result: LocalResult) -> tuple[State, State]:
        """What a client sends besides its weights, and what it keeps until its next round.

        All clients of an architecture send tensors of the same names and shapes.
        """
        return {}, {}

    def overrides(self, hook: str) -> bool:
        """Return whether the method has a hook of its own, such as ``client_payload``."""
        return getattr(type(self), hook) is not getattr(Algorithm, hook)

    def server_step(self, aggregate: Aggregate) -> tuple[State, ServerState]:
        """The server's new parameters of one architecture, and what it keeps for the next step."""
        return aggregate.average, {}

    def soft_labels(self, ensemble: Ensemble) -> Tensor:
        """The probabilities from which students are distilled, shape (N, C)."""
        if ensemble.labels is not None:  # of a teacher that is made of releases
            return ensemble.labels
        raise NotImplementedError(
            f"{type(self).__name__} sets distills to True: it must override soft_labels"
        )

    def blend(self, distilled: Distilled) -> Blended:
        """Return the server's new models: between the averages and the distilled ones.

        With ``distillation.blend: vote`` each architecture takes the model with the most votes of
        all clients, discounted ones of earlier rounds included; of equal ones, that nearest to the
        average.
        """
        weights = {}
        votes = {}
        metrics = {}
        if distilled.blend == "vote":
            for name, sums in distilled.ask(CANDIDATES).items():
                votes[name] = sums
                if name in distilled.votes:
                    votes[name] = sums + VOTE_DISCOUNT * distilled.votes[name]
                weights[name] = CANDIDATES[most_votes(votes[name].tolist())]
                metrics[f"blend/{name}"] = weights[name]
                for weight, total in zip(CANDIDATES, sums.tolist(), strict=True):
                    metrics[f"votes/{name}/{weight:g}"] = total
        else:
            weights = dict.fromkeys(distilled.students, distilled.blend)
        students = {}
        for name, student in distilled.students.items():
            students[name] = blend_states(distilled.averages[name], student, weights[name])
        return Blended(students, metrics, votes)

    def plan(self, numbers: PublicNumbers | None) -> Plan:
        """Return the steps in which clients release, planned by public numbers."""
        return {} if self.scoring is None else plan(self.scoring, numbers)

    def send(self, released: Released, architecture: str) -> Mapping[str, Tensor]:
        """Return what the server sends to the clients of an architecture in a step that needs it.

        It may depend on what was released before, as the classifier of ``Residuals`` does.
        """
        return {}

    def score(self, released: Released, labels: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return s_i(x) of all clients on each part of the data, shapes (n, N); empty for none."""
        return {}

    def classifiers(self, released: Released) -> dict[str, LinearClassifier]:
        """Return linear classifiers of rows by architecture, from which the students start.

        Students of other architectures start from a regression on the labels.
        """
        return {}

    def label(self, released: Released) -> dict[str, Tensor]:
        """Return p(c | x) of a teacher made of releases on each part of the data, shapes (N, C)."""
        return {}

    def settings(self) -> dict[str, Any]:
        """The method and its options as plain values, which must not change within a run."""
        plain: dict[str, Any] = {"method": type(self).__name__}
        for name, value in vars(self).items():
            if name != "_given":
                plain |= value.settings() if isinstance(value, Scoring) else {name: value}
        return plain
