"""SCAFFOLD against a hand-written loop, and against FedAVG where both are equal."""

from dataclasses import asdict
from itertools import pairwise

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F

from fedaux_pl.algorithms import FedAvg, RunOptions, Scaffold
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation, LocalTraining
from fedaux_pl.functional.communication import state_bytes
from tests.algorithms.test_equivalences import start_of
from tests.federations import assert_close, assert_same, assign, create, fit, run, split, weights

LR = 0.05
SGD = {"local": LocalTraining(batch_size=16, optimizer="sgd", lr=LR)}
FOUR = {"clients": {"resnet8": 4}, "participation": 0.5}


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


def by_hand(net, data, selected, sizes):
    """The weights after rounds of the selected clients, c and all c_i."""
    parameters = {name: p.detach().clone() for name, p in net.named_parameters()}
    zeros = {name: torch.zeros_like(p) for name, p in parameters.items()}
    c, own = dict(zeros), {client: dict(zeros) for client in range(len(sizes))}
    for t, clients in enumerate(selected, start=1):
        x = {key: value.clone() for key, value in net.state_dict().items()}
        total = sum(sizes[client] for client in clients)
        average = {key: torch.zeros_like(value, dtype=torch.float64) for key, value in x.items()}
        change_of_c = {name: torch.zeros_like(p) for name, p in parameters.items()}
        for client in clients:
            net.load_state_dict(x)
            correction = {name: c[name] - own[client][name] for name in c}
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
            new[name] = x[name] + 0.8 * (average[name] - x[name])
        net.load_state_dict(new)
    return {f"resnet8.{key}": value for key, value in net.state_dict().items()}, c, own


def test_rounds_against_a_hand_written_loop(tmp_path):
    """Three rounds with two of four unequal clients each, one of which takes part twice."""
    data, federation = unequal(), create(Scaffold(server_lr=0.8), **FOUR, **SGD)
    fit(tmp_path, federation, 3, data)
    selected = [federation.select_clients(t) for t in (1, 2, 3)]
    assert len({client for clients in selected for client in clients}) < 6
    sizes = [4, 12, 16, 32]
    expected, c, own = by_hand(start_of(federation, data), data, selected, sizes)
    assert_close(weights(federation), expected, rtol=1e-4, atol=2e-5)
    plain = create(FedAvg(), **FOUR, **SGD)
    fit(tmp_path, plain, 3, unequal())
    with pytest.raises(AssertionError):
        assert_close(weights(plain), expected, rtol=1e-2, atol=1e-3)
    kept = federation.state.client_states
    assert_close(federation.state.server_states["resnet8"]["c"], c, rtol=1e-3, atol=1e-4)
    for client, tensors in kept.items():
        assert_close(tensors, own[client], rtol=1e-3, atol=1e-4)
    for key, value in federation.state.server_states["resnet8"]["c"].items():
        mean = sum(sizes[client] * tensors[key] for client, tensors in kept.items()) / 64
        torch.testing.assert_close(value, mean)  # c is the mean of all c_i


# --- equal to FedAVG where the equations are ------------------------------------------------------


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
    assert federation.state.server_states["resnet8"]["c"].keys() == heads
    assert all(kept.keys() == heads for kept in federation.state.client_states.values())
    head = state_bytes({key: start[key] for key in heads})
    assert [entry["bytes/up"] for entry in federation.history] == [6 * head] * 2


def test_every_architecture_has_its_own_state(tmp_path, monkeypatch):
    """ShuffleNet has no client in round 2: its model and its c stay as they are."""
    monkeypatch.setattr(
        Federation, "select_clients", lambda self, t: [0, 1, 2] if t == 1 else [0, 1]
    )
    federation = create(Scaffold(), {"resnet8": 2, "shufflenet": 1}, **SGD)
    states = []

    class Keep(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            states.append((weights(module), dict(module.state.server_states)))

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
    assert_same(federation.state.client_states[2], second["shufflenet"]["c"])


# --- refused --------------------------------------------------------------------------------------


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
    training = LocalTraining(**({"optimizer": "sgd"} | local))
    precision = trainer.get("precision", "32-true")
    options = RunOptions({"resnet8": 3}, asdict(training), {}, precision)
    with pytest.raises(ConfigurationError, match=message) as error:
        Scaffold().check(options)
    assert "\n" not in str(error.value)
    if not trainer:  # the CPU has no 16-mixed
        with pytest.raises(ConfigurationError, match=message):
            create(Scaffold(), local=training)
