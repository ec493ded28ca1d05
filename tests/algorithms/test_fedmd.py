"""Clients that exchange predictions on public data: no model leaves them."""

import pytest
import torch

from fedaux_pl.algorithms import DSFL, Ensemble, FedAvg, FedMD, Round, Update
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.functional.communication import state_bytes
from tests.algorithms.test_payload import assert_same_states
from tests.federation.test_resume import fit_saving
from tests.federations import assert_same, create, fit, measured, run, split, weights

TWO = {"resnet8": 2, "shufflenet": 1}


def ensemble(logits):
    updates = [Update(i, "a", 9, 0.0, {"logits": member}) for i, member in enumerate(logits)]
    return Ensemble(Round(1, updates), lambda name, state: state["logits"], logits.shape[1:])


def test_ds_fl_sharpens_the_mean_of_probabilities():
    """Sample by sample, softmax(p / T); T = 0.1 has less entropy than the mean p."""
    logits = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    for temperature in (0.1, 2.0):
        found = DSFL(temperature=temperature).soft_labels(ensemble(logits))
        for sample in range(6):
            mean = sum(torch.softmax(member[sample], dim=0) for member in logits) / 3
            expected = torch.exp(mean / temperature) / torch.exp(mean / temperature).sum()
            torch.testing.assert_close(found[sample], expected)
    with pytest.raises(ValueError, match="temperature: got 0; expected to be a positive number"):
        DSFL(temperature=0)


def test_a_round_sends_predictions_in_place_of_models(tmp_path):
    federation = run(tmp_path, FedMD(), 2, participation=0.7)
    plain = run(tmp_path, FedAvg(), 1, participation=0.7)
    public = len(federation.data.distill_inputs)
    assert public < 40  # of 40 auxiliary digits some are D^-
    for entry in federation.history:
        assert entry["bytes/up"] == entry["bytes/down"] == 2 * public * 10 * 4
    each = state_bytes(plain.students["resnet8"].state_dict())
    assert plain.history[0]["bytes/up"] == 2 * each
    half = run(tmp_path, FedMD(), 1, split(3, distill_fraction=0.5), participation=0.7)
    assert half.history[0]["bytes/up"] == 2 * round(public / 2) * 10 * 4
    [sent, kept] = [line for line in federation.privacy() if line.startswith("NOT private")]
    assert "the predictions on public data and training losses" in sent
    assert "keep between rounds" in kept


def test_no_weights_of_clients_reach_the_server(tmp_path, monkeypatch):
    """Its student starts from its model before the round, BatchNorm's statistics too."""
    federation = create(FedMD())
    train = LocalClients.train
    averages = []

    def spy(self, *args):
        updates = train(self, *args)
        averages.append(federation.server.average(args[2], updates, updates)["resnet8"])
        assert_same(averages[-1], dict(args[2]["resnet8"]))
        return updates

    monkeypatch.setattr(LocalClients, "train", spy)
    fit(tmp_path, federation, 2)
    assert len(averages) == 2


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks")
def test_resumed_is_uninterrupted_and_architectures_are_mixed(tmp_path):
    whole, begun, rest = (create(DSFL(pretrained=True), TWO) for _ in range(3))
    fit(tmp_path, whole, 2)
    fit_saving(tmp_path, begun, 1, tmp_path / "saved")
    fit(tmp_path, rest, 2, ckpt_path=tmp_path / "saved" / "last.ckpt")
    assert_same(weights(rest), weights(whole))
    assert_same_states(rest, whole)
    assert measured(rest) == measured(whole)
