"""The settings that only the server has, and the limits that only a site has."""

from dataclasses import dataclass
from pathlib import Path

from fedaux_pl.errors import check_setting
from fedaux_pl.scoring import Privacy
from fedaux_pl.sites.budget import ALONE
from fedaux_pl.sites.names import check_names


@dataclass(frozen=True)
class Sites:
    """The sites of a federation, as the server has to know them.

    Args:
        names: The names of the sites in the order of the clients, as in their certificates.
        certificates: The server's folder, as NVFlare's provisioning has written it.
        port: The port on which the server listens. It is the only one: sites open none.
        host: The server's host name, as in its certificate.
        timeout: The seconds in which a site must answer a request.
        wait: The seconds for which the start of a run waits for sites that are not connected.
        min_answers: The number of answers that a round needs. With fewer answers, the server asks
            the sites again.
        rehearsal: Whether to use the noise as the method configures it. By default all noise is
            secret.
        max_bytes: The size of the largest message that is accepted.
        evaluate: Whether to ask the sites to evaluate the models on test data of their own,
            whenever a round is measured. Sites that do not allow it (``--evaluate``) are left out.
        final_model: Whether to send the models of the last round to all sites that are connected at
            the end. A site with ``--output`` writes its own.
    """

    names: list[str]
    certificates: Path
    port: int = 8402
    host: str = "localhost"
    timeout: float = 600.0
    wait: float = 60.0
    min_answers: int = 1
    rehearsal: bool = False
    max_bytes: int = 2**32
    evaluate: bool = False
    final_model: bool = True

    def __post_init__(self) -> None:
        check_names(self.names, self.host)
        least = self.min_answers
        count = len(self.names)
        check_setting("sites.min_answers", least, 1 <= least <= count, f"lie in 1 ... {count}")
        check_setting("sites.timeout", self.timeout, self.timeout > 0, "be positive")
        check_setting("sites.wait", self.wait, self.wait >= 0, "be at least 0")


@dataclass(frozen=True)
class Limits:
    """What the owner of a site allows, whatever the server asks.

    Args:
        epsilon_limit: The largest epsilon that all releases about a record may cost together, at
            the delta of the method; null for the epsilon of the method, which allows each release
            of the method once. If the ledger has model updates of version 1.0, their epsilons and
            deltas are added to those of the releases, so the limit then holds at a larger delta,
            which the site prints at its start.
        epsilon_limit_alone: The same limit for the guarantee that the noise of this site alone
            gives in secure sums, whatever the other sites do. A run with secure sums needs it.
        allow_new_h0: Whether to release again, under the same settings and about the same data, if
            the server sends another h_0, feature map, negatives or classifier than before. Each
            time costs the epsilon of the release once more, up to ``epsilon_limit``.
        accept_new_pixels: Whether to continue if the ledger has releases about transparent pictures
            as version 1 read them, although these pictures count as new records now.
        max_epochs: The largest number of local epochs in a round.
        min_batch_size: The smallest batch size of the local training.
        max_batch_size: The largest batch size of the local training.
        rehearsal: Whether to use the noise as the method configures it: noise from a seed protects
            nothing. By default the noise is secret, and a server with other noise is refused.
        evaluate: Whether to send the server the metrics of its models on the test data of this
            site, as often as it asks. Without ``evaluate_epsilon`` no guarantee covers them.
        evaluate_epsilon: Send only the accuracy, with noise, at this epsilon for every evaluation
            and at the delta of the method. All evaluations count towards ``epsilon_limit``.
        vote: Whether to vote on the server's models (``distillation.blend: vote``) in every round,
            by the validation data of this site or, if it has none, by its training data. Votes have
            no noise, and no guarantee covers them.
    """

    epsilon_limit: float | None = None
    epsilon_limit_alone: float | None = None
    allow_new_h0: bool = False
    accept_new_pixels: bool = False
    max_epochs: int = 20
    min_batch_size: int = 2
    max_batch_size: int = 1024
    rehearsal: bool = False
    evaluate: bool = False
    evaluate_epsilon: float | None = None
    vote: bool = False

    def __post_init__(self) -> None:
        for name in ("epsilon_limit", "epsilon_limit_alone", "evaluate_epsilon"):
            limit = getattr(self, name)
            is_valid = limit is None or (not isinstance(limit, bool) and limit > 0)
            check_setting(name, limit, is_valid, "be a positive number")
        check_setting("max_epochs", self.max_epochs, self.max_epochs >= 1, "be at least 1")
        sizes = (self.min_batch_size, self.max_batch_size)
        is_valid = 1 <= self.min_batch_size <= self.max_batch_size
        expected = "be at least 1 and in this order"
        check_setting("min_batch_size, max_batch_size", sizes, is_valid, expected)
        if self.evaluate_epsilon is not None and not self.evaluate:
            raise ValueError("evaluate_epsilon needs evaluate: add --evaluate true")
        try:
            Privacy(self.evaluate_epsilon)
        except ValueError as error:
            raise ValueError(f"evaluate_epsilon: {error}") from error

    def epsilons(self, privacy: Privacy) -> dict[str, float]:
        """Return the limits of a ``Budget``: by default the epsilon of the method."""
        limits = {"epsilon_limit": self.epsilon_limit or privacy.epsilon or 0.0}
        if self.epsilon_limit_alone is not None:  # releases with local noise count, too
            limits[ALONE] = self.epsilon_limit_alone
        return limits
