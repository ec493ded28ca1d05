"""What may still be released about the records of a site, by its ledger and its limits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from torch import Tensor

from fedaux_pl.data import Examples
from fedaux_pl.data.fingerprints import key_id, machine_key
from fedaux_pl.errors import PrivacyError, counted
from fedaux_pl.files import NameTakenError
from fedaux_pl.functional import gaussian_epsilon, gaussian_sigma
from fedaux_pl.functional.privacy import MIN_EPSILON
from fedaux_pl.scoring import Release
from fedaux_pl.sites.ledger import Digests, Entry, Ledger, PrivacySpent, ledger_digests
from fedaux_pl.sites.ledger_keys import ReleaseKey

ALONE = "epsilon_limit_alone"
"""The option that limits what holds if the other sites of a secure sum protect nothing."""

NewRelease = tuple[Mapping[str, Tensor], Mapping[int, Release]]
"""The tensors that are to leave the site, and what they cost each client."""


@dataclass
class Budget:
    """The ledger of a site, the records that releases are about, and what they may cost.

    Attributes:
        ledger: None in a rehearsal, where nothing is limited and no entry is written.
        digests: The keyed digests of each client's records. A site is always client 0.
        delta: The delta at which the limits hold and the total is stated.
        limits: The largest epsilon that all releases about a record may cost together, by the name
            of the option that states it.
        allow_new_h0: Whether to release again if the server now sends other tensors than before.
    """

    ledger: Ledger | None
    digests: Mapping[int, Digests]
    delta: float
    limits: Mapping[str, float] = field(default_factory=dict)
    allow_new_h0: bool = False

    @classmethod
    def of_records(
        cls,
        records: Examples,
        origin: str,
        delta: float,
        limits: Mapping[str, float] | None = None,
        allow_new_h0: bool = False,
    ) -> Self:
        """Return the budget of these records in the ledger of this machine.

        ``origin`` is what new entries say about where they come from.
        """
        key = machine_key()
        digests = {0: ledger_digests(records.inputs, records.targets, key)}
        ledger = Ledger(key_id(key), origin=origin)
        return cls(ledger, digests, delta, limits or {}, allow_new_h0)

    def release_once(
        self,
        key: ReleaseKey,
        release: Callable[[], NewRelease],
        planned: Release,
    ) -> tuple[Mapping[str, Tensor], PrivacySpent | None]:
        """Return the tensors of the entry with this key, or make the release and its entry.

        Also returns what all releases cost so far; None in a rehearsal. Every later request with
        the same key gets the tensors of the entry. The limits are checked before ``release``
        computes anything, and again before the entry is written, because the ledger is not locked
        in between. If another process has added the same release in the meantime, its tensors are
        returned and the new ones are dropped.

        Args:
            key: All that determines the release.
            release: Computes the release.
            planned: What the release will cost.
        """
        ledger = self.ledger
        if ledger is None:
            tensors, _ = release()
            return tensors, None

        def find_or_add(new: NewRelease | None) -> tuple[Mapping[str, Tensor], PrivacySpent] | None:
            with ledger.locked():
                while True:
                    try:
                        return self._find_or_add(ledger, key, planned, new)
                    except NameTakenError:
                        continue  # a process that the lock did not exclude was faster: read again

        result = find_or_add(None) or find_or_add(release())
        assert result is not None  # noqa: S101 - for mypy
        return result

    def _find_or_add(
        self,
        ledger: Ledger,
        key: ReleaseKey,
        planned: Release,
        new: NewRelease | None,
    ) -> tuple[Mapping[str, Tensor], PrivacySpent] | None:
        """Return the tensors of the entry and the total; None without an entry and without ``new``.

        If there is no entry with this key, ``new`` becomes one. Raises a NameTakenError if another
        process has added an entry since this one has read them.
        """
        entries = ledger.entries()
        entry = next((entry for entry in reversed(entries) if entry.key == str(key)), None)
        if entry is None:
            if self.limits:
                self._check(ledger, entries, key, planned)
            if new is None:
                return None
            entry = Entry(str(key), *new, self.digests)
            ledger.add(entry, number=len(entries) + 1)
            entries.append(entry)
        return entry.heads, self._total(ledger, entries)

    def entries(self) -> list[Entry]:
        """Return the entries of the ledger; none in a rehearsal."""
        if self.ledger is None:
            return []
        with self.ledger.locked():
            return self.ledger.entries()

    def check(self, key: ReleaseKey, planned: Release) -> None:
        """Raise a PrivacyError if the ledger and the limits do not allow a new release."""
        if self.ledger is not None:
            self._check(self.ledger, self.entries(), key, planned)

    def total(self) -> PrivacySpent:
        """Return what all releases about these records cost so far; there must be a ledger."""
        assert self.ledger is not None  # noqa: S101 - the caller has a ledger
        return self._total(self.ledger, self.entries())

    def _total(self, ledger: Ledger, entries: Sequence[Entry]) -> PrivacySpent:
        return ledger.total([*self.digests.values()], self.delta, entries=entries)

    def _check(
        self, ledger: Ledger, entries: Sequence[Entry], key: ReleaseKey, planned: Release
    ) -> None:
        earlier = key.earlier
        if earlier is not None and not any(earlier.is_same_release(e.key) for e in entries):
            raise PrivacyError(
                "the server asks for a later step, but the ledger does not have the first one with "
                "this h_0 and feature map: let the server ask for the first one before"
            )
        others = [entry for entry in entries if key.differs_in_received(entry.key)]
        if others and not self.allow_new_h0:
            raise PrivacyError(
                "the ledger has a release with these settings about these data "
                f"({others[-1].describe()}), but the server now sends another h_0, feature map, "
                "negatives or classifier, so this would be a second release: let the server use "
                "what it sent before (in its state folder and cache), or start the site with "
                f"--allow_new_h0 true, which costs epsilon {planned.epsilon:.4g} again, within its "
                "epsilon_limit"
            )
        after = [*entries, Entry("", {}, dict.fromkeys(self.digests, planned), self.digests)]
        total = self._total(ledger, after)
        for option, limit in self.limits.items():
            is_alone = option == ALONE
            epsilon = total.epsilon_alone if is_alone else total.epsilon
            if epsilon > limit:
                about = " by the noise of this site alone" if is_alone else ""
                reason = (
                    f"with this release the cost would be epsilon {epsilon:.4g}{about}, above the "
                    f"{option} {limit:g}{total.describe_updates()}"
                )
                digests = np.concatenate([*self.digests.values()])
                earlier_entries = [entry for entry in entries if entry.is_about(digests)]
                if earlier_entries:
                    rest = self._remaining(ledger, entries, limit, is_alone)
                    count = counted(total.releases - 1, "earlier release")
                    reason += (
                        f", of which epsilon {rest:.4g} is left: the ledger has {count} about "
                        f"these records, the last of {earlier_entries[-1].describe()}"
                    )
                raise PrivacyError(reason)

    def _remaining(
        self, ledger: Ledger, entries: Sequence[Entry], limit: float, is_alone: bool
    ) -> float:
        """Return how much of a limit is left, slightly less so that rounding does not exceed it."""
        before = self._total(ledger, entries)
        spent = before.epsilon_alone if is_alone else before.epsilon
        if before.updates:  # updates have no mu: their epsilons are added
            rest = max(0.0, limit - spent)
        else:
            rest = remaining_epsilon(limit, spent, self.delta)
        return 0.999 * rest


def remaining_epsilon(limit: float, epsilon: float, delta: float) -> float:
    """Return what one more Gaussian release may cost within a limit, of which epsilon is spent.

    This is more than ``limit - epsilon``, because not the epsilons add up but the mu^2 of Gaussian
    differential privacy.

    Examples:
        >>> round(remaining_epsilon(limit=1.0, epsilon=0.8, delta=1e-5), 3)
        0.549
    """
    if epsilon >= limit:
        return 0.0
    whole, used = (gaussian_sigma(max(e, MIN_EPSILON), delta, 1.0) for e in (limit, epsilon))
    squared = whole**-2 - used**-2
    return gaussian_epsilon(delta, squared**-0.5) if squared > 0 else 0.0
