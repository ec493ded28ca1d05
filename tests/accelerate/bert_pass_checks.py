"""The fused pass of BERT, in Triton's interpreter."""

import copy

import pytest
import torch
from torch.nn import functional as F

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate.bert import fast_encoder
from fedaux_pl.accelerate.bert.encoder_pass import bert_states
from fedaux_pl.accelerate.bert.packing import pack_texts
from fedaux_pl.accelerate.context import current
from fedaux_pl.accelerate.convolution.weight_gradients import (
    join_weight_gradients,
    weight_gradients_on,
)
from fedaux_pl.accelerate.versions import speed_up
from fedaux_pl.models.encoder import TOKENS_PER_PASS
from tests.accelerate.bert_reference import (
    DROPPING,
    drop,
    fused_on_the_cpu,  # noqa: F401
    perturbed,
    seeds,
    small_tiles,  # noqa: F401
)
from tests.accelerate.convolution_helpers import record_streams
from tests.texts import CONFIG, ids

pytestmark = pytest.mark.usefixtures("small_tiles", "fused_on_the_cpu")
ONE_LAYER = CONFIG | {"num_hidden_layers": 1}


def backward(network, states, weight):
    """The states and the gradients of all parameters."""
    network.zero_grad()
    (states * weight).sum().backward()
    return states.detach(), {n: p.grad for n, p in network.encoder.named_parameters()}


def assert_same(found, expected, of_states, of_gradients):
    assert found[0].dtype == torch.float32
    assert (found[0] - expected[0]).norm() <= of_states * expected[0].norm()
    for name, known in expected[1].items():
        gradient = found[1][name]
        assert gradient.shape == known.shape
        assert gradient.dtype == torch.float32
        # a bias of all keys changes no softmax: zero but for rounding
        size = expected[1][name.replace("key", "query")].norm()
        assert (gradient - known).norm() <= of_gradients * size, name


LONG = ONE_LAYER | {"hidden_size": 24, "intermediate_size": 40, "max_position_embeddings": 80}


@pytest.mark.parametrize(
    ("config", "lengths", "causal", "dtype", "of_states", "of_gradients"),
    [
        (CONFIG, (11, 4, 7), False, torch.float16, 2e-3, 4e-3),
        # sizes that are no powers of two; several blocks of queries
        (LONG, (70, 30), True, torch.float32, 1e-5, 1e-5),
    ],
)
def test_states_and_gradients_are_those_of_the_library(
    config, lengths, causal, dtype, of_states, of_gradients
):
    model = perturbed(config).eval()
    x = ids(*lengths, width=lengths[0])
    x[0, 5] = 0
    weight = torch.randn(*x.shape, config["hidden_size"])
    reference = copy.deepcopy(model).double()
    expected = backward(reference, reference.states(x, causal=causal), weight)
    found = backward(
        model, bert_states(model.encoder, pack_texts(x, 0, 0), dtype, causal=causal), weight
    )
    assert_same(found, expected, of_states, of_gradients)


def test_states_and_gradients_with_the_same_dropout_masks(monkeypatch):
    """The library calls dropout in the order of our dropout layers, each with its own seed."""
    model = perturbed(DROPPING).train()
    x = ids(9, 4, 7, width=9)
    weight = torch.randn(3, 9, 16)
    known = seeds(count=7)  # the embedding's and three for each of two layers
    with monkeypatch.context() as patch:
        patch.setattr(torch, "randint", lambda *args, **options: known)
        states = bert_states(model.encoder, pack_texts(x, 0, 0), torch.float32)
    found = backward(model, states, weight)

    calls = []

    def dropout(values, p, training, *inplace):
        calls.append((p, training))
        return drop(values, known[len(calls) - 1], p)

    reference = copy.deepcopy(model).double()
    reference.encoder.set_attn_implementation("eager")  # its attention calls F.dropout
    monkeypatch.setattr(F, "dropout", dropout)
    expected = backward(reference, reference.states(x), weight)
    assert calls == [(0.2, True), *[(0.3, True), (0.2, True), (0.2, True)] * 2]
    assert_same(found, expected, 1e-5, 1e-5)


def test_every_pass_draws_new_dropout_seeds():
    model = perturbed(DROPPING | {"num_hidden_layers": 1}).train().encoder
    x = ids(5, 3, width=5)

    def states(seed):
        torch.manual_seed(seed)
        return bert_states(model, pack_texts(x, 0, 0), torch.float32)

    first = states(3)
    with torch.no_grad():
        assert torch.equal(states(3), first)  # also without a backward pass
        assert not torch.allclose(states(4), first, rtol=1e-2)


