"""Weights cast all at once give the results of autocast, which casts them one by one."""

import pytest
import torch
from torch import nn

from fedaux_pl.accelerate.casting import call_cast
from fedaux_pl.accelerate.versions import speed_up
from tests.texts import CONFIG, encoder, ids

CPU = torch.device("cpu")


def gradients(model, call):
    """The hidden states of a call and the gradients of the parameters."""
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = call().last_hidden_state
    states.float().square().sum().backward()
    return states, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("kind", ["bert", "albert", "roberta"])
def test_states_and_gradients_are_those_of_autocast(kind):
    """ALBERT shares weights: their gradients are summed as with autocast's cache."""
    model = encoder(config=CONFIG | {"model_type": kind}).encoder.eval()
    x = {"input_ids": ids(9, 20, 4).long(), "attention_mask": torch.ones(3, 20)}
    states, expected = gradients(model, lambda: model(**x))
    found, actual = gradients(model, lambda: call_cast(model, CPU, x))
    assert torch.equal(states, found)
    assert any(gradient.abs().sum() > 0 for gradient in expected.values())
    for name, gradient in expected.items():
        assert actual[name].dtype == torch.float32
        torch.testing.assert_close(actual[name], gradient, msg=name)


def test_layers_get_weights_that_are_cast_already(monkeypatch):
    model, seen = encoder().encoder, []
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(
                lambda layer, _: seen.extend((layer.weight.dtype, layer.bias.dtype))
            )
    x = {"input_ids": ids(9, 20).long()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call_cast(model, CPU, x)
    assert seen
    assert set(seen) == {torch.bfloat16}
    seen.clear()
    call_cast(model, CPU, x)
    assert set(seen) == {torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_frozen_parameters_have_no_gradient():
    model = encoder().encoder.eval()
    layer = model.encoder.layer[0].attention.self.query
    layer.requires_grad_(False)
    x = {"input_ids": ids(9, 20).long()}
    _, found = gradients(model, lambda: call_cast(model, CPU, x))
    assert [name for name, gradient in found.items() if gradient is None] == [
        "encoder.layer.0.attention.self.query.weight",
        "encoder.layer.0.attention.self.query.bias",
    ]


def test_encoders_cast_their_weights_at_once(monkeypatch):
    called = []
    monkeypatch.setattr(
        "fedaux_pl.accelerate.bert.fast_encoder.call_cast",
        lambda *args: called.append(args[1]) or call_cast(*args),
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        speed_up(encoder())(ids(5, 9))
    assert called == [CPU]
