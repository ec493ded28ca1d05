"""The ledger of a site: an entry for every release with secret noise of this machine.

It stands in the state folder of the machine that holds the data. Each entry is one numbered file,
written under a lock before the release leaves, and never changed. It holds what was released, so
that a server with the same settings gets it again, and the keyed digests of the records that it is
about, or their checksum if an earlier file has them. What several releases cost together is
computed record by record, however these were split over clients. An entry that cannot be read or
written stops the run, and so does one that this process has seen and that is there no more: with
its folder, a process would forget its budget. The file of an entry is never replaced, so that of
two processes that add one at the same time none is lost where locks exclude nobody.

Simulated releases, whose noise comes from a seed, are not in the ledger: they guarantee nothing.
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
"""The checksums of the entries that this process has read or added, by folder and name."""
_STORED = {"key_id", "key", "heads", "releases", "digests", "time", "origin"}
_MECHANISMS = {*get_args(Mechanism), "sampled", "none"}  # see Release
_DROPOUT = "whose guarantee fails if the network has dropout"


@dataclass(frozen=True)
class Entry:
    """What the clients of a federation have released together."""

    key: str  # the settings and the data of the release
    heads: Mapping[str, Tensor]  # what was released, as ``released_heads.pack`` gives it
    releases: Mapping[int, Release]
    digests: Mapping[int, Digests]  # of each client's records; a record may have several
    time: float = 0.0  # when it was added, in seconds; the ledger sets it
    origin: str = ""  # the run or the server that it was made for, likewise

    def is_about(self, digests: Digests) -> bool:
        """Return whether it is about one of the records with these digests."""
        return any(bool(np.isin(known, digests).any()) for known in self.digests.values())

    def describe(self) -> str:
        """Return when it was made, for whom, what it is and what it cost."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        origin = f", {self.origin}" if self.origin else ""
        release = next(iter(self.releases.values()))
        return f"{when}{origin}: {release.what}, epsilon {release.epsilon:.4g}"


@dataclass(frozen=True)
class PrivacySpent:
    """What all releases about a record cost together, for the record with the largest cost."""

    releases: int
    epsilon: float  # infinite if one of them guarantees nothing
    delta: float
    folder: Path
    epsilon_alone: float = math.inf  # if secure sums protect nothing
    updates: int = 0  # the releases that are model updates of version 1.0

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
        """Return the words that follow a total with model updates of version 1.0."""
        if not self.updates:
            return ""
        count = counted(self.updates, "model update")
        return (
            f", including {count} of version 1.0, {_DROPOUT}; their epsilons and deltas are added, "
            f"so the total holds at delta {self.delta:g}"
        )


