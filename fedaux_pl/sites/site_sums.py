"""Secure sums at a site: a vector of which nothing leaves, then a key, then the masked vector.

One masked vector leaves for the keys of an attempt: asked again, the site sends the same bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.preparation import create_extractor
from fedaux_pl.scoring import PublicMap, ReleasedHead, Step, spent
from fedaux_pl.scoring.budget import ALONE, Attempt, Budget, NewRelease, ReleaseKey
from fedaux_pl.scoring.plan import check_records, first_step
from fedaux_pl.scoring.secure_sums import SecureSum
from fedaux_pl.sites import wire
from fedaux_pl.sites.secure_sum import (
    MAX_ATTEMPT,
    MAX_SITES,
    Member,
    Sent,
    signing_key,
    sum_digest,
)
from fedaux_pl.sites.wire import RefusalError, Reply

MAX_PENDING = 4  # vectors that a site keeps; a run needs two, one after the other


@dataclass
class Pending:
    """A secure sum for which this site has computed its vector."""

    digest: str
    member: Member
    secure: SecureSum  # with as few sites as it needs
    client: int
    key: ReleaseKey
    integers: Tensor | None = None  # the vector, before noise
    attempts: int = 0  # in which a masked vector has left
    sent: dict[int, Sent] = field(default_factory=dict)  # in the last attempt of a rehearsal


class SiteSums:
    """The secure sums of a site; ``agreement`` is what it compares with the server's."""

    def __init__(
        self,
        federation: Federation,
        clients: LocalClients,
        name: str,
        budget: Budget,
        agreement: Mapping[str, Any],
    ) -> None:
        first = first_step(federation.plan)
        self.federation = federation
        self.clients = clients
        self.name = name
        self.budget = budget
        self.agreement = agreement
        self.secure = first.secure
        self._pending: dict[str, Pending] = {}
        self._create_member()  # raises if the pins do not fit
        check_records(first.scorer, federation.data.client_sizes[0])
        if budget.ledger is not None and ALONE not in budget.limits:
            raise ConfigurationError(
                "this run has secure sums: state with --epsilon_limit_alone what the noise of "
                "this site alone may cost, if the other sites and the server deceive it (with "
                f"all sites it costs {self._cost_alone():.4g}, with fewer less), or set "
                "privacy.secure to null"
            )

    def _create_member(self) -> Member:
        key = signing_key(self.name)
        return Member(self.name, key, self.secure.pins, self.secure.colluders)

    def _cost_alone(self) -> float:
        """Return epsilon of all releases with all sites, by the noise of this site alone."""
        sites = max(self.federation.clients.values())
        releases = []
        plan = self.federation.plan
        for step in plan.values():
            cost = step.cost(1.0, simulated=False, summands=sites if step.summed else 1)
            releases += [cost] * step.attempts
        delta = first_step(plan).scoring.privacy.delta
        return 1.001 * spent(releases, delta, alone=True)[0]  # printed, not below it

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
        federation = self.federation
        name = federation.architectures[client]
        student = federation.students[name]
        digest = sum_digest(self.agreement, name, step, h0, public_map)
        pending = self._pending.get(digest)
        if pending is None:
            member = self._create_member()
            classes = len(federation.data.classes)
            secure = SecureSum(step, public_map.row_length(student), classes, member.least)
            try:
                secure.check()  # the server may send another number of dimensions than agreed
            except ConfigurationError as error:
                raise RefusalError("settings", str(error)) from error
            pending = Pending(digest, member, secure, client, key)
        if not self._sent(pending):
            self.budget.check(key, pending.secure.cost(simulated=False))
        if pending.integers is None:
            extractor = create_extractor(student, h0)
            pending.integers = self.clients.integers(client, step, extractor, public_map)
        self._pending.pop(digest, None)
        self._pending[digest] = pending
        if len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]

    def answer(self, fields: Mapping[str, Any]) -> Reply:
        """Answer step 1 by a key for an attempt, step 2 by its masked vector, in the ledger."""
        pending = self._pending.get(str(fields.get("sum", "")))
        if pending is None:
            raise RefusalError("message", "it asks for a secure sum that it has not prepared")
        number = wire.read_count(fields, "attempt", MAX_ATTEMPT)
        sent = self._sent(pending)
        if fields["kind"] == "keys":
            sites = max(wire.read_count(fields, "sites", MAX_SITES), pending.member.least)
            planned = replace(pending.secure, summands=sites).cost(simulated=False)
            self.budget.check(pending.key, planned)
            message = pending.member.keys(pending.digest, number, max(sent, default=0))
            return {"keys": message}, wire.write_tensors({}), "a key: nothing depends on data"
        about = "the masked vector that it has sent before: nothing new"
        if number not in sent:
            sent[number], about = self._release(pending, number, fields.get("messages"))
        transcript, masked = sent[number]
        return {"transcript": transcript}, wire.write_tensors({"masked": masked}), about

    def _release(self, pending: Pending, number: int, messages: object) -> tuple[Sent, str]:
        integers = pending.integers
        assert integers is not None  # noqa: S101 - ``add`` has computed it
        session = pending.member.open(pending.digest, number, messages)
        secure = replace(pending.secure, summands=len(session.names))
        cost = secure.cost(simulated=self.budget.ledger is None)
        names = ", ".join(session.names)
        attempt = Attempt(pending.digest, number, session.transcript, names)

        def mask() -> NewRelease:
            pending.attempts += 1
            noise = self.clients.noise_bytes(
                pending.client, secure.step, integers, pending.attempts
            )
            return {"masked": session.mask(secure.add_noise(integers, noise))}, {0: cost}

        key = replace(pending.key, attempt=attempt)
        tensors, total = self.budget.release_once(key, mask, cost)
        sent = (session.transcript, tensors["masked"])
        about = f"a masked vector in the sum over {names}"
        if total is None:
            pending.sent = {number: sent}
            return sent, f"{about}: NOT private (a rehearsal)"
        return sent, (
            f"{about}, which is (epsilon {cost.epsilon:g}, "
            f"delta {cost.delta:g})-private, alone epsilon {cost.epsilon_alone:.4g}; spent "
            f"so far: epsilon {total.epsilon:.4g}, alone {total.epsilon_alone:.4g}, in at most "
            f"{total.releases} about a record"
        )

    def _sent(self, pending: Pending) -> dict[int, Sent]:
        """What has left in each attempt; raise a PrivacyError if it has less noise than needed."""
        sent = dict(pending.sent)
        for entry in self.budget.entries():
            attempt = pending.key.attempt_of(entry.key)
            if attempt is not None and attempt.digest == pending.digest:
                masked = entry.heads["masked"]
                head = ReleasedHead(pending.client, masked, PublicMap(), entry.releases[0])
                # the sensitivity of a sum is that of any number of records
                pending.secure.step.check_release(head, num_positives=1, num_negatives=0)
                sent[attempt.number] = (attempt.transcript, masked)
        return sent
