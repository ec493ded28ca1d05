"""Secure sums at the server: it collects keys, then masked vectors, and adds up the vectors.

Before it asks for masked vectors, it writes the keys of the attempt to its state folder. A server
that was ended in between repeats this attempt, for which no site pays twice.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedaux_pl.data import FederatedDataModule
from fedaux_pl.errors import ConfigurationError, PrivacyError, first_line
from fedaux_pl.files import state_folder, write_json_atomically
from fedaux_pl.models import backbone_state
from fedaux_pl.scoring import PublicMap, ReleasedHead, SecureSum, Step, check_records
from fedaux_pl.sites.codes import ABSENT, FINAL
from fedaux_pl.sites.ledger_keys import sum_digest
from fedaux_pl.sites.messages import keys, masked
from fedaux_pl.sites.secure_sum import SentVector, add_masked
from fedaux_pl.sites.server_log import log_line
from fedaux_pl.sites.site_requests import SiteRequests
from fedaux_pl.sites.wire import Message, RefusalError

_RETRY = 2.0  # seconds before sites are asked again
_LATER = (ABSENT, "busy")  # codes of sites that may answer later
_REPEATS = 3  # how often sites that may answer later are asked for their masked vectors
_ROUNDING = 1e-3


@dataclass(frozen=True)
class KeyedAttempt:
    """An attempt at a secure sum whose sites have sent their keys."""

    number: int
    key_messages: Mapping[str, Any]  # by the name of the site

    @property
    def sites(self) -> list[str]:
        """The names of its sites."""
        return sorted(self.key_messages)


@dataclass
class SumCollector:
    """Collects the secure sums of a step.

    Attributes:
        requests: Asks each site once.
        step: The step.
        groups: The names of the sites of each architecture, which have computed their vectors.
        data: The data of the server, which knows |D_i| of these sites.
    """

    requests: SiteRequests
    step: Step
    groups: Mapping[str, Sequence[str]]
    data: FederatedDataModule
    _last_number: int = 0  # of an attempt

    @property
    def least_sites(self) -> int:
        """The fewest sites that a sum may have.

        The second sum is used only if it has all sites of the first one.
        """
        if self.step.sends:
            return sum(map(len, self.groups.values()))
        return self.step.secure.least_clients

    def collect(
        self, h0: Mapping[str, nn.Module], maps: Mapping[str, PublicMap]
    ) -> list[ReleasedHead]:
        """Return the secure sum of each architecture, given h_0 and feature map of each."""
        for sites in self.groups.values():  # before the sites of any architecture pay
            self.check_sites(sites)
            check_records(self.step.scorer, self._count_records(sites))
        return [self._collect_one(name, h0[name], maps[name]) for name in self.groups]

    def _count_records(self, sites: Sequence[str]) -> int:
        names = self.requests.sites.names
        return sum(self.data.site_sizes[names.index(site)] for site in sites)

    def _collect_one(self, architecture: str, h0: nn.Module, public_map: PublicMap) -> ReleasedHead:
        """Return the sum over the sites of one architecture."""
        step = self.step
        names = self.requests.sites.names
        num_classes = len(self.data.classes)
        row_length = public_map.row_length(h0)
        weights = backbone_state(h0.state_dict())
        digest = sum_digest(self.requests.agreement, architecture, step, weights, public_map)
        length = step.scorer.vector_length(row_length, num_classes)
        sites, total = self._sum_vectors(digest, self.groups[architecture], length)
        members = sorted(names.index(site) for site in sites)
        secure_sum = SecureSum(step, row_length, num_classes, len(members))
        head = secure_sum.head(members, total, public_map, self.requests.sites.rehearsal)
        norm = step.scorer.largest_norm(self._count_records(sites), 0) * (1 + _ROUNDING)
        largest = norm + 40 * head.release.total_sigma
        if not bool((head.weight.abs() <= largest).all()):
            raise PrivacyError(
                "the secure sum is larger than any data and noise can be: the masks have not "
                "cancelled, or a site has sent a false vector"
            )
        return head

    def _sum_vectors(
        self, digest: str, sites: Sequence[str], length: int
    ) -> tuple[list[str], Tensor]:
        """Return the sites of a secure sum, and the sum of their vectors of this length.

        Raises a ConfigurationError if sites have sent their vectors in vain, because their budgets
        pay for one attempt.
        """
        start = time.monotonic()
        path = state_folder() / "secure_sums" / f"{digest}.json"
        attempt = _read_attempt(path)
        is_new = False  # an attempt of an earlier run is paid for already
        while True:
            if attempt is None:
                is_new = True
                attempt = self._collect_keys(digest, sites)
                content = {"attempt": attempt.number, "keys": attempt.key_messages}
                write_json_atomically(path, content)
            vectors, refusals = self._collect_masked(digest, attempt, length)
            try:
                total = add_masked(vectors, attempt.sites)
                break
            except RefusalError as error:
                reasons = [f"{name}: {first_line(refusal)}" for name, refusal in refusals.items()]
                reason = "; ".join(reasons) or first_line(error)
            log_line(f"a secure sum failed: {reason}")
            if not is_new and any(refusal.code in _LATER for refusal in refusals.values()):
                raise ConfigurationError(
                    f"an earlier run began this secure sum with sites that are absent ({reason}): "
                    f"start them, or delete {path}, which costs the others their epsilon again"
                )
            if is_new and vectors:
                raise ConfigurationError(_describe_failure(vectors, refusals, reason))
            # the vectors cannot be used, or no site has paid: a new attempt with new keys
            sites = [n for n in sites if n not in refusals or refusals[n].code not in FINAL]
            self.check_sites(sites, reason)
            attempt = None
            time.sleep(_RETRY)
        seconds = time.monotonic() - start
        megabytes = 8 * length * len(vectors) / 1e6
        log_line(
            f"secure sum over {', '.join(attempt.sites)}: {length:,} numbers, {megabytes:.2f} MB, "
            f"{seconds:.1f} s"
        )
        return attempt.sites, total

    def check_sites(
        self, sites: Sequence[str], reason: str = "the others are absent or refuse"
    ) -> None:
        """Raise a ConfigurationError with this reason if there are too few sites for a sum."""
        if len(sites) < self.least_sites:
            raise ConfigurationError(
                f"a secure sum needs {self.least_sites} sites, but has "
                f"{', '.join(sites) or 'none'} ({reason}): start the others, agree with them on "
                "the same run.yaml, within their limits, or set privacy.secure to null"
            )

    def _collect_keys(self, digest: str, sites: Sequence[str]) -> KeyedAttempt:
        """Ask for keys, which cost nothing, until enough sites have sent them."""
        start = time.monotonic()
        while True:
            # the time makes it larger than the numbers of all earlier servers
            number = max(self._last_number + 1, int(100 * time.time()))
            self._last_number = number
            key_messages, refusals = self._ask_for_keys(digest, number, sites)
            reasons = [f"no key of {name}: {first_line(why)}" for name, why in refusals.items()]
            if len(key_messages) >= self.least_sites:
                for reason in reasons:
                    log_line(reason)
                return KeyedAttempt(number, key_messages)
            sites = [n for n in sites if n not in refusals or refusals[n].code not in FINAL]
            is_late = time.monotonic() - start > self.requests.sites.wait
            self.check_sites(list(key_messages) if is_late else sites, "; ".join(reasons))
            time.sleep(_RETRY)

    def _ask_for_keys(
        self, digest: str, number: int, sites: Sequence[str]
    ) -> tuple[dict[str, Any], dict[str, RefusalError]]:
        """Return the key messages and the refusals by site."""
        request = keys.write_request(digest, number, len(sites))
        pins = self.step.secure.pins

        def read(name: str, answer: Message) -> Any:
            return keys.read_answer(answer, name, digest, number, pins)

        key_messages = {}
        refusals = {}
        for name, answer in self.requests.ask("keys", dict.fromkeys(sites, request), read):
            if isinstance(answer, RefusalError):
                refusals[name] = answer
            else:
                key_messages[name] = answer
        return key_messages, refusals

    def _collect_masked(
        self, digest: str, attempt: KeyedAttempt, length: int
    ) -> tuple[dict[str, SentVector], dict[str, RefusalError]]:
        """Return the masked vectors and the refusals by site; ask again sites that answer later."""
        key_messages = list(attempt.key_messages.values())
        request = masked.write_request(digest, attempt.number, key_messages, length)
        vectors: dict[str, SentVector] = {}
        refusals: dict[str, RefusalError] = {}

        def read(_: str, answer: Message) -> SentVector:
            return masked.read_answer(answer, request)

        for _ in range(_REPEATS):
            missing = {name: request for name in attempt.key_messages if name not in vectors}
            for name, answer in self.requests.ask("masked", missing, read):
                refusals.pop(name, None)
                if isinstance(answer, RefusalError):
                    refusals[name] = answer
                else:
                    vectors[name] = answer
            if all(refusal.code not in _LATER for refusal in refusals.values()):
                break
            time.sleep(_RETRY)
        return vectors, refusals


def _describe_failure(
    vectors: Mapping[str, SentVector], refusals: Mapping[str, RefusalError], reason: str
) -> str:
    """Return why a sum has failed for which some sites have paid, and what to do."""
    advice = (
        "start the run again once these sites allow to spend it a second time, by a higher "
        "--epsilon_limit"
    )
    if refusals and all(refusal.code in _LATER for refusal in refusals.values()):
        absent = ", ".join(refusals)
        advice = (
            f"start the run again when {absent} can answer, which completes this sum at no "
            "further cost; only if a site was restarted before it sent its vector, a new sum "
            "costs epsilon a second time, which the sites must allow by a higher --epsilon_limit"
        )
    paid = ", ".join(sorted(vectors))
    return f"the secure sum failed, which cost {paid} their epsilon ({reason}): {advice}"


def _read_attempt(path: Path) -> KeyedAttempt | None:
    """Return the attempt that an earlier run began; None for none."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text())
        return KeyedAttempt(int(content["attempt"]), dict(content["keys"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} is damaged ({type(error).__name__}): restore it, or delete it, which costs "
            "sites that have sent their vectors their epsilon again"
        ) from error
