"""FedAvgM, FedAdam and SCAFFOLD against hand-written loops, and what a server step may rely on."""

from itertools import pairwise

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F

from fedaux_pl.algorithms import FedAdam, FedAvg, FedAvgM, FedDF, Scaffold
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation, LocalTraining
from fedaux_pl.federation.server import Server
from fedaux_pl.functional.communication import state_bytes
from tests.algorithms.test_equivalences import spy, start_of
from tests.federations import assert_close, assert_same, assign, create, fit, run, split, weights

LR = 0.05
SGD = {"local": LocalTraining(batch_size=16, optimizer="sgd", lr=LR)}
FOUR = {"clients": {"resnet8": 4}, "participation": 0.5}
METHODS = {
    "FedAvgM": lambda: FedAvgM(server_lr=0.7, beta=0.6),
    "FedAdam": lambda: FedAdam(server_lr=0.02, beta1=0.8, beta2=0.9, tau=1e-2),
    "Scaffold": lambda: Scaffold(server_lr=0.8),
}


def unequal():
    """Four clients with 4, 12, 16 and 32 samples."""
    data = split(4)
    data.setup()
    edges = (0, 4, 16, 32, 64)
    assign(data, [torch.arange(a, b) for a, b in pairwise(edges)])
    return data


# --- plain PyTorch --------------------------------------------------------------------------------


def local_sgd(net, batches, correction):
    """Trains in place with theta <- theta - lr (gradient + correction); returns the steps."""
    net.train()
    steps = 0
    for x, labels in batches:
        net.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        with torch.no_grad():
            for name, p in net.named_parameters():
                p -= LR * (p.grad + correction[name])
        steps += 1
    return steps


def by_hand(method, net, data, selected, sizes):
    """The rounds of a method, and c and all c_i of SCAFFOLD; ``selected`` are the clients."""
    parameters = {name: p.detach().clone() for name, p in net.named_parameters()}
    zeros = {name: torch.zeros_like(p) for name, p in parameters.items()}
    c, own = dict(zeros), {client: dict(zeros) for client in range(len(sizes))}
    m, v = dict(zeros), dict(zeros)
    if method == "FedAdam":
        v = {name: torch.full_like(p, 1e-2**2) for name, p in parameters.items()}
    for t, clients in enumerate(selected, start=1):
        x = {key: value.clone() for key, value in net.state_dict().items()}
        total = sum(sizes[client] for client in clients)
        average = {key: torch.zeros_like(value, dtype=torch.float64) for key, value in x.items()}
        change_of_c = {name: torch.zeros_like(p) for name, p in parameters.items()}
        for client in clients:
            net.load_state_dict(x)
            correction = {name: c[name] - own[client][name] for name in c}
            if method != "Scaffold":
                correction = zeros
            steps = local_sgd(net, data.client_batches(client, 16, seed=t), correction)
            for key, y in net.state_dict().items():
                average[key] += sizes[client] / total * y.double()
            for name, p in net.named_parameters():
                new = own[client][name] - c[name] + (x[name] - p.detach()) / (steps * LR)
                change_of_c[name] += sizes[client] / sum(sizes) * (new - own[client][name])
                own[client][name] = new
        for key in x:  # buffers, among them the integer counters of BatchNorm
            mean = average[key] if x[key].is_floating_point() else average[key].round()
            average[key] = mean.to(x[key].dtype)
        new = dict(average)
        for name in parameters:
            c[name] = c[name] + change_of_c[name]
            delta = average[name] - x[name]
            if method == "FedAvgM":
                v[name] = 0.6 * v[name] - delta
                new[name] = x[name] - 0.7 * v[name]
            elif method == "FedAdam":
                m[name] = 0.8 * m[name] + 0.2 * delta
                v[name] = 0.9 * v[name] + 0.1 * delta**2
                new[name] = x[name] + 0.02 * m[name] / (v[name].sqrt() + 1e-2)
            else:
                new[name] = x[name] + 0.8 * delta
        net.load_state_dict(new)
    return {f"resnet8.{key}": value for key, value in net.state_dict().items()}, c, own


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """FedAVG, from which the methods must differ."""
    federation = create(FedAvg(), **FOUR, **SGD)
    fit(tmp_path_factory.mktemp("plain"), federation, 3, unequal())
    return federation