class Ledger:
    """The entries of this machine, whose digests have the key ``key_id``.

    ``origin`` is for whom new ones are made; by default the run in the current folder.
    """

    def __init__(self, key_id: str, folder: Path | None = None, origin: str = "") -> None:
        self.key_id = key_id
        self.origin = origin or f"a run in {readable(Path.cwd())}"
        self.folder = folder or state_folder() / "ledger"
        self._known: dict[str, Digests] = {}  # of the entries read last, by their checksum

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other processes between reading the ledger and adding to it."""
        path = self.folder / "lock"
        about = f"waiting for another run that has locked {path}"
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(path, partial(print, about, flush=True)))
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
        self._known.clear()
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
            content = whole[64:]
            if whole[:64] != _checksum(content):
                raise ValueError("its checksum does not match")
            stored = _parse(content)
            if stored["key_id"] != self.key_id:
                raise ValueError("the key of its digests, fingerprint.key, is another one")
            if self._seen.setdefault(path.name, whole[:64]) != whole[:64]:
                raise ValueError("it was replaced while this process ran")
            digests = {client: self._find(known) for client, known in stored["digests"].items()}
            seconds = stored.get("time", path.stat().st_mtime)  # version 0.9.0 stored none
        except (OSError, ValueError) as error:
            raise PrivacyError(self._refusal("read", f"{path.name}: {error}")) from error
        origin = stored.get("origin", "")
        return Entry(stored["key"], stored["heads"], stored["releases"], digests, seconds, origin)

    def _find(self, stored: Tensor | str) -> Digests:
        """Return stored digests, or those of an earlier entry with this checksum."""
        if isinstance(stored, Tensor):
            digests: Digests = stored.numpy().view(np.uint64)
            stored = _checksum(digests.tobytes()).decode()
            self._known.setdefault(stored, digests)
        if stored not in self._known:
            raise ValueError("an earlier entry about the same records was replaced")
        return self._known[stored]

    def add(self, entry: Entry, number: int | None = None) -> None:
        """Append an entry; the caller holds the lock, and lets it leave only afterwards.

        Args:
            entry: What is about to leave.
            number: The number that it gets: one more than the entries that the caller has read. If
                another process has added that one meanwhile, a NameTakenError is raised: read
                again. By default the next number that is free.
        """
        buffer = io.BytesIO()
        digests: dict[int, Tensor | str] = {}
        for client, records in entry.digests.items():
            unique = np.unique(records)
            checksum = _checksum(unique.tobytes()).decode()
            is_known = checksum in self._known
            digests[client] = checksum if is_known else torch.from_numpy(unique.view(np.int64))
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

        Records that no entry is about cost nothing.

        Args:
            digests: The keyed digests of the records of each client.
            delta: The delta at which to state the total. Model updates of version 1.0 add theirs
                to it.
            entries: What ``entries`` has returned, with planned releases; None to read it.
        """
        entries = self.entries() if entries is None else entries
        groups: dict[bytes, list[Release]] = {}  # by their records, which most releases share
        for entry in entries:
            for client, release in entry.releases.items():
                groups.setdefault(entry.digests[client].tobytes(), []).append(release)
        asked = np.concatenate(digests)
        # a record may occur twice in D_i
        records = [np.unique(np.frombuffer(group, np.uint64)) for group in groups]
        releases = list(groups.values())
        known, position = np.unique(np.concatenate([asked[:0], *records]), return_inverse=True)
        is_asked = np.isin(known, asked)
        if not is_asked.any():
            return PrivacySpent(0, 0.0, delta, self.folder, 0.0)
        group_of = np.repeat(np.arange(len(records)), [len(group) for group in records])

        # updates of version 1.0 have no mu: all sets of releases of a record are compared
        has_updates = any(release.is_update for group in releases for release in group)
        numbers = np.random.default_rng(0).random(len(releases))  # each set has another sum

        def candidates(mu: Callable[[Release], float]) -> Iterator[list[Release]]:
            """Yield the releases about each record for which they may cost most."""
            costs = np.array([sum(mu(release) ** 2 for release in group) for group in releases])
            sums = np.bincount(position, weights=(numbers if has_updates else costs)[group_of])
            cost = np.where(is_asked, sums, -1)
            records = np.unique(cost, return_index=True)[1] if has_updates else [cost.argmax()]
            for record in records:
                if is_asked[record]:
                    about = group_of[position == record]
                    yield [release for i in about for release in releases[i]]

        together = [(spent(about, delta), about) for about in candidates(lambda r: r.mu)]
        (epsilon, _), most = max(together, key=lambda one: (one[0], len(one[1])))
        alone = max(
            spent(about, delta, alone=True)[0] for about in candidates(lambda r: r.mu_alone)
        )
        return PrivacySpent(
            releases=len(most),
            epsilon=epsilon,
            delta=max(stated for (_, stated), _ in together),
            folder=self.folder,
            epsilon_alone=alone,
            updates=max(sum(release.is_update for release in about) for _, about in together),
        )

    def _refusal(self, done: str, reason: object) -> str:
        return (
            f"the ledger of releases in {self.folder} cannot be {done} ({reason}), so nothing is "
            "released: make the folder readable and writable, or restore it from a backup"
        )


def ledger_digests(inputs: Inputs, labels: Tensor, key: bytes) -> Digests:
    """Return the digests of records with labels, then without: a label may be corrected."""
    with_labels = record_digests(inputs, labels, key)
    return np.concatenate([with_labels, record_digests(inputs, None, key)])


def _parse(content: bytes) -> dict[str, Any]:
    """Return what ``add`` has stored; raise a ValueError for foreign content."""
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
        if stored.keys() - _STORED or mechanisms - _MECHANISMS:  # of a later version
            raise TypeError("other entries")
    except Exception as error:  # foreign content can raise nearly any exception
        raise ValueError(f"it is no file of a ledger ({type(error).__name__})") from error
    return stored | {"releases": releases}


def _name(number: int) -> str:
    return f"{number:06}.pt"


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
