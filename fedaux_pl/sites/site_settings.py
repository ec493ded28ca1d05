"""The settings of server and sites: those of each alone, and those that they must share."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaux_pl.errors import ConfigurationError, check_setting
from fedaux_pl.federation import Federation
from fedaux_pl.scoring import Privacy
from fedaux_pl.sites.budget import ALONE
from fedaux_pl.sites.names import check_names
from fedaux_pl.sites.same_version import minor_version

FORMAT = 1  # in the digests of all secure sums: do not change it
ASKED = ("epochs", "batch_size")  # what a request may ask for, within the limits of a site
_SHARED = ("algorithm", "clients", "trained", "model_options", "seed")


@dataclass(frozen=True)
class Sites:
    """The sites of a federation, at the server.

    Args:
        names: The sites in the order of the clients, as in their certificates.
        certificates: The server's folder, as NVFlare's provisioning has written it.
        port: The port on which the server listens; the only one, and sites open none.
        host: The server's host name, as in its certificate.
        timeout: The seconds in which a site must answer a request.
        wait: The seconds for which the start of a run waits for sites that are not connected.
        min_answers: The number of answers that a round needs; with fewer, sites are asked again.
        rehearsal: Whether the noise of the method is used as configured. Otherwise it is secret.
        max_bytes: The largest message that is accepted.
        evaluate: Whether sites are asked to evaluate the models on test data of their own whenever
            a round is measured. Those that have not allowed it (``--evaluate``) are left out.
        final_model: Whether the models of the last round are sent to all sites that are connected
            at the end: a site with ``--output`` writes its own.
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
    """What a site agrees to, whatever the server asks.

    Args:
        epsilon_limit: The largest epsilon that all releases about a record may cost together, at
            the delta of the method; null for the epsilon of the method, which allows each release
            of the method once.
        epsilon_limit_alone: The same for what the noise of this site alone guarantees in secure
            sums, whatever the other sites do; a run with secure sums needs it.
        allow_new_h0: Whether to release again, under the same settings and about the same data, if
            the server sends another h_0, feature map, negatives or classifier than before. Each
            time costs the epsilon of the release once more, up to ``epsilon_limit``.
        accept_new_pixels: Whether to continue if the ledger has releases about transparent pictures
            as version 1 read them, although their releases count as those of new records now.
        max_epochs: The largest number of local epochs in a round.
        min_batch_size: The smallest batch size of the local training.
        max_batch_size: The largest one.
        rehearsal: Whether the noise is that of the configuration: from a seed it protects nothing.
            Otherwise it is secret, and a server that wants another one is refused.
        evaluate: Whether to tell the server the metrics of its models on the test data of this
            site, as often as it asks. Without ``evaluate_epsilon`` no guarantee covers them.
        evaluate_epsilon: Tell the accuracy alone, with noise, at this epsilon for every evaluation
            and the delta of the method; all of them count towards ``epsilon_limit``.
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
        """Return the limits of a ``Budget``; by default the epsilon of the method's privacy."""
        limits = {"epsilon_limit": self.epsilon_limit or privacy.epsilon or 0.0}
        if self.epsilon_limit_alone is not None:  # of local noise, too: it adds up
            limits[ALONE] = self.epsilon_limit_alone
        return limits


def adapt(federation: Federation, rehearsal: bool) -> None:
    """Check that a federation can run over sites; unless in a rehearsal, make its noise secret."""
    algorithm = federation.algorithm
    keeps_tensors = algorithm.overrides("client_payload") or algorithm.overrides("own_entries")
    if keeps_tensors or algorithm.keeps_optimizer or federation.local.fine_tuning:
        raise ConfigurationError(
            "a site keeps nothing between rounds but its ledger: use no local.fine_tuning, and no "
            "method whose clients keep tensors (Scaffold, FedBN, Centralized)"
        )
    federation.algorithm.plan(None)  # raises if it needs the sizes of sites
    if not rehearsal:
        federation.algorithm.use_secret_noise()


def agreement(federation: Federation) -> dict[str, Any]:
    """Return the settings that determine what a site computes, as JSON gives them.

    Server and sites compare them with every request: no message changes them or names a class.
    """
    settings = federation.settings()
    data = federation.data
    shared = {name: settings[name] for name in (*_SHARED, "rounds") if name in settings} | {
        "format": FORMAT,
        "version": minor_version(),
        "local": {k: v for k, v in settings["local"].items() if k not in ASKED},
        "classes": list(data.classes),
        "input_shape": list(data.input_shape),
    }
    if federation.batchnorm_statistics == "own":  # what a site tells depends on training records
        shared["batchnorm_statistics"] = "own"
    plain: dict[str, Any] = json.loads(json.dumps(shared, default=str))
    return plain


def differences(expected: Mapping[str, Any], other: object) -> list[str]:
    """Return the settings in which two agreements differ, with both values.

    Examples:
        >>> differences({"seed": 0, "trained": "full"}, {"seed": 1, "trained": "full"})
        ['seed is 0 here, 1 at the server']
    """
    if not isinstance(other, Mapping):
        return ["the server has sent no settings"]
    lines = []
    for name in [*expected, *sorted(other.keys() - expected.keys())]:  # invented ones last
        here = expected.get(name)
        there = other.get(name)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            lines += [f"{name}.{text}" for text in differences(here, there)]
        elif here != there:
            lines.append(f"{name[:80]} is {here!r} here, {str(there)[:200]!s} at the server")
    return lines