@pytest.mark.parametrize("method", METHODS)
def test_rounds_against_a_hand_written_loop(tmp_path, method, plain):
    """Three rounds with two of four unequal clients each, one of which takes part twice."""
    data, federation = unequal(), create(METHODS[method](), **FOUR, **SGD)
    fit(tmp_path, federation, 3, data)
    selected = [federation.select_clients(t) for t in (1, 2, 3)]
    assert len({client for clients in selected for client in clients}) < 6
    sizes = [4, 12, 16, 32]
    expected, c, own = by_hand(method, start_of(federation, data), data, selected, sizes)
    assert_close(weights(federation), expected, rtol=1e-4, atol=2e-5)
    with pytest.raises(AssertionError):
        assert_close(weights(plain), expected, rtol=1e-2, atol=1e-3)
    if method == "Scaffold":
        assert_close(federation.carried.server_states["resnet8"]["c"], c, rtol=1e-3, atol=1e-4)
        for client, kept in federation.carried.client_states.items():
            assert_close(kept, own[client], rtol=1e-3, atol=1e-4)
        for key, value in federation.carried.server_states["resnet8"]["c"].items():
            mean = (
                sum(sizes[i] * own[key] for i, own in federation.carried.client_states.items()) / 64
            )
            torch.testing.assert_close(value, mean)  # c is the mean of all c_i


# --- equal to FedAVG where the equations are ------------------------------------------------------


def test_a_step_without_momentum_is_fedavg_bit_for_bit(tmp_path):
    plain = run(tmp_path, FedAvg(), 2)
    assert_same(weights(run(tmp_path, FedAvgM(server_lr=1.0, beta=0.0), 2)), weights(plain))
    with pytest.raises(AssertionError):
        assert_same(weights(run(tmp_path, FedAvgM(server_lr=1.0, beta=0.1), 2)), weights(plain))


@pytest.mark.parametrize(("clients", "number"), [(3, 1), (1, 3)])
def test_scaffold_is_fedavg_while_c_and_c_i_are_equal(tmp_path, clients, number):
    """In the first round both are zero; with one client, they are the same in every round."""
    options = {"clients": {"resnet8": clients}, **SGD}
    federation, plain = (
        run(tmp_path, algorithm, number, **options) for algorithm in (Scaffold(), FedAvg())
    )
    assert_same(weights(federation), weights(plain))
    for name in ("client_loss/mean", "client_loss/max"):  # the correction is not in the loss
        assert federation.history[-1][name] == plain.history[-1][name]


# --- what is stepped ------------------------------------------------------------------------------


def test_with_a_fixed_h_only_g_is_stepped_and_sent(tmp_path):
    federation = run(tmp_path, Scaffold(server_lr=0.5), 2, trained="head", **SGD)
    start, end = start_of(federation, None).state_dict(), federation.students["resnet8"]
    heads = {"head.weight", "head.bias"}
    assert {k for k, v in end.state_dict().items() if not torch.equal(v, start[k])} == heads
    assert federation.carried.server_states["resnet8"]["c"].keys() == heads
    assert all(kept.keys() == heads for kept in federation.carried.client_states.values())
    head = state_bytes({key: start[key] for key in heads})
    assert [entry["bytes/up"] for entry in federation.history] == [6 * head] * 2


class Still(FedDF):
    """A server that does not move its parameters, and counts its steps."""

    def server_step(self, aggregate):
        return aggregate.theta, {"steps": {"count": torch.ones(1)}}


def test_students_are_distilled_from_the_step(tmp_path, monkeypatch):
    """Parameters are the method's, BatchNorm's statistics the clients' averages."""
    calls = spy(monkeypatch, Server, "distill")
    federation = run(tmp_path, Still(), 1)
    [((_, round_, _), _)] = calls
    starts = round_.averages
    before = start_of(federation, None)
    for name, p in before.named_parameters():
        assert torch.equal(starts["resnet8"][name], p), name
    assert not torch.equal(starts["resnet8"]["bn1.running_mean"], before.bn1.running_mean)
    after = federation.students["resnet8"]
    assert not torch.equal(after.head.weight, before.head.weight)
    assert federation.carried.server_states["resnet8"]["steps"]["count"] == 1


