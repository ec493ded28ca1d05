"""The secure sums of a site: its vectors, the keys of attempts, and the ledger's entry before each.

First the site computes its vector, of which nothing leaves. Then the server asks for a key and for
the masked vector. One masked vector leaves for the keys of an attempt: asked again, the site sends
the same bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.scoring import Ledger, PublicMap, Release, Scoring
from fedaux_pl.scoring.ledger import Digests, Entry, ReleaseKey
from fedaux_pl.scoring.secure_sums import ReadBytes, SecureSum
from fedaux_pl.sites.secure_sum import MAX_ATTEMPT, MAX_SITES, Member, agreement_digest
from fedaux_pl.sites.wire import Answer, RefusalError, read_count, write_tensors


def sum_digest(
    agreement: Mapping[str, Any],
    architecture: str,
    scoring: Scoring,
    h0: Mapping[str, Tensor],
    public_map: PublicMap,
) -> str:
    """Return the digest A of all that determines a secure sum, the same at server and sites.

    The rest of the agreement is compared with every request, but another seed or local training
    makes no other sum, for which sites would pay again.
    """
    sent = scoring.scorer.tensors()
    tensors = [*h0.values(), *public_map.tensors().values(), *sent.values()]
    return agreement_digest(
        {
            **{name: agreement[name] for name in ("format", "model_options", "classes")},
            "architecture": architecture,
            "secret": scoring.privacy.secret,
            "release": scoring.release_settings(),
            "received": tensor_digest(*tensors),
            "bound": public_map.bound,
        }
    )


@dataclass
class Pending:
    """A secure sum for which this site has computed its vector.

    Attributes:
        member: This site in its attempts.
        secure: The sum, with as few sites as it needs.
        integers: The vector, before noise.
        noise: Returns the source of the noise, given the number of vectors that have left.
        key: The key of the release in the ledger.
        earlier: That of the release which must be in the ledger before; None for none.
        sent: The transcript and the masked vector of each attempt, for a rehearsal.
    """

    member: Member
    secure: SecureSum
    integers: Tensor
    noise: Callable[[int], ReadBytes]
    key: ReleaseKey
    earlier: ReleaseKey | None
    sent: dict[int, tuple[str, Tensor]] = field(default_factory=dict)


class SecureReleases:
    """Answers the two steps of secure sums.

    Args:
        ledger: The ledger and the digests of the records; None in a rehearsal.
        check: Raises if the budget does not allow a release, given all entries, its key, that of
            the release before, and its record.
    """

    def __init__(
        self,
        ledger: tuple[Ledger, Digests] | None,
        check: Callable[[Sequence[Entry], ReleaseKey, ReleaseKey | None, Release], None],
    ) -> None:
        self.ledger, self.check = ledger, check
        self._pending: dict[str, Pending] = {}

    def add(self, digest: str, compute: Callable[[], Pending]) -> None:
        """Compute a vector, unless it is there.

        A site that cannot pay says so here, or when it is asked for a key: later, its refusal
        would cost the other sites their attempt.
        """
        if digest not in self._pending:
            self._pending[digest] = compute()
        pending, entries = self._pending[digest], self._entries()
        if not _sent(pending, digest, entries):
            self._check(pending, pending.secure, entries)

    def keys(self, fields: Mapping[str, Any]) -> Answer:
        """Step 1: a key for an attempt."""
        digest, pending = self._find(fields)
        sites = max(read_count(fields, "sites", MAX_SITES), pending.member.least)
        entries = self._entries()
        self._check(pending, replace(pending.secure, summands=sites), entries)
        attempt = read_count(fields, "attempt", MAX_ATTEMPT)
        last = max(_sent(pending, digest, entries), default=0)
        message = pending.member.keys(digest, attempt, last)
        return {"keys": message}, write_tensors({}), "a key: nothing depends on data"

    def masked(self, fields: Mapping[str, Any]) -> Answer:
        """Step 2: the masked vector of an attempt, once it is in the ledger."""
        digest, pending = self._find(fields)
        attempt = read_count(fields, "attempt", MAX_ATTEMPT)
        about = "the masked vector that it has sent before: nothing new"
        if (sent := _sent(pending, digest, self._entries()).get(attempt)) is None:
            sent, about = self._release(pending, digest, attempt, fields.get("messages"))
        transcript, masked = sent
        return {"transcript": transcript}, write_tensors({"masked": masked}), about

    def _release(
        self, pending: Pending, digest: str, attempt: int, messages: object
    ) -> tuple[tuple[str, Tensor], str]:
        session = pending.member.open(digest, attempt, messages)
        secure = replace(pending.secure, summands=len(session.names))
        record = secure.record(simulated=self.ledger is None)
        noise = pending.noise(len(pending.sent) + 1)
        masked = session.mask(secure.add_noise(pending.integers, noise))
        names = ", ".join(session.names)
        about = f"a masked vector in the sum over {names}: NOT private (a rehearsal)"
        if self.ledger is not None:
            ledger, digests = self.ledger
            key = pending.key.of_attempt(f"{digest} {attempt} {session.transcript} {names}")
            with ledger.locked():
                entries = ledger.entries()
                self.check(entries, pending.key, pending.earlier, record)
                entries.append(Entry(key, {"masked": masked}, {0: record}, {0: digests}))
                ledger.add(entries[-1])
            total, alone = (
                ledger.total([digests], record.delta, alone=alone, entries=entries)
                for alone in (False, True)
            )
            about = (
                f"a masked vector in the sum over {names}, which is (epsilon {record.epsilon:g}, "
                f"delta {record.delta:g})-private, alone epsilon {record.epsilon_alone:.4g}; spent "
                f"so far: epsilon {total.epsilon:.4g}, alone {alone.epsilon:.4g}, in at most "
                f"{total.releases} about a record"
            )
        pending.sent[attempt] = session.transcript, masked
        return pending.sent[attempt], about

    def _entries(self) -> list[Entry]:
        """The ledger; empty in a rehearsal."""
        if self.ledger is None:
            return []
        with self.ledger[0].locked():
            return self.ledger[0].entries()

    def _check(self, pending: Pending, secure: SecureSum, entries: Sequence[Entry]) -> None:
        """Raise if this site cannot pay for an attempt."""
        if self.ledger is not None:
            self.check(entries, pending.key, pending.earlier, secure.record(simulated=False))

    def _find(self, fields: Mapping[str, Any]) -> tuple[str, Pending]:
        digest = str(fields.get("sum", ""))[:64]
        if digest not in self._pending:
            raise RefusalError("message", "it asks for a secure sum that it has not prepared")
        return digest, self._pending[digest]


def _sent(pending: Pending, digest: str, entries: Sequence[Entry]) -> dict[int, tuple[str, Tensor]]:
    """The transcript and the masked vector of each attempt in which one has left."""
    found = dict(pending.sent)
    for entry in entries:
        if pending.key.is_of(entry.key) and (marker := f" sum {digest} ") in entry.key:
            attempt, transcript = entry.key.split(marker)[1].split(" ")[:2]
            found[int(attempt)] = transcript, entry.heads["masked"]
    return found


def masked_like(length: int) -> dict[str, Tensor]:
    """Return what the server expects of step 2."""
    return {"masked": torch.empty(length, dtype=torch.int64)}
