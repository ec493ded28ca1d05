"""A ledger of 1.0 with private updates is read, and what they cost counts."""

import tarfile
from pathlib import Path

import pytest

from fedaux_pl.algorithms import FedAUX
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


def run(root):
    """Two sites with two releases each, and a round."""
    method = FedAUX(
        scoring=StatisticsScoring(4, whitening=0.5, releases=2),
        privacy=Privacy(1.0),
    )

    def create_federation():
        return create(
            method,
            {"tests.sites.test_earlier_ledger.Ramp": 2},
            local=LocalTraining(batch_size=8),
            pretraining=Pretraining(epochs=1, batch_size=20, temperature=0.5),
            model_options={},
        )

    federation, data, hub = loopback.prepare(
        root, create_federation, split(2), Limits(), rounds=1, rehearsal=False
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
