"""Secure sums at the server: it collects keys, then masked vectors, and adds up the vectors.

Before it asks for masked vectors it writes the keys of the attempt to its state folder: a server
that was killed repeats that attempt, for which no site pays twice.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.data import FederatedDataModule
from fedaux_pl.errors import ConfigurationError, PrivacyError, first_line
from fedaux_pl.federation.context import ServerFeatures
from fedaux_pl.files import state_folder, write_json_atomically
from fedaux_pl.models import backbone_state
from fedaux_pl.scoring import PublicMap, ReleasedHead, SecureSum, Step, check_records
from fedaux_pl.sites import wire
from fedaux_pl.sites.codes import FINAL
from fedaux_pl.sites.secure_sum import Sent, add_masked, read_keys, sum_digest
from fedaux_pl.sites.site_requests import SiteRequests
from fedaux_pl.sites.site_status import tell
from fedaux_pl.sites.wire import Message, RefusalError

_RETRY = 2.0  # seconds before sites are asked again
_LATER = ("absent", "busy")  # codes of sites that may answer later
_REPEATS = 3  # of a question for masked vectors, to sites that may answer later


@dataclass
class Collector:
    """Collects the secure sums of a step; ``groups`` are the sites of each architecture."""

    requests: SiteRequests
    step: Step
    groups: Mapping[str, Sequence[str]]
    data: FederatedDataModule
    _number: int = 0  # of the last attempt

    @property
    def least(self) -> int:
        """The fewest sites of a sum; the second one is used only if it is over all of the first."""
        if self.step.sends:
            return sum(map(len, self.groups.values()))
        return self.step.secure.least_clients

    def heads(self, features: ServerFeatures, maps: Mapping[str, PublicMap]) -> list[ReleasedHead]:
        """Return the secure sum over the sites of each architecture."""
        for group in self.groups.values():  # before the sites of any architecture pay
            self.check(group)
            check_records(self.step.scorer, self._count_records(group))
        return [self._head(name, features.h0[name], maps[name]) for name in self.groups]

    def _count_records(self, group: Sequence[str]) -> int:
        names = self.requests.sites.names
        return sum(self.data.site_sizes[names.index(site)] for site in group)

    def _head(self, architecture: str, h0: nn.Module, public_map: PublicMap) -> ReleasedHead:
        step = self.step
        requests = self.requests
        names = requests.sites.names
        state = backbone_state(h0.state_dict())
        digest = sum_digest(requests.agreement, architecture, step, state, public_map)
        row_length = public_map.row_length(h0)
        classes = len(self.data.classes)
        length = step.scorer.vector_length(row_length, classes)
        joined, total = self.collect(digest, self.groups[architecture], length)
        members = sorted(names.index(site) for site in joined)
        secure_sum = SecureSum(step, row_length, classes, len(members))
        head = secure_sum.head(members, total, public_map, requests.sites.rehearsal)
        norm = step.scorer.largest_norm(self._count_records(joined), 0) * (1 + 1e-3)  # rounding
        largest = norm + 40 * head.release.total_sigma
        if not bool((head.weight.abs() <= largest).all()):
            raise PrivacyError(
                "the secure sum is larger than any data and noise can be: the masks have not "
                "cancelled, or a site has sent a false vector"
            )
        return head

    def collect(self, digest: str, names: Sequence[str], length: int) -> tuple[list[str], Tensor]:
        """Return the sites of a secure sum, and the sum of their vectors of this length.

        Raise a ConfigurationError if sites have sent their vectors in vain: the budget pays for one
        attempt.
        """
        start = time.monotonic()
        path = state_folder() / "secure_sums" / f"{digest}.json"
        attempt = _read_attempt(path)
        is_new = False  # an attempt of an earlier run is paid for already
        while True:
            if attempt is None:
                is_new = True
                attempt = self._collect_keys(digest, names)
                write_json_atomically(path, attempt)
            joined = sorted(attempt["keys"])
            answers, refusals = self._collect_masked(digest, attempt, length)
            try:
                total = add_masked(answers, joined)
                break
            except RefusalError as error:
                reasons = [f"{name}: {first_line(why)}" for name, why in refusals.items()]
                reason = "; ".join(reasons) or first_line(error)
            tell(f"a secure sum failed: {reason}")
            if not is_new and any(error.code in _LATER for error in refusals.values()):
                raise ConfigurationError(
                    f"an earlier run began this secure sum with sites that are absent ({reason}): "
                    f"start them, or delete {path}, which costs the others their epsilon again"
                )
            if is_new and answers:  # without answers nothing was spent
                raise ConfigurationError(
                    f"the secure sum failed, which cost {', '.join(sorted(answers))} their epsilon "
                    f"({reason}): start the run again once these sites allow to spend it a second "
                    "time, by a higher --epsilon_limit"
                )
            names = [n for n in names if n not in refusals or refusals[n].code not in FINAL]
            self.check(names, reason)
            attempt = None
            time.sleep(_RETRY)
        seconds = time.monotonic() - start
        megabytes = 8 * length * len(answers) / 1e6
        tell(
            f"secure sum over {', '.join(joined)}: {length:,} numbers, {megabytes:.2f} MB, "
            f"{seconds:.1f} s"
        )
        return joined, total

    def check(self, names: Sequence[str], reason: str = "the others are absent or refuse") -> None:
        """Raise a ConfigurationError unless there are enough sites."""
        if len(names) < self.least:
            raise ConfigurationError(
                f"a secure sum needs {self.least} sites, but has {', '.join(names) or 'none'} "
                f"({reason}): start the others, agree with them on the same run.yaml, within their "
                "limits, or set privacy.secure to null"
            )

    def _collect_keys(self, digest: str, names: Sequence[str]) -> dict[str, Any]:
        """Ask for keys, which cost nothing, until enough sites have sent them."""
        start = time.monotonic()
        while True:
            # above those of all earlier servers
            number = max(self._number + 1, int(100 * time.time()))
            self._number = number
            question = Message({"sum": digest, "attempt": number, "sites": len(names)})
            keys = {}
            reasons = []

            def read(name: str, answer: Message, number: int = number) -> Any:
                message = answer.fields.get("keys")
                if read_keys(message, digest, number, self.step.secure.pins).name != name:
                    raise RefusalError("message", "it is of another site")
                return message

            for name, answer in self.requests.ask("keys", dict.fromkeys(names, question), read):
                if isinstance(answer, RefusalError):
                    reasons.append(f"no key of {name}: {first_line(answer)}")
                    names = [n for n in names if n != name or answer.code not in FINAL]
                else:
                    keys[name] = answer
            if len(keys) >= self.least:
                for reason in reasons:
                    tell(reason)
                return {"attempt": number, "keys": keys}
            is_late = time.monotonic() - start > self.requests.sites.wait
            self.check(list(keys) if is_late else names, "; ".join(reasons))
            time.sleep(_RETRY)

    def _collect_masked(
        self, digest: str, attempt: Mapping[str, Any], length: int
    ) -> tuple[dict[str, Sent], dict[str, RefusalError]]:
        """Return the masked vectors and the refusals by site; ask again sites that answer later."""
        like = {"masked": torch.empty(length, dtype=torch.int64)}
        fields = {"sum": digest, "attempt": attempt["attempt"]}
        question = Message(fields | {"messages": list(attempt["keys"].values())}, like=like)
        answers: dict[str, Sent] = {}
        refusals: dict[str, RefusalError] = {}

        def read(_: str, answer: Message) -> Sent:
            vector = wire.read_tensors(answer.body, like)["masked"]
            return str(answer.fields.get("transcript")), vector

        for _ in range(_REPEATS):
            missing = {name: question for name in attempt["keys"] if name not in answers}
            for name, answer in self.requests.ask("masked", missing, read):
                refusals.pop(name, None)
                if isinstance(answer, RefusalError):
                    refusals[name] = answer
                else:
                    answers[name] = answer
            if all(error.code not in _LATER for error in refusals.values()):
                break
            time.sleep(_RETRY)
        return answers, refusals


def _read_attempt(path: Path) -> dict[str, Any] | None:
    """Return the number and the keys of an attempt that an earlier run began; None for none."""
    if not path.is_file():
        return None
    try:
        attempt = json.loads(path.read_text())
        return {"attempt": int(attempt["attempt"]), "keys": dict(attempt["keys"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} is damaged ({type(error).__name__}): restore it, or delete it, which costs "
            "sites that have sent their vectors their epsilon again"
        ) from error
