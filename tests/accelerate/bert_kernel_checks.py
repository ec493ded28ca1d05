"""BERT's kernels one by one, in Triton's interpreter."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate.bert import fused_operations
from fedaux_pl.accelerate.bert.fused_operations import (
    add_norm,
    add_norm_backward,
    add_partial_sums,
    attend,
    attend_backward,
    embed,
    embed_backward,
    gelu,
    gelu_backward,
    word_gradient,
)
from fedaux_pl.accelerate.bert.packing import mean_of_tokens, pack
from fedaux_pl.models import Encoder
from tests.accelerate.bert_reference import (
    assert_close,
    drop,
    is_kept,
    pass_config,
    seeds,
    small_tiles,  # noqa: F401
)
from tests.texts import ids

pytestmark = pytest.mark.usefixtures("small_tiles")


def dropped(values, config, index):
    rate = config.rates[index]
    return drop(values, config.seeds[index], rate) if rate else values


def gradients(output, weight, *inputs):
    return torch.autograd.grad((output * weight).sum(), inputs)


def exact(*tensors):
    return [tensor.double().requires_grad_() for tensor in tensors]


def partial_sums(config, count):
    """The columns of one kernel; eight columns of another kernel come before them."""
    return torch.full((config.parts, 8 + count), 7.0)[:, 8:]


def assert_totals(partials, *expected):
    """Compares the sums of one kernel; the columns of the other kernel must be unchanged."""
    matrix = partials._base
    sums = torch.zeros(matrix.shape[1])
    add_partial_sums(matrix, sums)
    assert sums[:8].eq(7 * len(matrix)).all()
    for found, known in zip(sums[8:].split([len(e) for e in expected]), expected, strict=True):
        assert_close(found, known)


@pytest.mark.parametrize(("width", "rate"), [(8, 0.0), (24, 0.3)])
def test_embedding(width, rate):
    torch.manual_seed(0)
    x = ids(7, 3, 5, width=7)
    config = pass_config(x, width, rate)
    tables = torch.randn(60, width), torch.randn(9, width), torch.randn(2, width)
    norm = torch.randn(width), torch.randn(width)
    states, half, saved = embed(config, tables, norm)
    word, position, token_type, weight, bias = exact(*tables, *norm)
    summed = (word[x.long()] + position[:7] + token_type[0]).view(21, width)
    expected = dropped(F.layer_norm(summed, (width,), weight, bias, 1e-5), config, 0)
    assert_close(states, expected.detach())
    assert torch.equal(half, states.half())

    dstates, dhalf = torch.randn(2, 21, width)
    partials = partial_sums(config, 3 * width)
    dsum = embed_backward(config, dstates, dhalf.half(), saved, partials)
    doutput = dstates.double() + dhalf.half().double()
    dwanted, *sums, dtypes = gradients(expected, doutput, summed, weight, bias, token_type)
    assert_close(dsum, dwanted)
    assert_totals(partials, *sums, dtypes[0])


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


@pytest.mark.parametrize(("width", "has_half", "rate"), [(8, False, 0.0), (24, True, 0.3)])
def test_residual_sum_and_norm(width, has_half, rate):
    torch.manual_seed(0)
    config = pass_config(width=width, rate=rate)
    y, residual, dstates, dhalf = torch.randn(4, 21, width)
    norm = torch.randn(width), torch.randn(width)
    states, half, saved = add_norm(config, y, residual, norm, 3)
    exact_y, exact_residual, weight, bias = exact(y, residual, *norm)
    summed = exact_residual + dropped(exact_y, config, 3)
    expected = F.layer_norm(summed, (width,), weight, bias, 1e-5)
    assert_close(states, expected.detach())
    assert torch.equal(half, states)  # in the dtype of y

    partials = partial_sums(config, 3 * width)
    dhalf = dhalf if has_half else None
    dresidual, dy = add_norm_backward(config, dstates, dhalf, saved, 3, partials)
    doutput = dstates.double() + (dhalf.double() if has_half else 0)
    wanted = gradients(expected, doutput, exact_residual, exact_y, weight, bias)
    assert_close(dresidual, wanted[0])
    assert_close(dy, wanted[1])
    assert_totals(partials, *wanted[2:], wanted[1].sum(0))


def test_norm_of_large_means():
    y = torch.randn(21, 24, generator=torch.Generator().manual_seed(0))
    residual = torch.full((21, 24), 1000.0)
    states, _, _ = add_norm(pass_config(), y, residual, (torch.ones(24), torch.zeros(24)), 1)
    assert_close(states, F.layer_norm((y + residual).double(), (24,)), 1e-3)


def test_gelu():
    torch.manual_seed(0)
    config = pass_config()
    x, dy = 3 * torch.randn(21, 40), torch.randn(21, 40)
    partials = partial_sums(config, 40)
    (exact_x,) = exact(x)
    expected = F.gelu(exact_x)
    assert_close(gelu(x), expected.detach())
    (wanted,) = gradients(expected, dy.double(), exact_x)
    assert_close(gelu_backward(config, dy, x, partials), wanted)
    assert_totals(partials, wanted.sum(0))


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


def attention(qkv, x, config, index):
    """Attention written out by texts and heads."""
    q, k, v = qkv.view(*x.shape, 3, config.heads, -1).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(2, 3) / (config.width // config.heads) ** 0.5
    can_attend = (x != 0)[:, None, None, :].expand_as(scores)
    if config.causal:
        can_attend = can_attend & torch.ones(scores.shape[2:], dtype=torch.bool).tril()
    probs = scores.masked_fill(~can_attend, -torch.inf).softmax(3).nan_to_num(0.0)
    return (dropped(probs, config, index) @ v).transpose(1, 2).reshape(-1, config.width)


@pytest.mark.parametrize(
    ("lengths", "width", "causal", "rate"),
    [
        ((7, 3, 5, 1), 24, False, 0.0),
        ((20, 17), 52, True, 0.3),
        ((70,), 16, False, 0.3),  # several blocks of queries
    ],
)
def test_attention(lengths, width, causal, rate):
    torch.manual_seed(0)
    x = ids(*lengths, width=lengths[0])
    x[0, 2] = 0  # padding within a text
    config = pass_config(x, width, rate, causal)
    qkv, dout = torch.randn(config.rows, 3 * width), torch.randn(config.rows, width)
    (exact_qkv,) = exact(qkv)
    expected = attention(exact_qkv, x, config, 1)
    assert_close(attend(config, qkv, 1), expected.detach())
    (wanted,) = gradients(expected, dout.double(), exact_qkv)
    partials = partial_sums(config, 3 * width)
    assert_close(attend_backward(config, dout, qkv, 1, partials), wanted)
    assert_totals(partials, wanted.sum(0))


def test_attention_without_keys_is_zero():
    x = torch.zeros(2, 5, dtype=torch.int64)
    x[0] = 3
    config = pass_config(x, 16)
    qkv = torch.randn(10, 48, generator=torch.Generator().manual_seed(0))
    out = attend(config, qkv, 1)
    assert out[:5].abs().min() > 0
    assert out[5:].eq(0).all()
    dqkv = attend_backward(config, torch.ones(10, 16), qkv, 1, partial_sums(config, 48))
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
    torch.manual_seed(0)
    x = ids(11, 4, 1, 7, 2, width=11)
    x[0, 3] = 0
    x[2] = 0
    states, weight = torch.randn(5, 11, 200).requires_grad_(), torch.randn(5, 200)
    (exact_states,) = exact(states.detach())
    plain = SimpleNamespace(pooling="mean", pad_id=0)
    mean, expected = mean_of_tokens(states, pack(x, 0, 0)), Encoder.pool(plain, exact_states, x)
    assert_close(mean.detach(), expected.detach())
    assert mean[2].eq(0).all()
    (found,) = gradients(mean, weight, states)
    assert_close(found, *gradients(expected, weight, exact_states))

    packing = pack(x, 40, 0)
    rows = states.detach().flatten(0, 1)[packing.slots.long()].requires_grad_()
    of_rows = mean_of_tokens(rows, packing)
    assert torch.equal(of_rows, mean)
    (dpacked,) = gradients(of_rows, weight, rows)
    assert torch.equal(dpacked[:25], found.flatten(0, 1)[packing.slots.long()][:25])
    assert dpacked[25:].eq(0).all()
