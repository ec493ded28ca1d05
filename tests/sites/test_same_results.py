"""A federation over sites ends bit for bit as the simulation of the same split."""

import copy
import json
from dataclasses import replace

import pytest
import torch

from fedaux_pl.algorithms import (
    FedAUX,
    FedAUXfdp,
    FedAvg,
    FedBE,
    FedClassMeans,
    FedDF,
    FedProx,
)
from fedaux_pl.data import Examples, FederatedDataModule
from fedaux_pl.federation import Distillation, Federation, LocalTraining, Pretraining
from fedaux_pl.scoring import MeanScoring, PaperScoring, Privacy, SecureSums, StatisticsScoring
from fedaux_pl.sites.same_version import minor_version
from fedaux_pl.sites.wire import Message
from tests import texts
from tests.federations import assert_same, create, measured, split, weights
from tests.federations import fit as fit_locally
from tests.sites.loopback import Given, fit, prepare

SMALL_AUX = FedAUX(scoring=MeanScoring(dimensions=8), privacy=Privacy(1.0))
# what real sites cannot plan is given
ONE = StatisticsScoring(dimensions=8, whitening=0.5, releases=1)
TWO_RELEASES = replace(ONE, releases=2)
STATISTICS = {"scoring": ONE, "privacy": Privacy(1.0)}
SECURE = Privacy(1.0, secure=SecureSums(count_share=0.1))  # see ``pinned``
TWO = "FedClassMeans, two releases"
JITTER = "torchvision.transforms.v2.RandAugment"
PAPER = FedAUX(scoring=PaperScoring(), remember=False)
METHODS = {
    "FedAVG": FedAvg(),
    "FedPROX": FedProx(mu=0.1),
    "FedAVG+P": FedAvg(pretrained=True),
    "FedDF": FedDF(),
    "FedBE": FedBE(),
    "FedAUX": SMALL_AUX,
    "FedClassMeans": FedClassMeans(**STATISTICS),
    TWO: FedClassMeans(scoring=TWO_RELEASES, privacy=Privacy(1.0)),
    "FedAUX, statistics": FedAUX(**STATISTICS),
    "FedAUX, two releases": FedAUX(scoring=TWO_RELEASES, privacy=Privacy(1.0)),
    "FedClassMeans, secure sums": FedClassMeans(scoring=ONE, privacy=SECURE),
    "FedAUX, secure sums": FedAUX(scoring=TWO_RELEASES, privacy=SECURE),
    "FedAUXfdp": FedAUXfdp(scoring=MeanScoring(dimensions=8), privacy=Privacy(1.0)),
    "FedAUX of the paper": PAPER,
}
# how many bytes a method sends is known to both, but not who has answered
OWN = ("answered/", "seconds/", "secure_sum/")


def assert_equal_runs(tmp_path, federation_of, data, rounds=2):
    federation, server_data, hub = prepare(tmp_path, federation_of, data, rounds=rounds)
    fit(tmp_path, federation, server_data, rounds)
    local = federation_of()
    fit_locally(tmp_path / "local", local, rounds, data=data)
    assert_same(weights(federation), weights(local))
    over_sites = [
        {key: value for key, value in entry.items() if not key.startswith(OWN)}
        for entry in federation.history
    ]
    assert over_sites == measured(local)
    return federation, hub


def pinned(method):
    """Add the pins of three sites to the options of secure sums."""
    if method.release is None or method.release.scoring.privacy.secure is None:
        return method
    from fedaux_pl.sites.secure_sum import pin, signing_key  # needs an optional package

    privacy = method.privacy
    pins = {name: pin(signing_key(name)) for name in ("site-0", "site-1", "site-2")}
    secure = replace(privacy.secure, pins=pins)
    return replace(method, privacy=replace(privacy, secure=secure))


def images(method, clients, **options):
    return lambda: create(copy.deepcopy(method), clients, **options)


