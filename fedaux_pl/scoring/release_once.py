"""A release with secret noise is made once: later runs and requests get the recorded one."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedaux_pl.processes import Processes
from fedaux_pl.scoring.ledger import Digests, Entry, Ledger, PrivacySpent
from fedaux_pl.scoring.records import pack, unpack
from fedaux_pl.scoring.release import ReleasedHead
from fedaux_pl.scoring.scoring import Scoring


def release_once(
    ledger: Ledger,
    keys: Sequence[str],
    records: Mapping[int, Digests],
    scoring: Scoring,
    release: Callable[[], Sequence[ReleasedHead]],
    *,
    restored: Sequence[ReleasedHead] = (),
    check: Callable[[Sequence[Entry]], None] | None = None,
    processes: Processes | None = None,
) -> tuple[list[ReleasedHead], PrivacySpent]:
    """Return the heads in the ledger, or new ones that are recorded there; and their total cost.

    The ledger is not locked while new heads are computed. If another run has recorded the same
    release meanwhile, its heads are returned, and the new ones are dropped.

    Args:
        ledger: The ledger of this machine.
        keys: What determines the release. A new entry has the first key; a recorded one is used if
            it has any of them.
        records: The keyed digests of each client's records.
        scoring: What is released.
        release: Computes the heads, in all processes together.
        restored: Heads that were released before, such as those of a checkpoint. They are recorded
            if the ledger does not have them.
        check: Raises, given all entries, if a new release is not allowed. It is called before the
            heads are computed, and again before they are recorded.
        processes: The processes of the run. Only the first one reads and writes the ledger.
    """
    processes = processes or Processes()

    def record(made: dict[str, Tensor] | None) -> tuple[Mapping[str, Tensor], PrivacySpent] | None:
        with ledger.locked():
            entries = ledger.entries()
            found = [
                entry.heads
                for entry in entries
                if (_same(made or {}, entry.heads) if restored else entry.key in keys)
            ]
            if not found:
                if check is not None:
                    check(entries)
                if made is None:
                    return None
                releases = {head.client: head.release for head in unpack(made, scoring)}
                entries.append(Entry(keys[0], made, releases, records))
                ledger.add(entries[-1])
                found = [made]
            digests, delta = list(records.values()), scoring.privacy.delta
            return found[-1], ledger.total(digests, delta, entries=entries)

    made = pack(restored) if restored else None
    recorded = processes.broadcast(record(made) if processes.first else None)
    if recorded is None:
        made = pack(release())
        recorded = processes.broadcast(record(made) if processes.first else None)
        assert recorded is not None  # noqa: S101 - for mypy
    heads, total = recorded
    return unpack(heads, scoring), total


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
