"""With heads alone trained, h(x) of a sample is computed once and is what the steps train on."""

import collections

import pytest
import torch

from fedaux_pl.algorithms import FedAUX, FedAvg, FedDF, FedProx
from fedaux_pl.federation import Federation
from fedaux_pl.federation.settings import LocalTraining
from fedaux_pl.models.resnet import ResNet8
from tests.federations import MIXED, assert_same, create, fit, run, split, weights

ROUNDS = 3


@pytest.fixture
def computed(monkeypatch):
    """Counts the samples of which h(x) is computed outside of learning h_0, by their pixels."""
    counts = collections.Counter()
    features = ResNet8.features

    def counted(self, x):
        if not self.training and not self.conv1.weight.requires_grad:
            counts.update(image.numpy().tobytes() for image in x)
        return features(self, x)

    monkeypatch.setattr(ResNet8, "features", counted)
    return counts


def on_inputs(monkeypatch):
    """Makes all steps compute h(x) themselves."""
    monkeypatch.setattr(Federation, "reads_features", False)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (FedProx(pretrained=True, mu=0.1), {}),
        (FedDF(), {}),
        (FedAUX(), {}),
        (FedAUX(), {"clients": MIXED}),
    ],
)
def test_steps_on_features_are_steps_on_inputs(tmp_path, monkeypatch, algorithm, options):
    clients = options.get("clients", {})
    data = [split(sum(clients.values()) or 3) for _ in range(2)]
    one = create(algorithm, trained="head", **options)
    fit(tmp_path, one, ROUNDS, data[0])
    on_inputs(monkeypatch)
    other = create(algorithm, trained="head", **options)
    fit(tmp_path, other, ROUNDS, data[1])
    torch.testing.assert_close(weights(one), weights(other), rtol=1e-4, atol=1e-5)
    accuracies = [[entry["accuracy"] for entry in each.history] for each in (one, other)]
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.03)


def test_h_is_computed_once_for_each_sample(tmp_path, computed):
    run(tmp_path, FedDF(), ROUNDS, trained="head")
    most = max(computed.values())
    assert len(computed) > 64 + 40
    computed.clear()
    run(tmp_path, FedDF(), 3 * ROUNDS, trained="head")
    assert max(computed.values()) == most


def test_augmented_images_have_features_of_their_own(tmp_path, monkeypatch):
    options = {"trained": "head", "local": LocalTraining(batch_size=16, augmentation="flip")}
    flipped = run(tmp_path, FedAvg(pretrained=True), ROUNDS, **options)
    on_inputs(monkeypatch)
    expected = run(tmp_path, FedAvg(pretrained=True), ROUNDS, **options)
    assert_same(weights(flipped), weights(expected))


def test_another_h_has_other_features(tmp_path):
    federation = run(tmp_path, FedAvg(pretrained=True), 1, trained="head")
    fixed = federation.pool.features["resnet8"]
    model = federation.pool.modules["resnet8"].model
    before = fixed.values.clone()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    fixed.update(model, state | {"head.bias": torch.ones(10)}, [0, 1])
    assert torch.equal(fixed.values, before)
    fixed.update(model, state | {"bn1.bias": torch.ones(8)}, [0, 1])
    [first, second, third] = federation.data.client_indices
    assert (
        not torch.isclose(fixed.values[[*first, *second]], before[[*first, *second]]).all(1).any()
    )
    assert not fixed.values[third].any()


class Unbiased(torch.nn.Module):
    """A network of others, whose head has no bias."""

    feature_dim = 16

    def __init__(self, num_classes):
        super().__init__()
        self.layer = torch.nn.Linear(64, 16)
        self.head = torch.nn.Linear(16, num_classes, bias=False)

    def features(self, x):
        return self.layer(x.flatten(1)).relu()

    def forward(self, x):
        return self.head(self.features(x))


def test_a_head_need_not_have_a_bias(tmp_path):
    clients = {f"{__name__}.Unbiased": 3}
    federation = run(tmp_path, FedDF(), 2, clients=clients, model_options={}, trained="head")
    assert 0 <= federation.history[-1]["accuracy"] <= 1


def test_features_have_the_precision_of_the_steps(tmp_path):
    federation = create(FedAUX(), trained="head")
    fit(tmp_path, federation, 1, precision="bf16-mixed")
    for features in federation.server.features.values():
        assert torch.equal(features, features.bfloat16().float())


class Doubled(ResNet8):
    """A network whose ``forward`` is not g(h(x))."""

    def forward(self, x):
        return self.head(2 * self.features(x))


class DoubledFeatures(ResNet8):
    """The same f = g o h."""

    def features(self, x):
        return 2 * super().features(x)


@pytest.mark.parametrize("algorithm", [FedAvg(), FedDF()])
def test_a_network_computes_its_own_forward(tmp_path, algorithm):
    """In steps, as a teacher and in evaluation."""
    one, other = (
        run(tmp_path, algorithm, clients={f"{__name__}.{kind.__name__}": 3}, trained="head")
        for kind in (Doubled, DoubledFeatures)
    )
    assert not one.reads_features
    assert other.reads_features
    for doubled, expected in zip(weights(one).values(), weights(other).values(), strict=True):
        torch.testing.assert_close(doubled, expected, rtol=1e-4, atol=1e-5)
    for name, expected in other.history[-1].items():
        if "accuracy" in name:
            own = one.history[-1][name.replace("DoubledFeatures", "Doubled")]
            assert own == pytest.approx(expected, abs=0.03), name
