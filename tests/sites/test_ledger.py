"""The ledger on disk: what is written, composed and refused."""

import io
import math
import os
import shutil
import stat
import threading
import time
import tracemalloc
from dataclasses import asdict, replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from fedaux_pl.errors import PrivacyError
from fedaux_pl.files import NameTakenError
from fedaux_pl.scoring import Privacy, Release, spent
from fedaux_pl.sites.ledger import Entry, Ledger, PrivacySpent, _checksum

RECORDS = {0: np.arange(5, dtype=np.uint64), 1: np.arange(5, 9, dtype=np.uint64)}
SOUND = Privacy(1.0, 1e-5).cost(0.1)
UPDATE = Release(0.5, 2e-5, 1.0, 0.5, "sampled", what="a model update", steps=10, rate=0.2)
"""A model update as version 1.0 recorded it."""


def entry(key="settings", release=SOUND, records=RECORDS):
    heads = {"weight/0": torch.randn(3)}
    return Entry(key, heads, dict.fromkeys(records, release), records)


@pytest.fixture
def ledger(tmp_path):
    return Ledger("key", tmp_path / "ledger")


def test_entries_come_back_as_they_were_added(ledger):
    before = [entry("one"), entry("other")]
    for one in before:
        with ledger.locked():
            ledger.add(one)
    assert sorted(os.listdir(ledger.folder)) == ["000001.pt", "000002.pt", "lock"]
    assert stat.S_IMODE((ledger.folder / "000001.pt").stat().st_mode) == 0o600
    for one, other in zip(before, ledger.entries(), strict=True):
        assert (one.key, one.releases) == (other.key, other.releases)
        assert torch.equal(one.heads["weight/0"], other.heads["weight/0"])
        assert all(np.array_equal(one.digests[i], other.digests[i]) for i in RECORDS)


def test_an_entry_says_when_and_for_whom_it_was_made(ledger, monkeypatch):
    monkeypatch.setattr("fedaux_pl.sites.ledger.time.time", lambda: 1e9)
    monkeypatch.setattr("fedaux_pl.sites.ledger.time.localtime", time.gmtime)
    ledger.add(entry())
    Ledger("key", ledger.folder, origin="server a:1").add(entry())
    content = torch.load(io.BytesIO((ledger.folder / "000001.pt").read_bytes()[64:]))
    buffer = io.BytesIO()
    torch.save({name: content[name] for name in STORED}, buffer)  # as version 0.9.0 wrote it
    old = _checksum(buffer.getvalue()) + buffer.getvalue()
    (ledger.folder / "000003.pt").write_bytes(old)
    os.utime(ledger.folder / "000003.pt", (2e9, 2e9))
    about = "its scoring head, epsilon 1"
    assert [one.describe() for one in ledger.entries()] == [
        f"2001-09-09 01:46:40, a run in {os.getcwd()}: {about}",
        f"2001-09-09 01:46:40, server a:1: {about}",
        f"2033-05-18 03:33:20: {about}",
    ]


def test_updates_add_their_epsilons_and_deltas(ledger):
    """Record 4 has a release and two updates, the others fewer: sets of releases are compared."""
    ledger.add(entry("release", SOUND, {0: RECORDS[0]}))
    for key, records in {"one": np.arange(4, 9), "two": np.arange(3, 5)}.items():
        ledger.add(entry(key, UPDATE, {0: records.astype(np.uint64)}))
    total = ledger.total(list(RECORDS.values()), 1e-5)
    assert (total.releases, total.updates) == (3, 2)
    assert total.epsilon == total.epsilon_alone == pytest.approx(2.0, rel=1e-6)
    assert total.delta == pytest.approx(5e-5)
    one = ledger.total([RECORDS[1]], 1e-5)
    assert (one.releases, one.updates, one.epsilon) == (1, 1, 0.5)
    assert one.delta == pytest.approx(3e-5)
    assert total.describe().endswith(
        "(epsilon 2, delta 5e-05), including 2 model updates of version 1.0, whose guarantee fails "
        "if the network has dropout; their epsilons and deltas are added, so the total holds at "
        "delta 5e-05"
    )


def test_the_delta_of_a_total_holds_for_every_record(ledger):
    """Record 0 has the largest epsilon, record 5 the largest delta."""
    ledger.add(entry("release", SOUND, {0: RECORDS[0]}))
    ledger.add(entry("update", UPDATE, {0: RECORDS[1]}))
    total = ledger.total(list(RECORDS.values()), 1e-5)
    assert total.epsilon == pytest.approx(1.0, rel=1e-6)
    assert (total.delta, total.updates) == (pytest.approx(3e-5), 1)


def test_releases_about_the_same_records_are_composed(ledger):
    """Five releases at epsilon 1 are 2.44, not "once: epsilon 1"."""
    for _ in range(5):
        ledger.add(entry())
    total = ledger.total(list(RECORDS.values()), 1e-5)
    assert (total.releases, total.delta) == (5, 1e-5)
    assert total.epsilon == spent([SOUND] * 5, 1e-5)[0] == pytest.approx(2.44, abs=0.01)