def step(model, x):
    """The features, and the gradients of all parameters, in a step under autocast."""
    model.zero_grad()
    with torch.autocast("cpu", torch.float16):
        features = model.features(x)
        features.square().sum().backward()
    join_weight_gradients()
    return features.detach(), [p.grad for p in model.encoder.parameters()]


def test_features_of_the_fast_version_under_autocast(monkeypatch):
    plain = perturbed(ONE_LAYER | {"hidden_dropout_prob": 0.0}).train()
    model = speed_up(copy.deepcopy(plain))
    x = ids(9, 4, 7, 1)
    shapes, fused_mean = [], fast_encoder.mean_of_tokens

    def counted(encoder, packing, *args, **options):
        shapes.append(tuple(packing.ids.shape))
        return bert_states(encoder, packing, *args, **options)

    monkeypatch.setattr(fast_encoder, "bert_states", counted)
    monkeypatch.setattr(
        fast_encoder, "mean_of_tokens", lambda *args: shapes.append("mean") or fused_mean(*args)
    )
    features, found = step(model, x)
    assert shapes == [(4, 9), "mean"]
    expected, wanted = step(plain, x)
    assert (features - expected).norm() < 2e-3 * expected.norm()
    one, other = (torch.cat([part.flatten() for part in parts]) for parts in (found, wanted))
    assert (one - other).norm() < 5e-3 * other.norm()
    # without gradients texts are sorted by length and run in parts
    monkeypatch.setitem(TOKENS_PER_PASS, "cpu", 16)
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        features = model.eval().features(x)
    assert shapes[2::2] == [(2, 4), (1, 7), (1, 9)]
    assert (features - expected).norm() < 2e-3 * expected.norm()


def test_frozen_parameters_have_no_gradient():
    """Those of the others do not change."""
    model, x = speed_up(perturbed(ONE_LAYER).eval()), ids(5, 3, width=5)
    _, expected = step(model, x)
    for name, parameter in model.encoder.named_parameters():
        parameter.requires_grad_("key" not in name and "LayerNorm" not in name)
    _, found = step(model, x)
    for parameter, gradient, known in zip(model.encoder.parameters(), found, expected, strict=True):
        assert (gradient is None) == (not parameter.requires_grad)
        assert gradient is None or torch.equal(gradient, known)


def test_gradients_of_two_uses_and_a_penalty_add_up():
    model = speed_up(perturbed(ONE_LAYER).eval())
    x = ids(4, 3, width=4)
    _, gradients = step(model, x)
    model.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = sum(model.features(x).square().sum() for _ in range(2))
    loss = loss + sum(0.5 * p.square().sum() for p in model.encoder.parameters())
    loss.backward()
    for parameter, gradient in zip(model.encoder.parameters(), gradients, strict=True):
        expected = 2 * gradient + parameter.detach()
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-4)


def test_weight_gradients_on_a_side_stream(monkeypatch):
    """It waits before each product, its inputs are held, and join waits for it."""
    second, events = record_streams(monkeypatch)
    model = speed_up(perturbed(ONE_LAYER).eval())
    x = ids(5, 3, width=5)
    _, expected = step(model, x)
    with weight_gradients_on(second):
        with torch.autocast("cpu", torch.float16):
            model.zero_grad()
            model.features(x).square().sum().backward()
        late = [n for n, p in model.encoder.named_parameters() if p.grad is None]
        products = 4
        assert events == ["side waits for main", "on side", "off side"] * products
        side = current().side_stream
        assert len(side.in_use) == products
        assert all(len(tensors) == 2 for tensors in side.in_use)
        join_weight_gradients()
        assert events[3 * products :] == ["main waits for side"]
        assert not side.in_use
    linear = (".query.weight", ".key.weight", ".value.weight", ".dense.weight")
    names = [name for name, _ in model.encoder.named_parameters()]
    assert late == [name for name in names if name.endswith(linear)] != []
    for parameter, known in zip(model.encoder.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, known)
        assert parameter.grad.stride() == parameter.stride()


def test_second_derivatives_raise():
    model = perturbed(ONE_LAYER).eval().encoder
    states = bert_states(model, pack_texts(ids(4, width=4), 0, 0), torch.float32)
    parameter = model.encoder.layer[0].output.dense.weight
    (gradient,) = torch.autograd.grad(states.square().sum(), parameter, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
