"""Secure sums over sites: what a site answers in the two steps, and how the server collects them.

First a site computes its vector, of which nothing leaves. Then the server asks for a key and for
the masked vector. One masked vector leaves for the keys of an attempt: asked again, the site sends
the same bytes. The server keeps the keys of an attempt in its state folder before the second step:
killed there, it repeats that step.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.errors import ConfigurationError, PrivacyError, first_line
from fedaux_pl.federation.context import ServerFeatures
from fedaux_pl.federation.preparation import create_extractor
from fedaux_pl.files import state_folder, write_json_atomically
from fedaux_pl.models import of_head
from fedaux_pl.scoring import PublicMap, ReleasedHead, Step, spent
from fedaux_pl.scoring.ledger import Entry, ReleaseKey
from fedaux_pl.scoring.plan import check_records
from fedaux_pl.scoring.secure_sums import SecureSum
from fedaux_pl.sites import wire
from fedaux_pl.sites.secure_sum import (
    MAX_ATTEMPT,
    MAX_SITES,
    Member,
    add_masked,
    agreement_digest,
    read_keys,
    signing_key,
)
from fedaux_pl.sites.site_status import tell
from fedaux_pl.sites.wire import FINAL, Answer, Message, RefusalError

if TYPE_CHECKING:
    from fedaux_pl.sites.site import Site
    from fedaux_pl.sites.site_clients import SiteClients

_RETRY = 2.0  # seconds before sites are asked again
_LATER = ("absent", "busy")  # a site may answer later
_REPEATS = 3  # of the second step, for sites whose answer was lost
MAX_PENDING = 4  # vectors that a site keeps; a run needs two, one after the other

Sent = tuple[str, Tensor]
"""The transcript and the masked vector of an attempt."""


def sum_digest(
    agreement: Mapping[str, Any],
    architecture: str,
    step: Step,
    h0: Mapping[str, Tensor],
    public_map: PublicMap,
) -> str:
    """Return the digest A of all that determines a secure sum, the same at server and sites.

    Another seed or local training makes no other sum, for which sites would pay again.
    """
    sent = step.scorer.tensors()
    tensors = [*h0.values(), *public_map.tensors().values(), *sent.values()]
    return agreement_digest(
        {
            **{name: agreement[name] for name in ("format", "model_options", "classes")},
            "architecture": architecture,
            "secret": step.scoring.privacy.secret,
            "release": step.settings(),
            "received": tensor_digest(*tensors),
            "bound": public_map.bound,
        }
    )


@dataclass
class Pending:
    """A secure sum for which this site has computed its vector."""

    member: Member
    secure: SecureSum  # with as few sites as it needs
    client: int
    key: ReleaseKey
    integers: Tensor | None = None  # the vector, before noise
    attempts: int = 0  # in which a masked vector has left
    sent: dict[int, Sent] = field(default_factory=dict)  # in the last attempt of a rehearsal


class SecureReleases:
    """The secure sums of a site."""

    def __init__(self, site: "Site") -> None:
        self.site = site
        self.federation = site.federation
        self._pending: dict[str, Pending] = {}
        assert site.algorithm.scoring is not None  # noqa: S101 - the plan has secure sums
        self.privacy = site.algorithm.scoring.privacy
        self._create_member()  # raises if the pins do not fit
        first = next(iter(self.federation.plan.values()))
        check_records(first.scorer, self.federation.data.client_sizes[0])
        if site.ledger is not None and site.limits.epsilon_limit_alone is None:
            raise ConfigurationError(
                "this run has secure sums: state with --epsilon_limit_alone what the noise of "
                "this site alone may cost, if the other sites and the server deceive it (with "
                f"all sites it costs {self._cost_alone():.4g}, with fewer less), or set "
                "privacy.sums to local"
            )

    def _create_member(self) -> Member:
        name = self.site.name
        return Member(name, signing_key(name), self.privacy.pins, self.privacy.colluders)

    def _cost_alone(self) -> float:
        """Return epsilon of all releases with all sites, by the noise of this site alone."""
        sites = max(self.federation.clients.values())
        releases = []
        for step in self.federation.plan.values():
            cost = step.cost(1.0, simulated=False, summands=sites if step.summed else 1)
            releases += [cost] * step.attempts
        return 1.001 * spent(releases, self.privacy.delta, alone=True)[0]  # printed, not below it

    def add(
        self,
        client: int,
        step: Step,
        h0: Mapping[str, Tensor],
        public_map: PublicMap,
        key: ReleaseKey,
    ) -> None:
        """Compute a vector, unless it is there, if the budget allows it.

        A site that cannot pay says so here, or when it is asked for a key: later, its refusal
        would cost the other sites their attempt. The vectors used last are kept.
        """
        federation, name = self.federation, self.federation.architectures[client]
        student, classes = federation.students[name], len(federation.data.classes)
        digest = sum_digest(self.site.own_agreement, name, step, h0, public_map)
        pending = self._pending.get(digest)
        if pending is None:
            member = self._create_member()
            secure = SecureSum(step, public_map.row_length(student), classes, member.least)
            try:
                secure.check()  # the server may send another number of dimensions than agreed
            except ConfigurationError as error:
                raise RefusalError("settings", str(error)) from error
            pending = Pending(member, secure, client, key)
        entries = self.site.entries()
        if not _sent(pending, digest, entries):
            planned = pending.secure.cost(simulated=False)
            self.site.check_budget(entries, pending.key, planned)
        if pending.integers is None:
            extractor = create_extractor(student, h0)
            pending.integers = federation.pool.integers(client, step, extractor, public_map)
        self._pending.pop(digest, None)
        self._pending[digest] = pending
        if len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]

    def answer(self, fields: Mapping[str, Any]) -> Answer:
        """Answer step 1 by a key for an attempt, step 2 by its masked vector, in the ledger."""
        digest = str(fields.get("sum", ""))[:64]
        if (pending := self._pending.get(digest)) is None:
            raise RefusalError("message", "it asks for a secure sum that it has not prepared")
        attempt, entries = wire.read_count(fields, "attempt", MAX_ATTEMPT), self.site.entries()
        sent = _sent(pending, digest, entries)
        if fields["kind"] == "keys":
            sites = max(wire.read_count(fields, "sites", MAX_SITES), pending.member.least)
            planned = replace(pending.secure, summands=sites).cost(simulated=False)
            self.site.check_budget(entries, pending.key, planned)
            message = pending.member.keys(digest, attempt, max(sent, default=0))
            return {"keys": message}, wire.write_tensors({}), "a key: nothing depends on data"
        about = "the masked vector that it has sent before: nothing new"
        if attempt not in sent:
            messages = fields.get("messages")
            sent[attempt], about = self._release(pending, digest, attempt, messages, entries)
        transcript, masked = sent[attempt]
        return {"transcript": transcript}, wire.write_tensors({"masked": masked}), about

    def _release(
        self,
        pending: Pending,
        digest: str,
        attempt: int,
        messages: object,
        entries: Sequence[Entry],
    ) -> tuple[Sent, str]:
        assert pending.integers is not None  # noqa: S101 - ``add`` has computed it
        session = pending.member.open(digest, attempt, messages)
        secure = replace(pending.secure, summands=len(session.names))
        record = secure.cost(simulated=self.site.ledger is None)
        self.site.check_budget(entries, pending.key, record)
        pending.attempts += 1
        client, integers = pending.client, pending.integers
        pool = self.federation.pool
        noise = pool.noise_bytes(client, secure.step, integers, pending.attempts)
        masked = session.mask(secure.add_noise(integers, noise))
        names = ", ".join(session.names)
        about = f"a masked vector in the sum over {names}: NOT private (a rehearsal)"
        if (ledger := self.site.ledger) is not None:
            key = pending.key.of_attempt(f"{digest} {attempt} {session.transcript} {names}")
            with ledger.locked():
                entries = ledger.entries()
                self.site.check_budget(entries, pending.key, record)
                entry = Entry(key, {"masked": masked}, {0: record}, {0: self.site.digests})
                entries = [*entries, entry]
                ledger.add(entry)
            total, alone = (
                ledger.total([self.site.digests], record.delta, alone=alone, entries=entries)
                for alone in (False, True)
            )
            about = (
                f"a masked vector in the sum over {names}, which is (epsilon {record.epsilon:g}, "
                f"delta {record.delta:g})-private, alone epsilon {record.epsilon_alone:.4g}; spent "
                f"so far: epsilon {total.epsilon:.4g}, alone {alone.epsilon:.4g}, in at most "
                f"{total.releases} about a record"
            )
        else:
            pending.sent = {attempt: (session.transcript, masked)}
        return (session.transcript, masked), about


def _sent(pending: Pending, digest: str, entries: Sequence[Entry]) -> dict[int, Sent]:
    """What has left in each attempt; raise a PrivacyError if it has less noise than it needs."""
    found = dict(pending.sent)
    for entry in entries:
        if pending.key.is_of(entry.key) and (marker := f" sum {digest} ") in entry.key:
            attempt, transcript = entry.key.split(marker)[1].split(" ")[:2]
            masked = entry.heads["masked"]
            head = ReleasedHead(pending.client, masked, PublicMap(), entry.releases[0])
            # the sensitivity of a sum is that of any number of records
            pending.secure.step.check_release(head, num_positives=1, num_negatives=0)
            found[int(attempt)] = transcript, masked
    return found


class Collector:
    """Collects secure sums at the server; ``groups`` are the sites of each architecture."""

    def __init__(
        self, server: "SiteClients", step: Step, groups: Mapping[str, Sequence[str]]
    ) -> None:
        self.server = server
        self.step = step
        self.groups = groups
        self.privacy = step.scoring.privacy
        # the second sum is used only if it is over all sites of the first
        count = sum(map(len, groups.values()))
        self.least = count if step.sends else self.privacy.least_clients
        self.attempts = 0  # of all sums so far
        self._number = 0  # of the last attempt, which rises over all servers

    def heads(self, features: ServerFeatures, maps: Mapping[str, PublicMap]) -> list[ReleasedHead]:
        """Return the secure sum over the sites of each architecture."""
        server, step, heads, start = self.server, self.step, [], time.monotonic()
        names, data = server.sites.names, server.context.data
        for group in self.groups.values():  # before the sites of any architecture pay
            self.check(group)
            records = sum(data.site_sizes[names.index(site)] for site in group)
            check_records(step.scorer, records)
        for architecture, group in self.groups.items():
            public_map, model = maps[architecture], features.h0[architecture]
            h0 = {k: v for k, v in model.state_dict().items() if not of_head(k)}
            digest = sum_digest(server.agreement, architecture, step, h0, public_map)
            secure = SecureSum(step, public_map.row_length(model), len(data.classes), 1)
            length = step.scorer.vector_length(secure.row_length, secure.num_classes)
            joined, total = self.collect(digest, group, length)
            for site in names:
                server.status.change(site, in_sum=site in joined)
            members = sorted(names.index(site) for site in joined)
            secure = replace(secure, summands=len(members))
            head = secure.head(members, total, public_map, server.sites.rehearsal)
            records = sum(data.site_sizes[client] for client in members)
            largest = step.scorer.largest_norm(records, 0) * (1 + 1e-3)
            if not bool((head.weight.abs() <= largest + 40 * head.release.total_sigma).all()):
                raise PrivacyError(
                    "the secure sum is larger than any data and noise can be: the masks have not "
                    "cancelled, or a site has sent a false vector"
                )
            heads.append(head)
        server.sum_metrics["secure_sum/attempts"] += self.attempts
        server.sum_metrics["secure_sum/seconds"] += time.monotonic() - start
        return heads

    def collect(self, digest: str, names: Sequence[str], length: int) -> tuple[list[str], Tensor]:
        """Return the sites of a secure sum, and the sum of their vectors of this length.

        Raises a ConfigurationError if the attempts that the budget pays for have failed.
        """
        start, lost = time.monotonic(), 0
        path = state_folder() / "secure_sums" / f"{digest}.json"
        attempt = _read_attempt(path)
        is_new = False  # an attempt of an earlier run was paid for then
        while True:
            if attempt is None:
                is_new, attempt = True, self._keys(digest, names)
                write_json_atomically(path, attempt)
            self.attempts, joined = self.attempts + 1, sorted(attempt["keys"])
            answers, refusals = self._masked(digest, attempt, length)
            try:
                total = add_masked(answers, joined)
            except RefusalError as error:
                reasons = [f"{name}: {first_line(why)}" for name, why in refusals.items()]
                reason = "; ".join(reasons) or first_line(error)
                tell(f"secure sum, attempt {self.attempts} failed: {reason}")
            else:
                seconds = time.monotonic() - start
                size = 8 * length * len(answers) / 1e6
                tell(
                    f"secure sum over {', '.join(joined)}: {length:,} numbers, attempt "
                    f"{self.attempts}, {size:.2f} MB, {seconds:.1f} s"
                )
                return joined, total
            if not is_new and any(error.code in _LATER for error in refusals.values()):
                raise ConfigurationError(
                    f"an earlier run began this secure sum with sites that are absent ({reason}): "
                    f"start them, or delete {path}, which costs the others one more attempt"
                )
            names = [n for n in names if n not in refusals or refusals[n].code not in FINAL]
            self.check(names, reason)
            lost += is_new and bool(answers)  # if none has left a site, nothing was spent
            if lost >= self.privacy.attempts:
                raise ConfigurationError(
                    f"the secure sum failed in {lost} of {self.privacy.attempts} attempts, which "
                    f"cost the sites their budget ({reason}): agree on more privacy.attempts in "
                    "run.yaml (each has its part of epsilon), or on a higher --epsilon_limit"
                )
            attempt = None
            time.sleep(_RETRY)

    def check(self, names: Sequence[str], reason: str = "the others are absent or refuse") -> None:
        """Raise a ConfigurationError unless there are enough sites."""
        if len(names) < self.least:
            raise ConfigurationError(
                f"a secure sum needs {self.least} sites, but has {', '.join(names) or 'none'} "
                f"({reason}): start the others, agree with them on the same run.yaml, within their "
                "limits, or set privacy.sums to local"
            )

    def _keys(self, digest: str, names: Sequence[str]) -> dict[str, Any]:
        """Step 1, until enough sites have sent keys; it costs nothing."""
        start = time.monotonic()
        while True:
            self._number = number = max(self._number + 1, int(100 * time.time()))
            question = Message({"sum": digest, "attempt": number, "sites": len(names)})
            keys, reasons = {}, []

            def read(name: str, answer: Message, number: int = number) -> Any:
                message = answer.fields.get("keys")
                if read_keys(message, digest, number, self.privacy.pins).name != name:
                    raise RefusalError("message", "it is of another site")
                return message

            for name, answer in self.server.ask("keys", dict.fromkeys(names, question), read):
                if isinstance(answer, RefusalError):
                    reasons.append(f"no key of {name}: {first_line(answer)}")
                    names = [n for n in names if n != name or answer.code not in FINAL]
                else:
                    keys[name] = answer
            if len(keys) >= self.least:
                for text in reasons:
                    tell(text)
                return {"attempt": number, "keys": keys}
            is_late = time.monotonic() - start > self.server.sites.wait
            self.check(list(keys) if is_late else names, "; ".join(reasons))
            time.sleep(_RETRY)

    def _masked(
        self, digest: str, attempt: Mapping[str, Any], length: int
    ) -> tuple[dict[str, Sent], dict[str, RefusalError]]:
        """Step 2: the answers and the refusals; sites whose answer is lost are asked again."""
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
            for name, answer in self.server.ask("masked", missing, read):
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
            "sites that have sent their vectors one more attempt"
        ) from error