def test_every_architecture_has_its_own_state(tmp_path, monkeypatch):
    """ShuffleNet has no client in round 2: its model and its c stay as they are."""
    monkeypatch.setattr(
        Federation, "select_clients", lambda self, t: [0, 1, 2] if t == 1 else [0, 1]
    )
    federation = create(Scaffold(), {"resnet8": 2, "shufflenet": 1}, **SGD)
    states = []

    class Keep(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            states.append((weights(module), dict(module.carried.server_states)))

    fit(tmp_path, federation, 2, callbacks=[Keep()])
    (before, first), (after, second) = states
    for name, same in (("shufflenet", True), ("resnet8", False)):
        keys = [key for key in before if key.startswith(name)]
        assert all(torch.equal(before[key], after[key]) for key in keys) is same
        assert (first[name] is second[name]) is same
    assert (
        second["shufflenet"]["c"].keys()
        == dict(federation.students["shufflenet"].named_parameters()).keys()
    )
    # alone of its architecture, client 2 has c = c_2
    assert_same(federation.carried.client_states[2], second["shufflenet"]["c"])


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("create_method", "message"),
    [
        (lambda: FedAvgM(server_lr=0), "server_lr: got 0; expected to be a positive number"),
        (lambda: FedAvgM(beta=1.0), r"beta: got 1.0; expected to lie in \[0, 1\)"),
        (lambda: FedAdam(server_lr=float("nan")), "server_lr: got .* to be a positive number"),
        (lambda: FedAdam(beta1=-0.1), r"beta1: got -0.1; expected to lie in \[0, 1\)"),
        (lambda: FedAdam(beta2="0.9"), r"beta2: got '0.9'; expected to lie in \[0, 1\)"),
        (lambda: FedAdam(tau=0.0), "tau: got 0.0; expected to be a positive number"),
        (lambda: Scaffold(server_lr=-1), "server_lr: got -1; expected to be a positive number"),
    ],
)
def test_wrong_options(create_method, message):
    with pytest.raises(ValueError, match=message):
        create_method()


@pytest.mark.parametrize(
    ("local", "trainer", "message"),
    [
        ({"optimizer": "adam"}, {}, r"local.optimizer is adam: set it to sgd \(--model.local.opt"),
        ({"momentum": 0.9}, {}, r"local.momentum is 0.9: set it to 0 "),
        ({"weight_decay": 1e-4}, {}, r"local.weight_decay is 0.0001: set it to 0 "),
        ({"clip_norm": 1.0}, {}, r"local.clip_norm is 1.0: set it to null "),
        ({}, {"precision": "16-mixed"}, r"16-mixed skips some .* set it to bf16-mixed or 32-true"),
    ],
)
def test_scaffold_needs_plain_sgd(tmp_path, local, trainer, message):
    federation = create(Scaffold(), local=LocalTraining(**({"optimizer": "sgd"} | local)))
    with pytest.raises(ConfigurationError, match=message) as error:
        federation.algorithm.check_clients(
            federation.local.optimizer_settings.plain(), trainer.get("precision", "32-true")
        )
    assert "\n" not in str(error.value)
    if not trainer:  # the CPU has no 16-mixed
        with pytest.raises(ConfigurationError, match=message):
            fit(tmp_path, federation, 1)
        assert not federation.students  # before anything is created or trained


def test_a_step_that_is_too_large_is_named(tmp_path, monkeypatch):
    """Whether only the predictions overflow or the weights themselves."""
    huge = FedAdam(server_lr=1e38)
    with pytest.raises(FloatingPointError, match=r"hold NaN .* or server_lr in one with a server"):
        run(tmp_path, huge, 1)
    monkeypatch.setattr(huge, "server_lr", 1e300)
    with pytest.raises(FloatingPointError, match="FedAdam gave NaN or infinity: lower its server"):
        run(tmp_path, huge, 1)
