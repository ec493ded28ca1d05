"""A ledger of 1.0 with private updates is read, and what they cost counts."""

import tarfile
from pathlib import Path

import pytest

from fedaux_pl.algorithms import FedAUX, FedAvg
from fedaux_pl.data.fingerprints import key_id, machine_key
from fedaux_pl.federation import LocalTraining, Pretraining
from fedaux_pl.scoring import Privacy, StatisticsScoring
from fedaux_pl.sites import Limits
from fedaux_pl.sites.ledger import Ledger
from tests.federations import create, split
from tests.sites import loopback

# the state folder of 1.0.0 after ``run`` with local.privacy {epsilon: 4, clip_norm: 0.5}, without
# locks and the files of the updates
STATE = Path(__file__).parent / "state_1_0_0.tar.xz"
TOTAL = 3.8095578270469423
"""The epsilon of 1.0.0, at delta 2e-5, of the two releases and the update about each record."""
ABOUT = "including 1 model update of version 1.0, whose guarantee fails if the network has dropout"


METHOD = FedAUX(
    scoring=StatisticsScoring(4, whitening=0.5, releases=2),
    privacy=Privacy(1.0),
)


def run(root, method=METHOD, rehearsal=False):
    """Two sites and one round; with the default method each site makes two releases."""

    def create_federation():
        return create(
            method,
            {"tests.sites.test_earlier_ledger.Ramp": 2},
            local=LocalTraining(batch_size=8),
            pretraining=Pretraining(epochs=1, batch_size=20, temperature=0.5),
            model_options={},
        )

    federation, data, hub = loopback.prepare(
        root,
        create_federation,
        split(2),
        Limits(rehearsal=rehearsal),
        rounds=1,
        rehearsal=rehearsal,
    )
    loopback.fit(root, federation, data, rounds=1)
    return hub


@pytest.fixture
def state(tmp_path, monkeypatch):
    """The state folder of 1.0.0."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with tarfile.open(STATE) as archive:
        archive.extractall(tmp_path / "state", filter="data")
    return tmp_path


def test_a_ledger_with_updates_is_read_and_their_cost_added(state):
    ledger = Ledger(key_id(machine_key()))
    entries = ledger.entries()
    releases = [release for entry in entries for release in entry.releases.values()]
    assert [release.is_update for release in releases] == [False] * 4 + [True] * 2
    first, *_, update = releases
    total = ledger.total([entries[0].digests[0]], first.delta)
    assert (total.releases, total.updates) == (3, 1)
    assert total.delta == first.delta + update.delta == 2e-5
    assert total.epsilon == total.epsilon_alone == pytest.approx(1.0 + update.epsilon, rel=1e-4)
    assert total.epsilon > TOTAL


def test_a_site_uses_the_releases_again_and_says_what_is_included(state, capsys):
    run(state)
    assert len(Ledger(key_id(machine_key())).entries()) == 6
    lines = [line for line in capsys.readouterr().out.splitlines() if ABOUT in line]
    notes = [line for line in lines if "note: the ledger" in line]
    sent = [line for line in lines if "sent: prepare" in line]
    assert (len(notes), len(sent)) == (2, 4)
    assert all("has at most 3 releases about a record" in line for line in notes)
    assert all("epsilon 4.833 in at most 3 about a record" in line for line in sent)


def notes_in(printed):
    return [line for line in printed.splitlines() if "note: the ledger" in line]


def test_a_site_of_a_method_without_releases_says_what_its_records_have_cost(state, capsys):
    run(state, FedAvg())
    notes = notes_in(capsys.readouterr().out)
    assert len(notes) == 2
    assert all("has at most 3 releases about a record" in line for line in notes)
    assert all(ABOUT in line and "holds at delta 2e-05" in line for line in notes)


def test_a_rehearsal_and_a_site_with_an_empty_ledger_say_nothing(state, capsys, monkeypatch):
    run(state, FedAvg(), rehearsal=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(state / "new"))
    run(state / "new", FedAvg())
    assert notes_in(capsys.readouterr().out) == []
