"""Secure sums at a site: it computes its vector, sends a key, then the masked vector.

Each attempt has one masked vector: asked for it again, the site sends the same bytes.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.preparation import create_extractor
from fedaux_pl.scoring import (
    PublicMap,
    ReleasedHead,
    SecureSum,
    Step,
    check_records,
    first_step,
    spent,
)
from fedaux_pl.sites import wire
from fedaux_pl.sites.budget import ALONE, Attempt, Budget, NewRelease, ReleaseKey
from fedaux_pl.sites.secure_sum import (
    MAX_ATTEMPT,
    MAX_SITES,
    Member,
    Sent,
    signing_key,
    sum_digest,
)
from fedaux_pl.sites.wire import RefusalError, Reply

MAX_PENDING = 4  # sums whose vector a site keeps; a run needs two, one after the other


@dataclass
class Pending:
    """A secure sum for which this site has computed its vector."""

    digest: str
    member: Member
    secure_sum: SecureSum  # over the fewest sites that it may have
    client: int
    key: ReleaseKey
    integers: Tensor = field(init=False)  # the vector, before noise
    sent: dict[int, Sent] = field(default_factory=dict)  # by the last attempt of a rehearsal


class SiteSums:
    """The secure sums of a site; ``agreement`` are the settings that server and sites share."""

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
        self.options = first.secure
        self._pending: OrderedDict[str, Pending] = OrderedDict()  # the one asked for last is last
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
        return Member(self.name, key, self.options.pins, self.options.colluders)

    def _cost_alone(self) -> float:
        """Return epsilon of all releases with all sites, by the noise of this site alone."""
        sites = max(self.federation.clients.values())
        plan = self.federation.plan
        releases = [
            step.cost(1.0, simulated=False, summands=sites if step.summed else 1)
            for step in plan.values()
        ]
        delta = first_step(plan).scoring.privacy.delta
        epsilon, _ = spent(releases, delta, alone=True)
        return 1.001 * epsilon  # so that the printed number, rounded, is not below it

    def add(
        self,
        client: int,
        step: Step,
        h0: Mapping[str, Tensor],
        public_map: PublicMap,
        key: ReleaseKey,
    ) -> None:
        """Compute the vector of a sum, unless it is kept, if the budget allows its release.

        A site that cannot pay refuses here, or when it is asked for a key: a later refusal would
        cost the other sites their attempt. The vectors asked for last are kept.
        """
        federation = self.federation
        name = federation.architectures[client]
        student = federation.students[name]
        digest = sum_digest(self.agreement, name, step, h0, public_map)
        pending = self._pending.get(digest)
        if pending is None:
            member = self._create_member()
            classes = len(federation.data.classes)
            row_length = public_map.row_length(student)
            secure_sum = SecureSum(step, row_length, classes, member.least)
            try:
                secure_sum.check()  # the server may send another number of dimensions than agreed
            except ConfigurationError as error:
                raise RefusalError("settings", str(error)) from error
            pending = Pending(digest, member, secure_sum, client, key)
        if not self._sent(pending):
            self.budget.check(key, pending.secure_sum.cost(simulated=False))
        if digest not in self._pending:
            extractor = create_extractor(student, h0)
            pending.integers = self.clients.integers(client, step, extractor, public_map)
        self._pending[digest] = pending
        self._pending.move_to_end(digest)
        if len(self._pending) > MAX_PENDING:
            self._pending.popitem(last=False)

    def answer(self, fields: Mapping[str, Any]) -> Reply:
        """Answer ``keys`` by a key for an attempt, ``masked`` by the masked vector, which costs."""
        pending = self._pending.get(str(fields.get("sum", "")))
        if pending is None:
            raise RefusalError("message", "it asks for a secure sum that it has not prepared")
        number = wire.read_count(fields, "attempt", MAX_ATTEMPT)
        sent = self._sent(pending)
        if fields["kind"] == "keys":
            sites = max(wire.read_count(fields, "sites", MAX_SITES), pending.member.least)
            planned = replace(pending.secure_sum, summands=sites).cost(simulated=False)
            self.budget.check(pending.key, planned)
            message = pending.member.keys(pending.digest, number, max(sent, default=0))
            return {"keys": message}, wire.write_tensors({}), "a key: nothing depends on data"
        guarantee = "the masked vector that it has sent before: nothing new"
        if number not in sent:
            sent[number], guarantee = self._release(pending, number, fields.get("messages"))
        transcript, masked = sent[number]
        return {"transcript": transcript}, wire.write_tensors({"masked": masked}), guarantee

    def _release(self, pending: Pending, number: int, messages: object) -> tuple[Sent, str]:
        session = pending.member.open(pending.digest, number, messages)
        secure_sum = replace(pending.secure_sum, summands=len(session.names))
        cost = secure_sum.cost(simulated=self.budget.ledger is None)
        names = ", ".join(session.names)
        attempt = Attempt(pending.digest, number, session.transcript, names)

        def mask() -> NewRelease:
            integers = pending.integers
            noise = self.clients.noise_bytes(pending.client, secure_sum.step, integers)
            return {"masked": session.mask(secure_sum.add_noise(integers, noise))}, {0: cost}

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
            f"{total.releases} about a record{total.describe_updates()}"
        )

    def _sent(self, pending: Pending) -> dict[int, Sent]:
        """Return what has left, by attempt; raise a PrivacyError if it has too little noise."""
        sent = dict(pending.sent)
        for entry in self.budget.entries():
            attempt = pending.key.attempt_of(entry.key)
            if attempt is not None and attempt.digest == pending.digest:
                masked = entry.heads["masked"]
                head = ReleasedHead(pending.client, masked, PublicMap(), entry.releases[0])
                # the sensitivity does not depend on the number of records
                pending.secure_sum.step.check_release(head, num_positives=1, num_negatives=0)
                sent[attempt.number] = (attempt.transcript, masked)
        return sent