def test_only_releases_that_share_a_record_are_composed(ledger):
    """Whatever the split: the third release has a record of client 0 and one of client 1."""
    ledger.add(entry())
    ledger.add(entry(records={0: np.arange(100, 105, dtype=np.uint64)}))
    ledger.add(entry(records={7: np.array([4, 5], dtype=np.uint64)}))
    assert ledger.total([RECORDS[0]], 1e-5).releases == 2
    assert ledger.total([RECORDS[0][:4]], 1e-5).releases == 1
    assert ledger.total([np.array([101], dtype=np.uint64)], 1e-5).releases == 1
    # a record of two clients of one federation is in two releases
    twice = np.array([200], dtype=np.uint64)
    ledger.add(entry(records={0: twice, 1: twice}))
    assert ledger.total([twice], 1e-5).releases == 2


@pytest.mark.parametrize("release", [SOUND, UPDATE])
def test_records_without_a_release_cost_nothing(ledger, release):
    unknown = np.array([999], dtype=np.uint64)
    nothing = PrivacySpent(0, 0.0, 1e-5, ledger.folder, 0.0)
    assert ledger.total([unknown], 1e-5) == nothing
    ledger.add(entry(release=release))
    assert ledger.total([unknown], 1e-5) == ledger.total([unknown[:0]], 1e-5) == nothing
    known = ledger.total([RECORDS[0]], 1e-5)
    assert known.epsilon > 0
    assert ledger.total([unknown, RECORDS[0]], 1e-5) == known


def test_a_record_that_a_client_holds_twice_is_in_one_release(ledger):
    """Planned or made: a site with two equal records would otherwise be refused its first one."""
    twice = {0: np.array([3, 3, 4], dtype=np.uint64)}
    whole = [*ledger.entries(), entry(records=twice)]
    planned = ledger.total([twice[0]], 1e-5, entries=whole)
    with pytest.raises(TypeError):  # third were the planned ones alone, up to version 0.9.0
        ledger.total([twice[0]], 1e-5, [entry(records=twice)])
    ledger.add(entry(records=twice))
    assert planned == ledger.total([twice[0]], 1e-5)
    assert planned.releases == 1


def test_releases_about_the_same_records_store_and_compare_them_once(ledger):
    many = {0: np.arange(20_000, dtype=np.uint64), 1: np.array([50_000], dtype=np.uint64)}
    other = {0: many[0][1:]}
    ledger.add(entry(records=many))
    ledger.add(entry(records=many))  # has read nothing before, as an earlier version
    for records in (many, many, many, other, other):
        ledger.entries()
        ledger.add(entry(records=records))
    sizes = [path.stat().st_size for path in sorted(ledger.folder.glob("*.pt"))]
    assert [size > 150_000 for size in sizes] == [True, True, False, False, False, True, False]
    read = Ledger("key", ledger.folder).entries()
    for one, records in zip(read, [many] * 5 + [other] * 2, strict=True):
        assert one.digests.keys() == records.keys()
        assert all(np.array_equal(one.digests[i], records[i]) for i in records)
    assert len({id(one.digests[0]) for one in read}) == 2
    peaks = []
    for count in (1, 50):
        tracemalloc.start()
        total = ledger.total([many[0]], 1e-5, entries=read[:1] * count)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (total.releases, total.epsilon) == (count, spent([SOUND] * count, 1e-5)[0])
    assert peaks[1] < 1.5 * peaks[0]
    assert [ledger.total([many[0][i : i + 1]], 1e-5).releases for i in (0, 1)] == [5, 7]


def test_an_entry_whose_records_are_in_a_replaced_one_stops_the_release(ledger, monkeypatch):
    ledger.add(entry(records={0: np.arange(3, dtype=np.uint64)}))
    other = (ledger.folder / "000001.pt").read_bytes()
    (ledger.folder / "000001.pt").unlink()
    ledger.add(entry())
    ledger.entries()
    ledger.add(entry())
    (ledger.folder / "000001.pt").write_bytes(other)
    with pytest.raises(PrivacyError, match=r"000001.pt: it was replaced .* nothing is released"):
        ledger.entries()
    monkeypatch.setattr("fedaux_pl.sites.ledger._SEEN", {})  # another process
    with pytest.raises(PrivacyError, match=r"000002.pt: an earlier entry .* nothing is released"):
        ledger.entries()


def test_the_record_with_the_largest_cost_counts(ledger):
    cheap = Privacy(0.01, 1e-5).cost(0.1)
    for _ in range(3):
        ledger.add(entry(release=cheap, records={0: RECORDS[0]}))
    ledger.add(entry(records={1: RECORDS[1]}))
    assert ledger.total(list(RECORDS.values()), 1e-5).epsilon == pytest.approx(1.0)
    assert ledger.total([RECORDS[0]], 1e-5).epsilon < 0.03


def test_a_release_without_a_guarantee_makes_the_total_infinite(ledger):
    ledger.add(entry())
    ledger.add(entry(release=Privacy(None).cost(0.1)))
    total = ledger.total([RECORDS[0]], 1e-5)
    assert (total.releases, total.epsilon) == (2, math.inf)


