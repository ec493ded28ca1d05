"""The features of the server's data: those of each part, with D_aux computed once."""

import pytest
import torch

from fedaux_pl.engine.inference import predict_features
from fedaux_pl.federation.public_features import PublicFeatures
from tests.federations import network, split


@pytest.fixture
def data():
    data = split()
    data.prepare_data()
    data.setup("fit")
    return data


def test_features_are_those_of_each_part(data):
    h0 = network().eval()
    features = PublicFeatures(data, {"net": h0})
    expected = {
        "auxiliary": data.auxiliary_inputs,
        "negatives": data.negative_inputs,
        "distill": data.distill_inputs,
        "evaluation": data.evaluation_examples.inputs,
    }
    found = {part: rows["net"] for part, rows in features.parts().items()}
    found |= {"auxiliary": features.auxiliary("net"), "negatives": features.negatives("net")}
    assert found.keys() == expected.keys()
    for part, inputs in expected.items():
        assert torch.equal(found[part], predict_features(h0, inputs)), part


def test_auxiliary_data_are_predicted_once(data, monkeypatch):
    h0, seen = network().eval(), []
    compute = h0.features
    monkeypatch.setattr(h0, "features", lambda x: seen.append(len(x)) or compute(x))
    features = PublicFeatures(data, {"net": h0})
    features.negatives("net")
    features.auxiliary("net")
    features.parts()
    assert sum(seen) == len(data.auxiliary_inputs) + len(data.evaluation_examples.inputs)
