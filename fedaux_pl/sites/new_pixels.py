"""Pictures that a site now reads with other pixels than when it released something about them.

Version 1 read transparent pictures without a background. The ledger recognizes a record by the
digest of its pixels, so it takes such a picture for a new record, about which nothing has been
released.
"""

from collections.abc import Sequence

import numpy as np

from fedaux_pl.data import Source
from fedaux_pl.data.fingerprints import machine_key, record_digests
from fedaux_pl.errors import PrivacyError, counted
from fedaux_pl.sites.ledger import Ledger


def check_pixels(source: Source, parts: Sequence[str], ledger: Ledger) -> None:
    """Raise a PrivacyError if the ledger knows pictures only by the pixels that version 1 read.

    Args:
        source: The private data.
        parts: The parts of the data about which something may be released: ``train``, ``test``.
        ledger: The ledger of this machine.
    """
    former_source = source.as_version_1()
    if former_source is source:
        return
    with ledger.locked():
        entries = ledger.entries()
    released = [digests for entry in entries for digests in entry.digests.values()]
    if not released:
        return
    known = np.concatenate(released)
    key = machine_key()
    count = 0
    for part in parts:
        examples = getattr(source, part)()
        if examples is None:
            continue
        now = record_digests(examples.inputs, None, key)
        former = record_digests(getattr(former_source, part)().inputs, None, key)
        count += int((np.isin(former, known) & ~np.isin(now, known)).sum())
    if count:
        verb, their = ("is", "its") if count == 1 else ("are", "their")
        raise PrivacyError(
            f"{counted(count, 'picture')} {verb} read differently now, so {their} releases would "
            "count as new records; --accept_new_pixels true continues (transparent pictures are "
            f"put on a background since version 2; the ledger is {ledger.folder})"
        )
