"""What callbacks read of a federation."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from fedaux_pl.algorithms import Algorithm, Evidence
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.data.source import Examples
from fedaux_pl.scoring import Guarantee, Plan, ReleasedHead


class RunView(Protocol):
    """A federation in a run, see ``Federation``."""

    algorithm: Algorithm
    participation: float
    pretraining: Any  # its settings
    seed: int
    clients: dict[str, int]
    architectures: list[str]
    chosen_metrics: dict[str, dict[str, Any]]
    plan: Plan
    evidence: Evidence

    @property
    def data(self) -> FederatedDataModule:
        """The data of the run."""

    @property
    def history(self) -> list[dict[str, float]]:
        """The metrics of the finished rounds."""

    @property
    def heads(self) -> Sequence[ReleasedHead]:
        """What clients have released in the first step."""

    @property
    def evaluated_clients(self) -> Examples | None:
        """The evaluated data, if their samples name clients."""

    @property
    def confusion(self) -> Tensor | None:
        """The confusion matrix of the last evaluation, shape (C, C)."""

    @property
    def client_confusions(self) -> Mapping[str, Tensor]:
        """Those of clients that the evaluated data name."""

    @property
    def monitored_metrics(self) -> Mapping[str, bool]:
        """What callbacks can monitor besides accuracies: whether a higher value is better."""

    @property
    def may_show_classes(self) -> bool:
        """Whether classes and clients are shown apart."""

    def select_clients(self, t: int) -> list[int]:
        """Return the clients that take part in round t."""

    def client_labels(self, names: Sequence[str]) -> list[str]:
        """Return what clients are called in logs and figures."""

    def privacy(self) -> list[str]:
        """Return the guarantee of each kind of release, and what has none."""

    def guarantees(self) -> list[Guarantee]:
        """Return the same as the rows of a table."""

    def settings(self) -> dict[str, Any]:
        """Return all settings that determine the result, as plain values."""
