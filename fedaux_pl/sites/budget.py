"""What may still be released about the records of a machine: one transaction of its ledger."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedaux_pl.errors import PrivacyError, counted
from fedaux_pl.files import NameTakenError
from fedaux_pl.functional import gaussian_epsilon, gaussian_sigma
from fedaux_pl.functional.privacy import MIN_EPSILON
from fedaux_pl.scoring import Release
from fedaux_pl.sites.ledger import Digests, Entry, Ledger, PrivacySpent

ALONE = "epsilon_limit_alone"
"""The option that limits what holds if secure sums protect nothing."""

NewRelease = tuple[Mapping[str, Tensor], Mapping[int, Release]]
"""The tensors that are to leave, and what they cost each client."""


class Attempt(NamedTuple):
    """An attempt at a secure sum, in which a masked vector leaves a site."""

    digest: str  # of the sum
    number: int
    transcript: str
    names: str  # of the sites


@dataclass(frozen=True)
class ReleaseKey:
    """The key of an entry, whose text is in all ledgers: do not change it.

    Attributes:
        start: The models.
        received: What the server determines.
        end: The settings and the data.
        attempt: The attempt of which the entry is, in a secure sum.
        earlier: The release that must be in the ledger before.
    """

    start: str
    received: str = ""
    end: str = ""
    attempt: Attempt | None = None
    earlier: "ReleaseKey | None" = None

    def __str__(self) -> str:
        attempt = "" if self.attempt is None else " ".join(["", "sum", *map(str, self.attempt)])
        return f"{self.start}{self.received}{attempt}{self.end}"

    def is_like(self, key: str) -> bool:
        """Return whether a key has the same settings and data, whatever was received."""
        return bool(self.received) and key.startswith(self.start) and key.endswith(self.end)

    def is_of(self, key: str) -> bool:
        """Return whether a key is of this release, in whatever attempt."""
        is_whole = key == f"{self.start}{self.received}{self.end}"
        return is_whole or self.attempt_of(key) is not None

    def attempt_of(self, key: str) -> Attempt | None:
        """Return the attempt at this secure sum that a key is of; None for other keys."""
        before = f"{self.start}{self.received} sum "
        if not key.startswith(before) or not key.endswith(self.end):
            return None
        text = key.removeprefix(before).removesuffix(self.end)
        digest, number, transcript, names = text.split(" ", 3)
        return Attempt(digest, int(number), transcript, names)


@dataclass
class Budget:
    """The ledger of a machine, the records that releases are about, and what they may cost.

    Attributes:
        ledger: None in a rehearsal, where nothing is limited and no entry is written.
        digests: The keyed digests of each client's records.
        delta: The delta of the limits and of the total.
        limits: The largest epsilon of all releases about a record, by the option that states it.
        allow_new_h0: Whether a release is allowed if the server has sent other tensors before.
    """

    ledger: Ledger | None
    digests: Mapping[int, Digests]
    delta: float
    limits: Mapping[str, float] = field(default_factory=dict)
    allow_new_h0: bool = False

    def release_once(
        self,
        key: ReleaseKey,
        release: Callable[[], NewRelease],
        planned: Release,
    ) -> tuple[Mapping[str, Tensor], PrivacySpent | None]:
        """Return the tensors of the entry with this key, or new ones with an entry; and the total.

        Later runs and requests get those of the entry. The limits are checked before ``release``
        computes anything, and again before the entry is written. The ledger is not locked while
        it computes: if another run has added the same release meanwhile, the new one is dropped.

        Args:
            key: What determines the release.
            release: Computes it.
            planned: What it will cost.
        """
        ledger = self.ledger
        if ledger is None:
            return release()[0], None

        def settle(new: NewRelease | None) -> tuple[Mapping[str, Tensor], PrivacySpent] | None:
            with ledger.locked():
                while True:
                    try:
                        return self._find_or_add(ledger, key, planned, new)
                    except NameTakenError:
                        continue  # read again: a process that the lock does not exclude was faster

        settled = settle(None) or settle(release())
        assert settled is not None  # noqa: S101 - for mypy
        return settled

    def _find_or_add(
        self,
        ledger: Ledger,
        key: ReleaseKey,
        planned: Release,
        new: NewRelease | None,
    ) -> tuple[Mapping[str, Tensor], PrivacySpent] | None:
        """Return the tensors of an entry and the total; None if there is neither it nor ``new``.

        Raises a NameTakenError if another process has added an entry since this one has read them.
        """
        entries = ledger.entries()
        known = next((entry for entry in reversed(entries) if entry.key == str(key)), None)
        if known is None:
            if self.limits:
                self._check(ledger, entries, key, planned)
            if new is None:
                return None
            known = Entry(str(key), *new, self.digests)
            ledger.add(known, number=len(entries) + 1)
            entries.append(known)
        return known.heads, self._total(ledger, entries)

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

    def _total(self, ledger: Ledger, entries: Sequence[Entry]) -> PrivacySpent:
        return ledger.total([*self.digests.values()], self.delta, entries=entries)

    def _check(
        self, ledger: Ledger, entries: Sequence[Entry], key: ReleaseKey, planned: Release
    ) -> None:
        earlier = key.earlier
        if earlier is not None and not any(earlier.is_of(entry.key) for entry in entries):
            raise PrivacyError(
                "the server asks for a later step, but the ledger does not have the first one with "
                "this h_0 and feature map: let the server ask for it before"
            )
        others = [e for e in entries if key.is_like(e.key) and not key.is_of(e.key)]
        if others and not self.allow_new_h0:
            raise PrivacyError(
                "the ledger has a release with these settings about these data "
                f"({others[-1].describe()}), but the server now sends another h_0, feature map, "
                "negatives or classifier, so it would be a second one: let the server use what it "
                "sent before (in its state folder and cache), or start the site with "
                f"--allow_new_h0 true, which costs epsilon {planned.epsilon:.4g} again, within its "
                "epsilon_limit"
            )
        after = [*entries, Entry("", {}, dict.fromkeys(self.digests, planned), self.digests)]
        total = self._total(ledger, after)
        for option, limit in self.limits.items():
            is_alone = option == ALONE
            epsilon = total.epsilon_alone if is_alone else total.epsilon
            if epsilon <= limit:
                continue
            about = " by the noise of this site alone" if is_alone else ""
            reason = f"with this release the cost would be epsilon {epsilon:.4g}{about}, above the "
            reason += f"{option} {limit:g}{total.describe_updates()}"
            digests = np.concatenate([*self.digests.values()])
            last = next((entry for entry in reversed(entries) if entry.is_about(digests)), None)
            if last is not None:
                before = self._total(ledger, entries)
                spent = before.epsilon_alone if is_alone else before.epsilon
                left = remaining_epsilon(limit, spent, self.delta)
                if before.updates:  # they have no mu
                    left = max(0.0, limit - spent)
                left *= 0.999  # printed, not above it
                count = counted(total.releases - 1, "earlier release")
                reason += (
                    f", of which epsilon {left:.4g} is left: the ledger has {count} about these "
                    f"records, the last of {last.describe()}"
                )
            raise PrivacyError(reason)


def remaining_epsilon(limit: float, epsilon: float, delta: float) -> float:
    """Return what one more Gaussian release may cost within a limit, of which epsilon is spent.

    mu^2 adds up, so the rest is more than limit - epsilon.

    Examples:
        >>> round(remaining_epsilon(limit=1.0, epsilon=0.8, delta=1e-5), 3)
        0.549
    """
    if epsilon >= limit:
        return 0.0
    whole, used = (gaussian_sigma(max(e, MIN_EPSILON), delta, 1.0) for e in (limit, epsilon))
    squared = whole**-2 - used**-2
    return gaussian_epsilon(delta, squared**-0.5) if squared > 0 else 0.0
