"""The ledger of a site: one entry for each release with secret noise of this machine.

The ledger is a folder in the state folder of the machine that holds the data. Each entry is one
numbered file, which is written under a lock before the release leaves, and which never changes. An
entry holds two things:

- what was released, so that a server with the same settings gets the same release again
- the keyed digests of the records that the release is about, or only their checksum if an earlier
  file has the same digests

What several releases cost together is computed record by record, however the records were split
over clients.

A run stops if it cannot read or write an entry. It also stops if an entry is missing that this
process has seen before: otherwise a process would forget its budget if its folder was deleted. The
file of an entry is never replaced. So if two processes add entries at the same time, both entries
are kept, even on file systems where locks do not work.

Releases with noise from a seed are not in the ledger, because they guarantee nothing.
"""

import hashlib
import io
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedaux_pl.data.fingerprints import record_digests
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.errors import PrivacyError, counted
from fedaux_pl.files import NameTakenError, locked, state_folder, write_atomically
from fedaux_pl.functional.privacy import Mechanism
from fedaux_pl.names import readable
from fedaux_pl.scoring import Release, spent
from fedaux_pl.tensor_files import parse_tensor_file

Digests = npt.NDArray[np.uint64]

_SEEN: dict[Path, dict[str, bytes]] = {}
"""The checksums of the entries that this process has read or added, by folder and file name."""
_STORED_NAMES = {"key_id", "key", "heads", "releases", "digests", "time", "origin"}
_MECHANISMS = {*get_args(Mechanism), "sampled", "none"}  # see ``Release``
_DROPOUT = "whose guarantee fails if the network has dropout"


