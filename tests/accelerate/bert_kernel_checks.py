"""BERT's kernels with inputs that ``bert_pass_checks`` does not have, in Triton's interpreter."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate.bert import fused_operations
from fedaux_pl.accelerate.bert.fused_operations import (
    add_norm,
    attend,
    attend_backward,
    embed,
    word_gradient,
)
from fedaux_pl.accelerate.bert.packing import mean_of_tokens, pack_texts
from fedaux_pl.models import Encoder
from tests.accelerate.bert_reference import (
    assert_close,
    is_kept,
    pass_config,
    seeds,
    small_tiles,  # noqa: F401
)
from tests.texts import ids

pytestmark = pytest.mark.usefixtures("small_tiles")


@pytest.mark.parametrize("word", [-1, 60])
def test_ids_outside_of_the_vocabulary_give_nan_and_write_nowhere(word):
    width = 8
    x = ids(7, 3, 5, width=7)
    x[1, 1] = word
    config = pass_config(x, width)
    tables, norm = [torch.randn(rows, width) for rows in (60, 9, 2)], torch.randn(2, width)
    states, _, _ = embed(config, tables, tuple(norm))
    rows = states.view(3, 7, width)
    assert rows[1, 1].isnan().all()
    assert rows.isnan().sum() == width
    assert word_gradient(config, torch.ones(21, width), tables[0]).sum() == 20 * width


def test_norm_of_large_means():
    y = torch.randn(21, 24, generator=torch.Generator().manual_seed(0))
    residual = torch.full((21, 24), 1000.0)
    states, _, _ = add_norm(pass_config(), y, residual, (torch.ones(24), torch.zeros(24)), 1)
    assert_close(states, F.layer_norm((y + residual).double(), (24,)), 1e-3)


@pytest.mark.parametrize(
    ("dtype", "padding_index", "max_ranked"),
    [
        (torch.int32, -1, 1000),
        (torch.int64, 5, 1000),
        (torch.int32, 5, 0),  # PyTorch's kernel, for many tokens
    ],
)
def test_gradient_of_the_word_embedding_table(dtype, padding_index, max_ranked, monkeypatch):
    """Words occur never, once, often, and more often than a tile has rows."""
    monkeypatch.setattr(fused_operations, "MAX_RANKED", max_ranked)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 40, (5, 20), generator=generator, dtype=dtype)
    x[:3, 2:15] = 5
    x[:, 0] = 39
    dtokens = torch.randn(100, 24, generator=generator)
    expected = torch.zeros(50, 24, dtype=torch.float64)
    expected.index_add_(0, x.flatten().long(), dtokens.double())
    if padding_index >= 0:
        expected[padding_index] = 0
    assert (x == 5).sum() > 32
    config = dataclasses.replace(pass_config(x), padding_index=padding_index)
    assert_close(word_gradient(config, dtokens, torch.empty(50, 24)), expected)


def test_attention_without_keys_is_zero():
    x = torch.zeros(2, 5, dtype=torch.int64)
    x[0] = 3
    config = pass_config(x, 16)
    qkv = torch.randn(10, 48, generator=torch.Generator().manual_seed(0))
    out = attend(config, qkv, 1)
    assert out[:5].abs().min() > 0
    assert out[5:].eq(0).all()
    dqkv = attend_backward(config, torch.ones(10, 16), qkv, 1, torch.empty(config.parts, 48))
    assert dqkv[5:].eq(0).all()
    assert dqkv.isfinite().all()


def test_dropout_masks_are_random():
    """Rate, correlation of neighbors and of seeds. Other tests compare kernels with these masks."""
    rate, shape = 0.3, torch.Size((400, 256))
    (first, second), other = seeds(0, 2), seeds(1)[0]
    masks = [is_kept(seed, shape, rate) for seed in (first, second, other, first + 1)]
    spread = (rate * (1 - rate) / shape.numel()) ** 0.5
    for mask in masks:
        assert abs(float(mask.double().mean()) - (1 - rate)) < 4 * spread
        centered = mask.double() - (1 - rate)
        for shift, dim in ((1, 0), (1, 1), (2, 1), (16, 1)):
            correlation = (centered * centered.roll(shift, dim)).mean()
            assert abs(float(correlation)) < 4 * rate * (1 - rate) / shape.numel() ** 0.5
    for mask in masks[1:]:
        both = float((masks[0] & mask).double().mean())
        assert abs(both - (1 - rate) ** 2) < 0.01


def test_mean_of_tokens():
    """Of padded texts; the rows of packed texts have the same means and gradients."""

    def gradient(mean, states):
        return torch.autograd.grad((mean * weight).sum(), states)[0]

    torch.manual_seed(0)
    x = ids(11, 4, 1, 7, 2, width=11)
    x[0, 3] = 0
    x[2] = 0
    states, weight = torch.randn(5, 11, 200).requires_grad_(), torch.randn(5, 200)
    exact = states.detach().double().requires_grad_()
    plain = SimpleNamespace(pooling="mean", pad_id=0)
    mean, expected = mean_of_tokens(states, pack_texts(x, 0, 0)), Encoder.pool(plain, exact, x)
    assert_close(mean.detach(), expected.detach())
    assert mean[2].eq(0).all()
    found = gradient(mean, states)
    assert_close(found, gradient(expected, exact))

    packing = pack_texts(x, 40, 0)
    rows = states.detach().flatten(0, 1)[packing.slots.long()].requires_grad_()
    of_rows = mean_of_tokens(rows, packing)
    assert torch.equal(of_rows, mean)
    dpacked = gradient(of_rows, rows)
    assert torch.equal(dpacked[:25], found.flatten(0, 1)[packing.slots.long()][:25])
    assert dpacked[25:].eq(0).all()
