"""A ledger that 0.9.0 wrote spends nothing twice: its releases are found and used again."""

import copy
import tarfile
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

import torch
from torch import nn

from fedaux_pl.algorithms import FedAUX
from fedaux_pl.data.fingerprints import key_id, machine_key
from fedaux_pl.federation import Pretraining
from fedaux_pl.scoring import (
    Privacy,
    SecureSums,
    StatisticsScoring,
)
from fedaux_pl.sites import Limits
from fedaux_pl.sites.ledger import Ledger
from fedaux_pl.sites.secure_sum import pin, signing_key
from tests.federations import create, split
from tests.sites import loopback

# the state folder after ``runs`` with version 0.9.0, without locks, and with the entries that local
# runs with secret noise had then; the classifier sent after the secure sum has the digest of a
# machine that rounds square roots as IEEE 754 says
STATE = Path(__file__).parent / "state_0_9_0.tar.xz"


class Ramp(nn.Module):
    """A network whose initial weights are the same on every machine."""

    feature_dim = 8

    def __init__(self, num_classes, in_channels=1):
        super().__init__()
        self.hidden = nn.Linear(16 * in_channels, self.feature_dim)
        self.head = nn.Linear(self.feature_dim, num_classes)
        for parameter in self.parameters():
            steps = torch.arange(parameter.numel()) * 5 % 7 - 3
            parameter.data = steps.view_as(parameter) / 8

    def features(self, x):
        """ReLU of a linear map of 4 x 4 pixels."""
        pooled = nn.functional.adaptive_avg_pool2d(x.float() / 256, 4)
        return self.hidden(pooled.flatten(1)).relu()

    def forward(self, x):
        """f = g o h."""
        return self.head(self.features(x))


def runs(root):
    """Sites with local noise and with secure sums."""
    two = StatisticsScoring(dimensions=4, whitening=0.5, releases=2)
    names = ["site-0", "site-1", "site-2"]
    pins = {name: pin(signing_key(name)) for name in names}
    summed = Privacy(1.0, secure=SecureSums(count_share=0.1, pins=pins))
    limits = Limits(epsilon_limit=9.0, epsilon_limit_alone=99.0)

    def federation_of(method):
        pretraining = Pretraining(epochs=1, batch_size=20, temperature=0.5)
        clients = {f"{__name__}.Ramp": 3}
        return create(copy.deepcopy(method), clients, pretraining=pretraining, model_options={})

    for name, privacy in (("vectors", Privacy(1.0)), ("sums", summed)):
        method = FedAUX(scoring=two, privacy=privacy)
        folder = root / name
        folder.mkdir()
        federation, data, _ = loopback.prepare(
            folder, partial(federation_of, method), split(3), limits=limits, rehearsal=False
        )
        loopback.fit(folder, federation, data, rounds=1)


@pytest.fixture
def state(tmp_path, monkeypatch):
    """The state folder of 0.9.0."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for file in ("answer_collector", "server_sums"):
        monkeypatch.setattr(f"fedaux_pl.sites.{file}._RETRY", 0.0)
    with tarfile.open(STATE) as archive:
        archive.extractall(tmp_path / "state", filter="data")
    return tmp_path / "state" / "fedaux_pl"


def test_what_an_earlier_version_released_is_used_again(state, tmp_path):
    kept = sorted(path.name for path in (state / "h0").glob("*.pt"))
    assert len(Ledger(key_id(machine_key())).entries()) == 18
    runs(tmp_path)
    assert len(Ledger(key_id(machine_key())).entries()) == 18
    assert sorted(path.name for path in (state / "h0").glob("*.pt")) == kept