@dataclass(frozen=True)
class Entry:
    """One release, or several that clients in one process made together.

    Attributes:
        key: The text by which the entry is found, see ``ledger_keys``.
        heads: What was released: the tensors by name.
        releases: What the release costs each client. A site is always client 0.
        digests: The keyed digests of each client's records, of which a record can have several.
        time: When the entry was added, in seconds since 1970. The ledger sets it.
        origin: The server or the run for which the release was made. The ledger sets it.
    """

    key: str
    heads: Mapping[str, Tensor]
    releases: Mapping[int, Release]
    digests: Mapping[int, Digests]
    time: float = 0.0
    origin: str = ""

    def is_about(self, digests: Digests) -> bool:
        """Return whether the entry is about one of the records with these digests."""
        return any(bool(np.isin(stored, digests).any()) for stored in self.digests.values())

    def describe(self) -> str:
        """Return when the release was made, for whom, what it is and what it cost."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        origin = f", {self.origin}" if self.origin else ""
        release = next(iter(self.releases.values()))
        return f"{when}{origin}: {release.what}, epsilon {release.epsilon:.4g}"


@dataclass(frozen=True)
class PrivacySpent:
    """What all releases about a record cost together, for the record with the largest cost.

    Attributes:
        releases: The number of releases about this record.
        epsilon: Their epsilon together; infinite if one of them guarantees nothing.
        delta: The delta at which it holds.
        folder: The folder of the ledger.
        epsilon_alone: The same epsilon if secure sums protect nothing.
        updates: How many of the releases are model updates of version 1.0.
    """

    releases: int
    epsilon: float
    delta: float
    folder: Path
    epsilon_alone: float = math.inf
    updates: int = 0

    def describe(self) -> str:
        """Return the total as a sentence."""
        count = counted(self.releases, "release")
        return (
            f"the ledger {self.folder} has at most {count} about a record of these data, in all "
            f"(epsilon {self.epsilon:.4g}, delta {self.delta:g}){self.describe_updates()}"
        )

    def describe_one(self, release: Release) -> str:
        """Return the guarantee of one release, and the total after it."""
        return (
            f"(epsilon {release.epsilon:g}, delta {release.delta:g})-private; spent so far: "
            f"epsilon {self.epsilon:.4g} in at most {self.releases} about a record"
            f"{self.describe_updates()}"
        )

    def describe_updates(self) -> str:
        """Return the words that follow a total which includes model updates of version 1.0."""
        if not self.updates:
            return ""
        count = counted(self.updates, "model update")
        return (
            f", including {count} of version 1.0, {_DROPOUT}; their epsilons and deltas are added, "
            f"so the total holds at delta {self.delta:g}"
        )


class Ledger:
    """The entries of this machine.

    Args:
        key_id: The public name of the key with which this machine makes digests.
        folder: The folder of the ledger; None for that in the state folder.
        origin: For whom new entries are made; by default the run in the current folder.
    """

    def __init__(self, key_id: str, folder: Path | None = None, origin: str = "") -> None:
        self.key_id = key_id
        self.origin = origin or f"a run in {readable(Path.cwd())}"
        self.folder = folder or state_folder() / "ledger"
        self._digests: dict[str, Digests] = {}  # of the entries that were read, by their checksum

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other processes between reading the ledger and adding to it."""
        path = self.folder / "lock"
        notice = f"waiting for another run that has locked {path}"
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(path, partial(print, notice, flush=True)))
            except OSError as error:
                raise PrivacyError(self._refusal("locked", error)) from error
            yield

    @property
    def has_entries(self) -> bool:
        """Whether the ledger has entries, which may be damaged."""
        return any(self.folder.glob("*.pt"))

    def entries(self) -> list[Entry]:
        """Read all entries; raise a PrivacyError if a file is damaged or missing."""
        paths = sorted(self.folder.glob("*.pt"))
        self._digests.clear()
        names = {path.name for path in paths}
        expected = {_name(number + 1) for number in range(len(paths))}
        missing = (expected | self._seen.keys()) - names
        if missing:
            raise PrivacyError(self._refusal("read", f"{min(missing)} is missing"))
        return [self._read(path) for path in paths]

    @property
    def _seen(self) -> dict[str, bytes]:
        return _SEEN.setdefault(self.folder.absolute(), {})

    def _read(self, path: Path) -> Entry:
        try:
            whole = path.read_bytes()
            checksum = whole[:64]
            content = whole[64:]
            if checksum != _checksum(content):
                raise ValueError("its checksum does not match")
            stored = _parse(content)
            if stored["key_id"] != self.key_id:
                raise ValueError("the key of its digests, fingerprint.key, is another one")
            if self._seen.setdefault(path.name, checksum) != checksum:
                raise ValueError("it was replaced while this process ran")
            digests = {client: self._find(found) for client, found in stored["digests"].items()}
            seconds = stored.get("time", path.stat().st_mtime)  # version 0.9.0 stored no time
        except (OSError, ValueError) as error:
            raise PrivacyError(self._refusal("read", f"{path.name}: {error}")) from error
        origin = stored.get("origin", "")
        return Entry(stored["key"], stored["heads"], stored["releases"], digests, seconds, origin)

    def _find(self, stored: Tensor | str) -> Digests:
        """Return stored digests, or the digests of an earlier entry that have this checksum."""
        if isinstance(stored, Tensor):
            digests: Digests = stored.numpy().view(np.uint64)
            stored = _checksum(digests.tobytes()).decode()
            self._digests.setdefault(stored, digests)
        if stored not in self._digests:
            raise ValueError("an earlier entry about the same records was replaced")
        return self._digests[stored]

    def add(self, entry: Entry, number: int | None = None) -> None:
        """Append an entry.

        The caller holds the lock, and lets the release leave the site only afterwards. If another
        process has added an entry with the same number, a NameTakenError is raised: the caller must
        read the entries again.

        Args:
            entry: The entry.
            number: The number of the entry: one more than the number of entries that the caller has
                read. By default the next free number.
        """
        buffer = io.BytesIO()
        digests: dict[int, Tensor | str] = {}
        for client, records in entry.digests.items():
            unique = np.unique(records)
            checksum = _checksum(unique.tobytes()).decode()
            is_stored = checksum in self._digests
            digests[client] = checksum if is_stored else torch.from_numpy(unique.view(np.int64))
        content = {
            "key_id": self.key_id,
            "key": entry.key,
            "heads": dict(entry.heads),
            "releases": {client: asdict(release) for client, release in entry.releases.items()},
            "digests": digests,
            "time": time.time(),
            "origin": self.origin,
        }
        torch.save(content, buffer)
        if number is None:
            number = len(list(self.folder.glob("*.pt"))) + 1
        name = _name(number)
        own_checksum = _checksum(buffer.getvalue())
        whole = own_checksum + buffer.getvalue()
        path = self.folder / name
        try:
            write_atomically(path, lambda file: file.write(whole), private=True, exclusive=True)
        except NameTakenError:
            raise
        except OSError as error:
            raise PrivacyError(self._refusal("written", error)) from error
        self._seen[name] = own_checksum

    def total(
        self, digests: Sequence[Digests], delta: float, *, entries: Sequence[Entry] | None = None
    ) -> PrivacySpent:
        """Compute what the releases about the records with these digests cost at this delta.

        A record without releases costs nothing.

        Args:
            digests: The keyed digests of the records of each client.
            delta: The delta at which to state the total. Model updates of version 1.0 add their
                deltas to it.
            entries: The entries of the ledger, with planned releases; None to read the entries.
        """
        entries = self.entries() if entries is None else entries
        # the releases about the same records, by the digests of these records
        groups: dict[bytes, list[Release]] = {}
        for entry in entries:
            for client, release in entry.releases.items():
                groups.setdefault(entry.digests[client].tobytes(), []).append(release)
        own = np.concatenate(digests)
        # unique, because a record can occur twice in D_i
        records = [np.unique(np.frombuffer(group, np.uint64)) for group in groups]
        releases = list(groups.values())
        all_records, position = np.unique(np.concatenate([own[:0], *records]), return_inverse=True)
        is_own = np.isin(all_records, own)
        if not is_own.any():
            return PrivacySpent(0, 0.0, delta, self.folder, 0.0)
        group_of = np.repeat(np.arange(len(records)), [len(group) for group in records])

        # updates of version 1.0 have no mu by which to find the record with the largest cost: then
        # one record of each set of releases is a candidate, and each set has another sum of these
        has_updates = any(release.is_update for group in releases for release in group)
        numbers = np.random.default_rng(0).random(len(releases))

        def candidates(mu: Callable[[Release], float]) -> Iterator[list[Release]]:
            """Yield all releases about each record for which the cost may be largest."""
            costs = np.array([sum(mu(release) ** 2 for release in group) for group in releases])
            sums = np.bincount(position, weights=(numbers if has_updates else costs)[group_of])
            cost = np.where(is_own, sums, -1)
            chosen = np.unique(cost, return_index=True)[1] if has_updates else [cost.argmax()]
            for record in chosen:
                if is_own[record]:
                    about = group_of[position == record]
                    yield [release for i in about for release in releases[i]]

        totals = [(spent(about, delta), about) for about in candidates(lambda r: r.mu)]
        (epsilon, _), most = max(totals, key=lambda total: (total[0], len(total[1])))
        alone = max(
            spent(about, delta, alone=True)[0] for about in candidates(lambda r: r.mu_alone)
        )
        return PrivacySpent(
            releases=len(most),
            epsilon=epsilon,
            delta=max(stated for (_, stated), _ in totals),
            folder=self.folder,
            epsilon_alone=alone,
            updates=max(sum(release.is_update for release in about) for _, about in totals),
        )

    def _refusal(self, action: str, reason: object) -> str:
        return (
            f"the ledger of releases in {self.folder} cannot be {action} ({reason}), so nothing is "
            "released: make the folder readable and writable, or restore it from a backup"
        )


