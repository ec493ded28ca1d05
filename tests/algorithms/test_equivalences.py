"""Methods that are equal if their difference is switched off, and rounds against naive loops."""

import copy

import pytest
import torch
import torch.nn.functional as F

from fedaux_pl.algorithms import Centralized, FedAUX, FedAvg, FedBE, FedDF, FedProx
from fedaux_pl.federation import Distillation, LocalTraining
from fedaux_pl.federation import federation as rounds
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.server import Server
from fedaux_pl.scoring import Step
from tests.federations import (
    MIXED,
    assert_close,
    assert_same,
    assign,
    create,
    fit,
    run,
    split,
    weights,
)
from tests.paper import paper_fedaux

# Adam divides a gradient by its magnitude and so amplifies rounding errors of small ones.
STEADY = {
    "local": LocalTraining(batch_size=16, optimizer="sgd", lr=0.05),
    "distillation": Distillation(batch_size=16, optimizer="sgd", lr=0.05),
}


def spy(monkeypatch, owner, name):
    """Records the arguments and results of a function."""
    calls = []
    original = getattr(owner, name)

    def called(*args, **kwargs):
        result = original(*args, **kwargs)
        calls.append((args, copy.deepcopy(result)))  # live tensors change later
        return result

    monkeypatch.setattr(owner, name, called)
    return calls


def test_fedprox_with_mu_0_is_fedavg(tmp_path):
    plain, zero, held = (
        weights(run(tmp_path, algorithm))
        for algorithm in (FedAvg(), FedProx(mu=0.0), FedProx(mu=1.0))
    )
    assert_same(plain, zero)
    assert not torch.equal(plain["resnet8.conv1.weight"], held["resnet8.conv1.weight"])


def test_fedaux_with_equal_scores_is_feddf_with_pretraining(tmp_path, monkeypatch):
    plain = run(tmp_path, FedDF(pretrained=True), **STEADY)
    certain = run(tmp_path, paper_fedaux(epsilon=None), **STEADY)
    assert certain.history[-1]["certainty/effective_teachers"] < 3 - 1e-3
    original = Step.release

    def with_zero_head(*args, **kwargs):
        head = original(*args, **kwargs)
        head.weight.zero_()
        return head

    monkeypatch.setattr(Step, "release", with_zero_head)
    equal = run(tmp_path / "other", paper_fedaux(epsilon=None), **STEADY)
    assert equal.history[-1]["certainty/effective_teachers"] == pytest.approx(3)
    assert_close(weights(equal), weights(plain))
    with pytest.raises(AssertionError):
        assert_close(weights(certain), weights(plain))


def start_of(federation, data):
    """The server's model before the first round."""
    options = {"local": federation.local, "seed": federation.seed}
    model = create(federation.algorithm, dict(federation.clients), **options)
    model.trainer = federation.trainer
    model.setup("fit")
    return copy.deepcopy(model.students["resnet8"])


def by_hand(net, data, rounds, carry):
    """Ordinary training: Adam and cross-entropy on the same batches."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    net.train()
    for round_ in range(1, rounds + 1):
        if not carry:
            optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        for x, labels in data.client_batches(0, 32, seed=round_):
            optimizer.zero_grad()
            F.cross_entropy(net(x), labels).backward()
            optimizer.step()
    return {f"resnet8.{key}": value for key, value in net.state_dict().items()}


def test_one_client_is_ordinary_training(tmp_path):
    """With one client the average is its model; keeping Adam's state is the only choice."""
    results = []
    for algorithm in (FedAvg(), Centralized()):
        data = split(1)
        federation = create(algorithm, {"resnet8": 1}, local=LocalTraining(batch_size=32))
        fit(tmp_path, federation, 2, data)
        results.append(weights(federation))
        carry = algorithm.keeps_optimizer
        assert_same(results[-1], by_hand(start_of(federation, data), data, 2, carry))
        steps = [int(s["state"][0]["step"]) for s in federation.state.client_optimizers.values()]
        assert steps == ([4] if carry else [])  # 2 batches of 32 in each of 2 rounds
    a, b = (result["resnet8.conv1.weight"] for result in results)
    assert not torch.equal(a, b)


def test_two_epochs_go_over_the_data_in_two_orders(tmp_path):
    data = split(1)
    federation = create(clients={"resnet8": 1}, local=LocalTraining(batch_size=32, epochs=2))
    fit(tmp_path, federation, 1, data)
    net = start_of(federation, data).train()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    batches = data.client_batches(0, 32, seed=1)
    for x, labels in [*batches, *batches]:  # every pass counts one epoch on
        optimizer.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        optimizer.step()
    expected = {f"resnet8.{key}": value for key, value in net.state_dict().items()}
    assert_same(weights(federation), expected)


def test_the_order_of_clients_does_not_matter(tmp_path, monkeypatch):
    plain = run(tmp_path, FedDF(), **STEADY)
    original = rounds.sample_clients
    monkeypatch.setattr(rounds, "sample_clients", lambda *args: original(*args)[::-1])
    reverse = run(tmp_path, FedDF(), **STEADY)
    assert_close(weights(reverse), weights(plain))
    assert reverse.history[0]["client_loss/mean"] == pytest.approx(
        plain.history[0]["client_loss/mean"]
    )


