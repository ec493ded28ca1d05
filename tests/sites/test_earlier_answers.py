"""A ledger of 1.0.0 with a noisy evaluation: the same question gets the same answer, at no cost."""

import tarfile
from pathlib import Path

import pytest

from fedaux_pl.algorithms import FedAvg
from fedaux_pl.data import Digits, FederatedDataModule
from fedaux_pl.data.fingerprints import key_id, machine_key
from fedaux_pl.sites import Limits, wire
from fedaux_pl.sites.ledger import Ledger
from fedaux_pl.sites.wire import Message
from tests.federations import create
from tests.sites.loopback import Given, start_site

# the state folder after ``answer`` with version 1.0.0, without locks
STATE = Path(__file__).parent / "answers_1_0_0.tar.xz"
ACCURACY = 0.45169270833333336
"""What version 1.0.0 answered."""


def answer(root):
    """Ask a site once for its accuracy with noise, of models that are equal on every machine."""
    train = Digits().train().take(slice(40))
    given = Given(train, Digits().test().take(slice(30)))
    data = FederatedDataModule(given, num_clients=1, holds="private", classes=list(train.classes))

    def create_federation():
        return create(FedAvg(), {"tests.sites.test_earlier_ledger.Ramp": 1}, model_options={})

    limits = Limits(evaluate=True, evaluate_epsilon=0.5, epsilon_limit=1.0)
    site = start_site(create_federation, data, root, limits)
    body = wire.write_tensors(wire.join_states(site.federation.students.states()))
    return site.handlers["evaluate"].answer(0, Message({"round": 1}, body))


def test_a_noisy_answer_of_an_earlier_version_is_given_again(tmp_path, monkeypatch):
    pytest.importorskip("cryptography")  # the network is in a module that needs it
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with tarfile.open(STATE) as archive:
        archive.extractall(tmp_path / "state", filter="data")
    fields, _, guarantee = answer(tmp_path / "site")
    assert fields == {"count": 30, "epsilon": 0.5, "metrics": {"accuracy": ACCURACY}}
    assert "spent so far: epsilon 0.5 in at most 1 about a record" in guarantee
    assert len(Ledger(key_id(machine_key())).entries()) == 1