def ledger_digests(inputs: Inputs, labels: Tensor, key: bytes) -> Digests:
    """Return two digests of each record: with its label, and without it.

    So a record is recognized even if its label has been corrected.
    """
    with_labels = record_digests(inputs, labels, key)
    return np.concatenate([with_labels, record_digests(inputs, None, key)])


def _parse(content: bytes) -> dict[str, Any]:
    """Return what ``Ledger.add`` has stored; raise a ValueError for any other content."""
    try:
        stored: dict[str, Any] = parse_tensor_file(content)
        releases = {client: Release(**cost) for client, cost in stored["releases"].items()}
        digests = stored["digests"]
        if any(not isinstance(d, str) and d.dtype != torch.int64 for d in digests.values()):
            raise TypeError("other digests")
        is_plain = isinstance(stored["key_id"], str) and isinstance(stored["key"], str)
        if not is_plain or not isinstance(stored["heads"], dict) or releases.keys() ^ digests:
            raise TypeError("other entries")
        mechanisms = {release.mechanism for release in releases.values()}
        if stored.keys() - _STORED_NAMES or mechanisms - _MECHANISMS:  # of a later version
            raise TypeError("other entries")
    except Exception as error:  # foreign content can raise nearly any exception
        raise ValueError(f"it is no file of a ledger ({type(error).__name__})") from error
    return stored | {"releases": releases}


def _name(number: int) -> str:
    return f"{number:06}.pt"


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