def all_but(quick, cases):
    """The quick cases for CI; the others have the marker."""
    return [c if c in quick else pytest.param(c, marks=pytest.mark.sites) for c in cases]


QUICK = ["FedAVG", "FedAUX, statistics", "FedAUX, secure sums", "FedAUX of the paper"]


@pytest.mark.parametrize("method", all_but(QUICK, METHODS))
def test_methods_end_bit_for_bit_as_local_clients(method, tmp_path):
    auxiliary = {} if METHODS[method].needs_auxiliary else {"auxiliary": None}
    federation_of = images(pinned(METHODS[method]), {"resnet8": 3})
    assert_equal_runs(tmp_path, federation_of, split(3, **auxiliary))


def test_augmentation_and_schedule(tmp_path):
    local = LocalTraining(
        batch_size=16, augmentation={"crop_flip": {}, JITTER: {}}, schedule="cosine"
    )
    assert_equal_runs(tmp_path, images(FedAvg(), {"resnet8": 3}, local=local), split(3))


@pytest.mark.parametrize(("method", "count"), [("FedClassMeans", 3), (TWO, 6)])
def test_private_messages_are_all_that_a_site_sends(method, count, tmp_path):
    federation, hub = assert_equal_runs(tmp_path, images(METHODS[method], {"resnet8": 3}), split(3))
    assert len(hub.sent) == len(federation.state.all_heads) == count
    site = hub.sites["site-0"]
    request = {"kind": "train", "request": "x", "client": 0, "round": 1}
    fields = site.answer(Message({**request, "agreement": site.agreement})).fields
    assert fields == {"request": "x", "code": "settings", "version": minor_version()}


@pytest.mark.parametrize("method", all_but(["FedDF", TWO], ["FedAVG", "FedDF", "FedAUX", TWO]))
def test_mixed_architectures(method, tmp_path):
    clients = {"resnet8": 2, "shufflenet": 1}
    assert_equal_runs(tmp_path, images(METHODS[method], clients, participation=0.7), split(3))


def test_heads_alone_are_trained_and_sent(tmp_path):
    # of FedAUX, and who has answered is in the log and in the status
    federation, hub = assert_equal_runs(
        tmp_path, images(SMALL_AUX, {"resnet8": 3}, trained="head"), split(3), rounds=1
    )
    update = hub.sent[-1]
    whole = sum(t.nbytes for t in federation.students["resnet8"].state_dict().values())
    assert len(update.body) < whole / 2
    assert all(entry["answered/site-1"] == 1.0 for entry in federation.history)
    status = json.loads((tmp_path / "server" / "sites.json").read_text())
    assert [site["last_round"] for site in status["sites"].values()] == [1, 1, 1]


@pytest.mark.parametrize("method", all_but(["FedAUX"], ["FedAVG", "FedDF", "FedAUX"]))
def test_text_encoders_of_two_sizes(method, tmp_path):
    inputs = texts.ids(*([8, 12, 20] * 16))
    labels = torch.arange(48) % 3
    source = Given(
        Examples(inputs, labels, ("a", "b", "c")),
        Examples(inputs[:12], labels[:12], ("a", "b", "c")),
    )
    auxiliary = Given(auxiliary=texts.ids(*([10, 14] * 12), seed=1))
    data = FederatedDataModule(source, auxiliary, num_clients=3, alpha=100.0)

    def federation_of():
        return Federation(
            copy.deepcopy(METHODS[method]),
            {"encoder": 2, "encoder-wide": 1},
            participation=1.0,
            local=LocalTraining(batch_size=8),
            distillation=Distillation(batch_size=8),
            pretraining=Pretraining(epochs=1, batch_size=8),
            model_options={
                "mask_id": 4,
                "encoder": {"config": texts.CONFIG},
                "encoder-wide": {"config": texts.CONFIG | {"hidden_size": 24}},
            },
        )

    assert_equal_runs(tmp_path, federation_of, data)