def test_the_average_is_weighted_by_the_number_of_samples(tmp_path, monkeypatch):
    """A naive loop over the updates, with very different sizes."""
    federation = create()
    data = split(3)
    data.setup()
    shares = [[0, 1, 2, 3], list(range(4, 20)), list(range(20, 64))]
    assign(data, shares)
    calls = spy(monkeypatch, LocalClients, "train")
    fit(tmp_path, federation, 1, data)
    ((_, updates),) = calls
    assert [update.size for update in updates] == [4, 16, 44]
    for key, value in federation.students["resnet8"].state_dict().items():
        own = [update.state[key].double() for update in updates]
        mean = (4 * own[0] + 16 * own[1] + 44 * own[2]) / 64
        mean = mean if value.is_floating_point() else mean.round()
        torch.testing.assert_close(value, mean.to(value.dtype))
        if key == "conv1.weight":
            assert not torch.allclose(value.double(), (own[0] + own[1] + own[2]) / 3, atol=1e-4)


def test_head_only_training_does_not_change_h(tmp_path, monkeypatch):
    """For clients and for students, BatchNorm's statistics included."""
    calls = spy(monkeypatch, LocalClients, "train")
    federation = run(tmp_path, FedDF(), 3, trained="head")
    start = start_of(federation, None).state_dict()
    heads = {"head.weight", "head.bias"}
    for states in [
        federation.students["resnet8"].state_dict(),
        *(update.state for _, updates in calls for update in updates),
    ]:
        assert {key for key in states if not torch.equal(states[key], start[key])} == heads
    assert len(calls) == 3
    # the students moved beyond the average: distillation trains g too
    assert federation.history[0]["distillation_loss/resnet8"] > 0
    assert not torch.equal(
        federation.students["resnet8"].head.weight,
        run(tmp_path, FedAvg(), 3, trained="head").students["resnet8"].head.weight,
    )


def test_mixed_architectures(tmp_path, monkeypatch):
    """Clients 0, 1 and 2: ShuffleNet has no client in this round, but is distilled, too."""
    monkeypatch.setattr(
        rounds,
        "sample_clients",
        lambda n, *_: [0] if n == 1 else [0, 1, 2],
    )
    calls = spy(monkeypatch, LocalClients, "train")
    averages = spy(monkeypatch, Server, "average")
    federation = create(FedDF(), dict(MIXED))
    trainer = fit(tmp_path, federation, 1)
    ((_, updates),) = calls
    ((_, average),) = averages
    assert [update.architecture for update in updates] == ["resnet8", "resnet8", "mobilenetv2"]
    assert_same(average["mobilenetv2"], updates[2].state)
    assert_close(
        {"w": average["resnet8"]["conv1.weight"]},
        {
            "w": sum(u.size * u.state["conv1.weight"] for u in updates[:2])
            / sum(u.size for u in updates[:2])
        },
    )
    fresh = create(FedDF(), dict(MIXED))
    fresh.trainer = trainer
    fresh.setup("fit")
    untouched = fresh.students["shufflenet"].state_dict()
    assert_same(average["shufflenet"], untouched)
    student = federation.students["shufflenet"].state_dict()
    assert not torch.equal(student["head.weight"], untouched["head.weight"])
    entry = federation.history[0]
    for name in MIXED:
        assert 0 <= entry[f"accuracy/{name}"] <= 1
        assert 0 <= entry[f"averaged_accuracy/{name}"] <= 1
        assert entry[f"distillation_loss/{name}"] > 0
    x, labels = federation.data.test_examples.inputs, federation.data.test_examples.targets
    federation.eval()
    with torch.no_grad():
        logits = {name: model(x) for name, model in federation.students.items()}
    for name, values in logits.items():
        hits = (values.argmax(1) == labels).float().mean()
        assert entry[f"accuracy/{name}"] == pytest.approx(hits.item())
    together = sum(logits.values()).argmax(1)
    assert entry["accuracy"] == pytest.approx((together == labels).float().mean().item())


@pytest.mark.parametrize("algorithm", [FedBE(samples=0), FedBE(samples=2), FedDF(), paper_fedaux()])
def test_soft_labels_against_a_naive_loop(tmp_path, monkeypatch, algorithm):
    """Predictions of each client's model, aggregated by hand."""
    labels = spy(monkeypatch, type(algorithm), "soft_labels")
    members = spy(monkeypatch, type(algorithm), "members")
    federation = create(algorithm)
    fit(tmp_path, federation, 1)
    _, soft = labels[0]
    (_, models), _ = members[0]
    x = federation.data.distill_inputs
    net = copy.deepcopy(federation.students["resnet8"]).eval()
    logits = []
    with torch.no_grad():
        for update in models.updates:
            net.load_state_dict(update.state)
            logits.append(net(x))
        net.load_state_dict(models.averages["resnet8"])
        average = net(x)
    if isinstance(algorithm, FedBE):
        expected = sum(values.softmax(1) for values in [*logits, average]) / 4
        close = torch.allclose(soft, expected, atol=1e-6)
        assert close is (algorithm.samples == 0)  # samples are members like the others
    elif isinstance(algorithm, FedAUX):
        scores = federation.evidence.certainty["distill"]
        mixed = sum(s[:, None] * f for s, f in zip(scores, logits, strict=True))
        expected = (mixed / scores.sum(0)[:, None]).softmax(1)
        torch.testing.assert_close(soft, expected)
    else:
        torch.testing.assert_close(soft, (sum(logits) / 3).softmax(1))
    assert soft.shape == (len(x), 10)
    torch.testing.assert_close(soft.sum(1), torch.ones(len(x)))
