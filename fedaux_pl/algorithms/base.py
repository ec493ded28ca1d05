"""The interface of a method of federated learning."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from fedaux_pl.algorithms.aggregate import Aggregate, ServerState
from fedaux_pl.algorithms.client_release import ClientRelease
from fedaux_pl.algorithms.teachers import Member, Round, Teachers
from fedaux_pl.algorithms.updates import LocalResult
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional.averaging import State


@dataclass(frozen=True)
class RunOptions:
    """The options of a run that a method may refuse, as plain values."""

    clients: Mapping[str, int]  # the number of clients of each architecture
    local: Mapping[str, Any]  # how clients train: optimizer, lr, momentum, clip_norm, ...
    distillation: Mapping[str, Any]  # how the server distills: epochs, temperature, blend, ...
    precision: str | None = None  # of the Trainer; None before there is one


class Algorithm:
    """A method of federated learning: FedAVG, unless a subclass overrides something.

    In every round, selected clients train from the server's model, and the server averages their
    models within each architecture. A method is a frozen dataclass whose fields are its options; it
    overrides what is special about it:

    - ``server_step`` takes another step than to the average (FedAvgM, FedAdam),
    - ``distills``, ``members`` and ``soft_labels`` distill the averages from the predictions of
      teachers (FedDF, FedBE),
    - ``new_model`` says which model a round ends with,
    - ``release`` lets clients release something before the first round (FedAUX, FedClassMeans),
    - ``mu`` adds a proximal term to the clients' loss (FedPROX), and ``own_entries`` names
      parameters that stay on the client (FedBN),
    - ``server_payload``, ``correction`` and ``client_payload`` let server and clients send more
      than their models (SCAFFOLD),
    - ``check`` refuses options that the method cannot use; with a release, call the check of the
      parent as well.

    A method with a release has the option ``privacy``, and ``scoring`` or its parts. A method must
    not modify a tensor that it is given, because a failed round is undone. Every imported subclass
    can be chosen by its name on the command line.

    Examples:
        >>> Algorithm().needs_auxiliary
        False
    """

    distills: ClassVar[bool] = False
    """Whether the server distills its models from soft labels."""
    trains_clients: ClassVar[bool] = True
    """Whether clients train in rounds. If not, they send only their release; see OneRelease."""
    keeps_optimizer: ClassVar[bool] = False
    """Whether a client continues with the optimizer's state of its last round; see Centralized."""

    pretrained: bool = False
    """Whether models start from h_0, learned on the auxiliary data (the paper's +P)."""
    mu: float = 0.0
    """The strength of the proximal term in the clients' loss."""
    remember: bool = False
    """Whether clients that are absent in a round continue to teach with their last logits."""

    @property
    def name(self) -> str:
        """The name in tables, as the paper writes it: +P if pre-training was a choice."""
        is_chosen = self.pretrained and not type(self).pretrained
        memory = " with memory" if self.remember else ""
        return type(self).__name__ + ("+P" if is_chosen else "") + memory

    @property
    def needs_auxiliary(self) -> bool:
        """Whether the method needs auxiliary data."""
        return self.pretrained or self.distills

    @property
    def sends_more_than_models(self) -> bool:
        """Whether clients send more than their models, or keep something between rounds."""
        return self.overrides("client_payload") or self.keeps_optimizer

    def overrides(self, hook: str) -> bool:
        """Return whether the method has a hook of its own, such as ``correction``."""
        return getattr(type(self), hook) is not getattr(Algorithm, hook)

    def settings(self) -> dict[str, Any]:
        """Return the method and its options as plain values, which may not change within a run."""
        plain: dict[str, Any] = {"method": type(self).__name__, "pretrained": self.pretrained}
        if self.release is not None:
            plain |= self.release.scoring.settings()
        names: list[str] = []
        if is_dataclass(self):
            names = [option.name for option in fields(self)]
        for name in names:
            if name not in ("scoring", "privacy"):  # they are in the settings of the release
                plain[name] = getattr(self, name)
        return plain

    def check(self, options: RunOptions) -> None:
        """Raise a ConfigurationError if the method cannot use the options of the run."""
        if self.release is None:
            return
        secure = self.release.scoring.privacy.secure
        fewest = min(options.clients.values())
        if secure and fewest < secure.least_clients:
            raise ConfigurationError(
                f"privacy.secure is set, but {fewest} clients share an architecture: a sum needs "
                f"at least {secure.least_clients} of them; set privacy.secure to null"
            )

    # --- Before the first round ----------------------------------------------------------------

    @property
    def release(self) -> ClientRelease | None:
        """What clients release before the first round; None if they release nothing."""
        return None

    @property
    def secret_noise(self) -> bool:
        """Whether the noise of a release comes from the operating system, not from the seed."""
        return self.release is not None and self.release.scoring.privacy.secret

    def with_secret_noise(self) -> Self:
        """Return the method with noise from the operating system, whatever was configured."""
        if self.release is None:
            return self
        secret = replace(self.release.scoring.privacy, secret=True)
        method: Self = replace(self, privacy=secret)  # type: ignore[type-var]  # a dataclass
        return method

    # --- The clients in a round ----------------------------------------------------------------

    def server_payload(self, state: ServerState) -> State:
        """Return what the server sends to each client besides its model, from what it keeps."""
        return {}

    def correction(self, received: State, kept: State) -> State:
        """Return what a client adds to its gradients, by parameter; empty for nothing.

        The client has ``received`` the ``server_payload``, and ``kept`` its own in its last round.
        """
        return {}

    def client_payload(self, result: LocalResult) -> tuple[State, State]:
        """Return what a client sends besides its model, and what it keeps until its next round.

        All clients of an architecture send tensors of the same names and shapes.
        """
        return {}, {}

    def own_entries(self, model: nn.Module) -> list[str]:
        """Return the names of parameters and buffers that stay on the client."""
        return []

    # --- The server in a round -----------------------------------------------------------------

    def server_step(self, aggregate: Aggregate) -> tuple[State, ServerState]:
        """Return the new parameters of one architecture, and what to keep for the next step."""
        return aggregate.average, {}

    def members(self, models: Round) -> Sequence[Member]:
        """Return the models that teach, chosen from those of the round: by default the clients'."""
        return models.client_members()

    def soft_labels(self, teachers: Teachers) -> Tensor:
        """Return the probabilities from which students are distilled, shape (N, C)."""
        raise NotImplementedError(
            f"{type(self).__name__} sets distills to True: it must override soft_labels"
        )

    def new_model(self, theta: State, average: State, distilled: State) -> State:
        """Return the model that a distillation ends with, of one architecture.

        ``distillation.blend`` then chooses between the average and this model.

        Args:
            theta: The server's model before the round.
            average: The average of the clients' models after ``server_step``.
            distilled: The student that was distilled from the average.
        """
        return distilled
