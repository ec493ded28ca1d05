"""Packed texts give the results of padded ones, in Triton's interpreter."""

import pytest
import torch

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate.bert import fast_encoder
from fedaux_pl.accelerate.bert.encoder_pass import bert_states
from fedaux_pl.accelerate.bert.packing import pack_texts, unpack_texts
from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.versions import speed_up
from fedaux_pl.modules import LanguageModeling
from tests.accelerate.bert_reference import DROPPING, perturbed, small_tiles  # noqa: F401
from tests.texts import ids

pytestmark = pytest.mark.usefixtures("small_tiles")
LENGTHS = (11, 4, 1, 7, 2)
SMALL = DROPPING | {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8}


@pytest.fixture
def packed(monkeypatch):
    """Fused passes on the CPU, in float32; returns the (texts, rows) of each packed pass."""
    monkeypatch.setattr(fast_encoder, "can_fuse", lambda model, x: x.ndim == 2)
    monkeypatch.setattr(fast_encoder, "compute_dtype", lambda x: torch.float32)
    sizes = []

    def recorded(x, rows, pad_id):
        sizes.extend([(len(x), rows)] if rows else [])
        return pack_texts(x, rows, pad_id)

    monkeypatch.setattr(fast_encoder, "pack_texts", recorded)
    return sizes


def assert_same(found, expected, tolerance=1e-5):
    assert found.shape == expected.shape
    assert (found - expected).norm() <= tolerance * expected.norm()


# full, one row left over, more than two texts
@pytest.mark.parametrize(
    ("rows", "dtype"), [(25, torch.int32), (26, torch.int64), (64, torch.int32)]
)
def test_rows_of_texts(rows, dtype):
    x = ids(*LENGTHS, width=11).to(dtype)
    x[0, 3] = 0  # padding within a text has a row
    x[2] = 0  # and so has the first position of a text of padding only
    packing = pack_texts(x, rows, 0)
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
    padded = unpack_texts(states, packing)
    expected = torch.zeros(5 * 11)
    expected[slots] = torch.arange(1.0, 26)
    assert torch.equal(padded.flatten(), expected)
    weight = torch.randn(5, 11, 1)
    (padded * weight).sum().backward()
    assert torch.equal(states.grad[:25, 0], weight.flatten()[slots])
    assert states.grad[25:].eq(0).all()


def test_more_tokens_than_rows_give_nan_and_write_nowhere():
    model, x = perturbed(SMALL).encoder, ids(4, 3, width=4)
    packing = pack_texts(x, 6, 0)
    assert packing.ids.eq(-1).all()
    assert packing.starts.amax() == 6
    assert bert_states(model, packing, torch.float32).isnan().all()


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
        states = bert_states(model.encoder, packing, torch.float32, causal=causal)
        assert states.shape == (*packing.ids.shape, 16)
        states = unpack_texts(states, packing)
        (states * weight).sum().backward()
        return states.detach() * (weight != 0), [p.grad for p in model.encoder.parameters()]

    expected, wanted = run(pack_texts(x, 0, 0))
    states, found = run(pack_texts(x, rows, 0))
    assert_same(states, expected)
    size = max(gradient.norm() for gradient in wanted)
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).norm() <= 1e-5 * max(float(other.norm()), 0.01 * float(size))


def assert_packed_like_padded(module, compute, packed):
    """Compares a function of a module and its gradients with 9 rows and without packing."""

    def run(rows):
        module.zero_grad()
        torch.manual_seed(1)
        with using(packed=(2, rows)):
            value = compute()
        value.square().sum().backward()
        gradients = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
        return value.detach(), torch.cat(gradients)

    for one, other in zip(run(9), run(0), strict=True):
        assert_same(one, other)
    assert packed == [(2, 9)]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_features(pooling, packed):
    model, x = speed_up(perturbed(SMALL, pooling=pooling)).train(), ids(5, 2, width=5)
    assert_packed_like_padded(model, lambda: model.features(x), packed)
    with using(packed=(3, 9)), torch.no_grad():  # another number of texts
        model.features(x)
    assert len(packed) == 1


def test_language_modeling_masks_the_same_tokens(packed):
    torch.manual_seed(0)
    options = {"config": SMALL, "mask_id": 4}
    module = speed_up(LanguageModeling("encoder", "masked", model_options=options)).train()
    x = ids(5, 3, width=5)
    assert_packed_like_padded(module, lambda: module.training_step(x, 0), packed)
