"""Secure sums at a site: it computes its vector, then sends a key, then the masked vector.

Only the masked vector depends on data, and it costs epsilon. Each attempt at a sum has one masked
vector: if the server asks for it again, the site sends the same bytes.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from fedaux_pl.data import FederatedDataModule
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.scoring import (
    Plan,
    PublicMap,
    ReleasedHead,
    SecureSum,
    check_records,
    first_step,
    spent,
)
from fedaux_pl.sites.budget import ALONE, Budget, NewRelease
from fedaux_pl.sites.ledger_keys import MASKED_VECTOR, Attempt, ReleaseKey, sum_digest
from fedaux_pl.sites.messages.prepare import ReleaseRequest
from fedaux_pl.sites.received_models import ReceivedModels
from fedaux_pl.sites.secure_sum import Member, SentVector, signing_key
from fedaux_pl.sites.wire import RefusalError

MAX_PENDING = 4
"""How many vectors a site keeps. A run needs two, one after the other."""


@dataclass
class PendingSum:
    """A secure sum to which this site adds its vector.

    Attributes:
        digest: The digest of the sum.
        member: Makes the keys of this site, attempt by attempt.
        secure_sum: The sum over the fewest sites that it may have.
        client: The number of the client that this site is.
        key: The key of the release in the ledger, without an attempt.
        integers: The vector of this site before noise, computed once the budget allows it.
        rehearsed: In a rehearsal, which has no ledger, the last masked vector by its attempt.
    """

    digest: str
    member: Member
    secure_sum: SecureSum
    client: int
    key: ReleaseKey
    integers: Tensor = field(init=False)
    rehearsed: dict[int, SentVector] = field(default_factory=dict)


class SiteSums:
    """The secure sums of a site, which the budget must allow.

    Raises a ConfigurationError if the pins do not fit to the key of this site, its records are too
    many, or its owner has not limited what the noise of this site alone may cost.

    Args:
        plan: The steps in which clients release.
        models: The models, whose features the site computes.
        data: The data of the site.
        clients: Computes the vector and reads the noise.
        name: The name of the site, to which its signing key belongs.
        budget: The ledger of the site and its limits.
        agreement: The settings that server and sites share.
    """

    def __init__(
        self,
        plan: Plan,
        models: ReceivedModels,
        data: FederatedDataModule,
        clients: LocalClients,
        name: str,
        budget: Budget,
        agreement: Mapping[str, Any],
    ) -> None:
        first = first_step(plan)
        self.models = models
        self.data = data
        self.clients = clients
        self.name = name
        self.budget = budget
        self.agreement = agreement
        self.options = first.secure
        self.pending: OrderedDict[str, PendingSum] = OrderedDict()  # the last one asked for is last
        self._create_member()  # raises if the pins do not fit
        check_records(first.scorer, data.client_sizes[0])
        if budget.ledger is not None and ALONE not in budget.limits:
            epsilon = _epsilon_alone(plan, models.architectures)
            raise ConfigurationError(
                "this run has secure sums: state with --epsilon_limit_alone what the noise of "
                "this site alone may cost, if the other sites and the server deceive it (with "
                f"all sites it costs {epsilon:.4g}, with fewer less), or set privacy.secure to null"
            )

    def _create_member(self) -> Member:
        return Member(self.name, signing_key(self.name), self.options.pins, self.options.colluders)

    def add(self, client: int, received: ReleaseRequest, key: ReleaseKey) -> None:
        """Compute the vector of a sum and keep it, if the budget allows its release.

        A site that cannot pay must refuse here or when it is asked for a key, because a later
        refusal would cost the other sites their epsilon. Only the last `MAX_PENDING` vectors are
        kept.
        """
        step = received.step
        public_map = received.public_map
        architecture = self.models.architectures[client]
        digest = sum_digest(self.agreement, architecture, step, received.h0, public_map)
        pending = self.pending.get(digest)
        if pending is None:
            member = self._create_member()
            row_length = public_map.row_length(self.models.students[architecture])
            secure_sum = SecureSum(step, row_length, len(self.data.classes), member.least)
            try:
                secure_sum.check()  # the server may send more dimensions than agreed
            except ConfigurationError as error:
                raise RefusalError("settings", str(error)) from error
            pending = PendingSum(digest, member, secure_sum, client, key)
        if not self._sent_vectors(pending):
            self.budget.check(key, pending.secure_sum.cost(simulated=False))
        if digest not in self.pending:
            h0 = self.models.create_h0(architecture, received.h0)
            pending.integers = self.clients.integers(client, step, h0, public_map)
        self.pending[digest] = pending
        self.pending.move_to_end(digest)
        if len(self.pending) > MAX_PENDING:
            self.pending.popitem(last=False)

    def create_key(self, digest: str, attempt: int, sites: int) -> dict[str, str]:
        """Return a key message for an attempt over this many sites, if the budget allows it."""
        pending = self._find(digest)
        sent = self._sent_vectors(pending)
        summands = max(sites, pending.member.least)
        planned = replace(pending.secure_sum, summands=summands).cost(simulated=False)
        self.budget.check(pending.key, planned)
        return pending.member.create_key(digest, attempt, after=max(sent, default=0))

    def mask(self, digest: str, attempt: int, key_messages: object) -> tuple[SentVector, str]:
        """Return the masked vector of an attempt, and its guarantee for the journal."""
        pending = self._find(digest)
        sent = self._sent_vectors(pending)
        if attempt in sent:
            return sent[attempt], "the masked vector that it has sent before: nothing new"
        return self._release(pending, attempt, key_messages)

    def _find(self, digest: str) -> PendingSum:
        pending = self.pending.get(digest)
        if pending is None:
            raise RefusalError("message", "it asks for a secure sum that it has not prepared")
        return pending

    def _release(
        self, pending: PendingSum, number: int, key_messages: object
    ) -> tuple[SentVector, str]:
        """Mask the vector with its noise, and add it to the ledger before it leaves."""
        session = pending.member.open(pending.digest, number, key_messages)
        secure_sum = replace(pending.secure_sum, summands=len(session.names))
        cost = secure_sum.cost(simulated=self.budget.ledger is None)
        names = ", ".join(session.names)
        attempt = Attempt(pending.digest, number, session.transcript, names)

        def mask() -> NewRelease:
            integers = pending.integers
            noise = self.clients.noise_bytes(pending.client, secure_sum.step, integers)
            masked = session.mask(secure_sum.add_noise(integers, noise))
            return {MASKED_VECTOR: masked}, {0: cost}

        key = replace(pending.key, attempt=attempt)
        tensors, total = self.budget.release_once(key, mask, cost)
        sent = (session.transcript, tensors[MASKED_VECTOR])
        about = f"a masked vector in the sum over {names}"
        if total is None:
            pending.rehearsed = {number: sent}
            return sent, f"{about}: NOT private (a rehearsal)"
        return sent, (
            f"{about}, which is (epsilon {cost.epsilon:g}, "
            f"delta {cost.delta:g})-private, alone epsilon {cost.epsilon_alone:.4g}; spent "
            f"so far: epsilon {total.epsilon:.4g}, alone {total.epsilon_alone:.4g}, in at most "
            f"{total.releases} about a record{total.describe_updates()}"
        )

    def _sent_vectors(self, pending: PendingSum) -> dict[int, SentVector]:
        """Return the masked vectors that have left this site for a sum, by attempt.

        Raises a PrivacyError if one of them has too little noise.
        """
        sent = dict(pending.rehearsed)
        for entry in self.budget.entries():
            attempt = pending.key.attempt_of(entry.key)
            if attempt is not None and attempt.digest == pending.digest:
                masked = entry.heads[MASKED_VECTOR]
                head = ReleasedHead(pending.client, masked, PublicMap(), entry.releases[0])
                # the sensitivity does not depend on the number of records
                pending.secure_sum.step.check_release(head, num_positives=1, num_negatives=0)
                sent[attempt.number] = (attempt.transcript, masked)
        return sent


def _epsilon_alone(plan: Plan, architectures: Sequence[str]) -> float:
    """Return the epsilon that the noise of one site alone gives all releases, with all sites."""
    sites = max(Counter(architectures).values())
    releases = [
        step.cost(1.0, simulated=False, summands=sites if step.summed else 1)
        for step in plan.values()
    ]
    delta = first_step(plan).scoring.privacy.delta
    epsilon, _ = spent(releases, delta, alone=True)
    return 1.001 * epsilon  # so that the printed number is not rounded to one below it
