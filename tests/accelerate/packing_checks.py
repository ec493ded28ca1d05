"""Packed texts give the results of padded ones, in Triton's interpreter."""

import pytest
import torch

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate.bert import fast_encoder, mean_pooling, pass_config
from fedaux_pl.accelerate.bert.fused_pass import bert_states
from fedaux_pl.accelerate.bert.mean_pooling import mean_of_tokens
from fedaux_pl.accelerate.bert.packing import pack, unpack
from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.versions import speed_up
from fedaux_pl.modules import LanguageModeling
from tests.texts import CONFIG, encoder, ids

LENGTHS = (11, 4, 1, 7, 2)
DROPPING = CONFIG | {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
SMALL = DROPPING | {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Then small tensors have several tiles and parts, too."""
    monkeypatch.setattr(pass_config, "TILE", 256)
    monkeypatch.setattr(pass_config, "FEW_PARTS", 3)


@pytest.fixture
def packed(monkeypatch):
    """Fused passes on the CPU, in float32; returns the (texts, rows) of each packed pass."""
    monkeypatch.setattr(fast_encoder, "can_fuse", lambda model, x: x.ndim == 2)
    monkeypatch.setattr(fast_encoder, "compute_dtype", lambda x: torch.float32)
    monkeypatch.setattr(mean_pooling, "fusable", lambda x: True)
    sizes = []

    def recorded(x, rows, pad_id):
        sizes.append((len(x), rows))
        return pack(x, rows, pad_id)

    monkeypatch.setattr(fast_encoder, "pack", recorded)
    return sizes


def perturbed(config, **options):
    """An encoder of which no parameter is zero or one."""
    model = encoder(config=config, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def assert_same(found, expected, tolerance=1e-5):
    assert found.shape == expected.shape
    assert (found - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("rows", [25, 26, 64])  # full, one row left over, more than two texts
def test_rows_of_texts(rows, dtype):
    x = ids(*LENGTHS, width=11).to(dtype)
    x[0, 3] = 0  # padding within a text has a row
    x[2] = 0  # and so has the first position of a text of padding only
    packing = pack(x, rows, 0)
    positions = [(text, place) for text, count in enumerate(LENGTHS) for place in range(count)]
    slots = [text * 11 + place for text, place in positions]
    spare = rows - 25
    assert packing.slots.tolist() == slots + [0] * spare
    assert packing.ids.tolist() == [int(x[one]) for one in positions] + [0] * spare
    assert packing.ids.dtype == dtype
    assert packing.starts[:6].tolist() == [0, 11, 15, 16, 23, 25]
    spare_starts = packing.starts[5:]
    assert spare_starts[-1] == rows
    assert spare_starts.diff().amax() <= 11
    assert len(spare_starts) == packing.all_texts - 5 + 1
    states = torch.arange(1.0, rows + 1)[:, None].requires_grad_()
    padded = unpack(states, packing)
    expected = torch.zeros(5 * 11)
    expected[slots] = torch.arange(1.0, 26)
    assert torch.equal(padded.flatten(), expected)
    weight = torch.randn(5, 11, 1)
    (padded * weight).sum().backward()
    assert torch.equal(states.grad[:25, 0], weight.flatten()[slots])
    assert states.grad[25:].eq(0).all()


def test_more_tokens_than_rows_give_nan_and_write_nowhere():
    model, x = perturbed(SMALL).encoder, ids(4, 3, width=4)
    packing = pack(x, 6, 0)
    assert packing.ids.eq(-1).all()
    assert packing.starts.amax() == 6
    assert bert_states(model, x, 0, torch.float32, packing=packing).isnan().all()


@pytest.mark.parametrize(("rows", "causal"), [(13, True), (32, False)])
def test_states_and_gradients_are_those_of_padded_texts(rows, causal):
    """With the same seed, the same values are dropped."""
    model, x = perturbed(DROPPING | {"num_hidden_layers": 1}).train(), ids(7, 1, 5, width=7)
    x[0, 3] = 0
    is_used = torch.arange(7) < torch.tensor([7, 1, 5])[:, None]
    weight = torch.randn(3, 7, 16) * is_used[:, :, None]

    def run(packing):
        model.zero_grad()
        torch.manual_seed(3)
        states = bert_states(model.encoder, x, 0, torch.float32, causal=causal, packing=packing)
        if packing is not None:
            assert states.shape == (rows, 16)
            states = unpack(states, packing)
        (states * weight).sum().backward()
        return states.detach() * (weight != 0), [p.grad for p in model.encoder.parameters()]

    expected, wanted = run(None)
    states, found = run(pack(x, rows, 0))
    assert_same(states, expected)
    size = max(gradient.norm() for gradient in wanted)
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).norm() <= 1e-5 * max(float(other.norm()), 0.01 * float(size))


def test_means_and_their_gradients_are_those_of_padded_texts():
    torch.manual_seed(0)
    x = ids(*LENGTHS, width=11)
    x[2] = 0
    padded, weight = torch.randn(5, 11, 200).requires_grad_(), torch.randn(5, 200)
    expected = mean_of_tokens(padded, x, 0)
    (expected * weight).sum().backward()
    packing = pack(x, 40, 0)
    states = padded.detach().flatten(0, 1)[packing.slots.long()].requires_grad_()
    found = mean_of_tokens(states, x, 0, packing)
    assert torch.equal(found, expected)
    (found * weight).sum().backward()
    known = padded.grad.flatten(0, 1)[packing.slots.long()]
    assert torch.equal(states.grad[:25], known[:25])
    assert states.grad[25:].eq(0).all()


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_features(pooling, packed):
    model = speed_up(perturbed(SMALL, pooling=pooling)).train()
    x = ids(5, 2, width=5)

    def run(rows):
        model.zero_grad()
        torch.manual_seed(1)
        with using(packed=(2, rows)):
            features = model.features(x)
        features.square().sum().backward()
        gradients = [p.grad.flatten() for p in model.encoder.parameters()]
        return features.detach(), torch.cat(gradients)

    for one, other in zip(run(9), run(0), strict=True):
        assert_same(one, other)
    assert packed == [(2, 9)]
    with using(packed=(3, 9)), torch.no_grad():  # another number of texts
        model.features(x)
    assert len(packed) == 1


@pytest.mark.parametrize("objective", ["masked", "next"])
def test_language_modeling_masks_the_same_tokens(objective, packed):
    options = {"config": SMALL, "mask_id": 4}
    torch.manual_seed(0)
    module = speed_up(LanguageModeling("encoder", objective, model_options=options)).train()
    x = ids(5, 3, width=5)

    def run(rows):
        module.zero_grad()
        torch.manual_seed(1)
        with using(packed=(2, rows)):
            loss = module.training_step(x, 0)
        loss.backward()
        gradients = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
        return loss.detach(), torch.cat(gradients)

    for one, other in zip(run(9), run(0), strict=True):
        assert_same(one, other)
    assert packed == [(2, 9)]