def test_what_cannot_be_read_stops_the_release(ledger):
    for _ in range(2):
        ledger.add(entry())
    path = ledger.folder / "000001.pt"
    content = path.read_bytes()
    path.write_bytes(content[:2000] + bytes([content[2000] ^ 1]) + content[2001:])
    with pytest.raises(PrivacyError, match=r"000001.pt: its checksum .* nothing is released"):
        ledger.entries()
    path.unlink()
    with pytest.raises(PrivacyError, match=r"000001.pt is missing"):
        ledger.total([RECORDS[0]], 1e-5)


LAPLACE = replace(SOUND, mechanism="laplace")
STORED = {"key_id": "key", "key": "settings", "heads": {}, "releases": {}, "digests": {}}
FOREIGN = {
    "no archive": None,
    "an object": Fraction(1, 2),
    "a list": [1, 2],
    "other names": {"key_id": "key"},
    "no text as key": STORED | {"key": 3},
    "no tensors": STORED | {"heads": [1]},
    "other records than releases": STORED | {"digests": {0: torch.arange(3)}},
    "a release with other fields": STORED | {"releases": {0: {"cost": 1.0}}},
    "an entry of a later version": STORED | {"scope": "a person"},
    "a later mechanism": STORED
    | {"releases": {0: asdict(LAPLACE)}, "digests": {0: torch.arange(3)}},
    "records that are no digests": STORED | {"releases": {}, "digests": {0: [1.5]}},
}


@pytest.mark.parametrize("case", FOREIGN)
def test_foreign_content_with_a_valid_checksum_stops_the_release(ledger, case):
    ledger.add(entry())
    buffer = io.BytesIO(b"foreign")
    if FOREIGN[case] is not None:
        torch.save(FOREIGN[case], buffer)
    content = buffer.getvalue()
    (ledger.folder / "000001.pt").write_bytes(_checksum(content) + content)
    expected = r"000001\.pt: it is no file of a ledger .* nothing is released: .* restore it"
    with pytest.raises(PrivacyError, match=expected) as caught:
        ledger.entries()
    assert len(str(caught.value).splitlines()) == 1


def test_digests_of_another_key_are_not_compared(ledger):
    ledger.add(entry())
    with pytest.raises(PrivacyError, match=r"fingerprint\.key, is another one"):
        Ledger("other key", ledger.folder).entries()


def test_what_cannot_be_written_or_locked_stops_the_release(tmp_path):
    (tmp_path / "ledger").write_text("a file in place of the folder")
    ledger = Ledger("key", tmp_path / "ledger")
    with pytest.raises(PrivacyError, match="cannot be locked"), ledger.locked():
        pass
    with pytest.raises(PrivacyError, match="cannot be written"):
        ledger.add(entry())


def test_the_scratch_of_a_killed_process_is_no_release(ledger):
    ledger.add(entry())
    (ledger.folder / ".000002.pt.0123.part").write_bytes(b"half")
    assert len(ledger.entries()) == 1
    ledger.add(entry())
    assert sorted(os.listdir(ledger.folder)) == ["000001.pt", "000002.pt"]


@pytest.mark.parametrize("deleted", ["ledger", "ledger/000002.pt", "."])
def test_a_process_does_not_forget_what_it_has_released(tmp_path, deleted):
    """Not even with another object, or if the entries were there before it."""
    for _ in range(2):
        Ledger("key", tmp_path / "ledger").add(entry())
    path = tmp_path / deleted
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(PrivacyError, match=r"00000\d.pt is missing.* nothing is released"):
        Ledger("key", tmp_path / "ledger").entries()


def test_an_entry_that_was_read_must_stay_as_well(ledger, monkeypatch):
    ledger.add(entry())
    monkeypatch.setattr("fedaux_pl.sites.ledger._SEEN", {})  # another process
    assert len(ledger.entries()) == 1
    shutil.rmtree(ledger.folder)
    with pytest.raises(PrivacyError, match=r"000001.pt is missing"):
        ledger.entries()


def test_an_entry_is_never_replaced(ledger):
    """Where ``flock`` excludes nobody, two processes may choose the same number."""
    ledger.add(entry("one"), number=1)
    with pytest.raises(NameTakenError):
        ledger.add(entry("two"), number=1)
    assert [one.key for one in ledger.entries()] == ["one"]
    assert os.listdir(ledger.folder) == ["000001.pt"]


def test_a_run_that_waits_for_the_ledger_says_so(ledger, monkeypatch):
    said, release = [], threading.Event()

    def say(text, **_):  # lets the other one end
        said.append(text)
        release.set()

    monkeypatch.setattr("fedaux_pl.sites.ledger.print", say, raising=False)
    with ledger.locked():
        waiting = threading.Thread(target=lambda: ledger.locked().__enter__(), daemon=True)
        waiting.start()
        assert release.wait(60)
    waiting.join(60)
    assert f"waiting for another run that has locked {ledger.folder}" in said[0]
