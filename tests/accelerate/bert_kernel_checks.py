"""BERT's kernels one by one, in Triton's interpreter."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate.bert import fused_operations
from fedaux_pl.accelerate.bert import pass_config as settings
from fedaux_pl.accelerate.bert.attention import attend, attend_backward
from fedaux_pl.accelerate.bert.fused_operations import (
    add_norm,
    add_norm_backward,
    add_partial_sums,
    embed,
    embed_backward,
    embedding_gradient,
    gelu,
    gelu_backward,
)
from fedaux_pl.accelerate.bert.mean_pooling import mean_of_tokens
from fedaux_pl.accelerate.bert.pass_config import Dropout
from fedaux_pl.models import Encoder
from tests.accelerate.bert_reference import assert_close, drop, is_kept, pass_config, seeds
from tests.texts import ids

NO_DROPOUT = Dropout(0.0, None, 0)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Then small tensors have several tiles and parts, too."""
    monkeypatch.setattr(settings, "TILE", 256)
    monkeypatch.setattr(settings, "FEW_PARTS", 3)


def dropout(rate, index):
    return Dropout(rate, seeds() if rate else None, index)


def dropped(values, layer):
    return drop(values, layer.seeds[layer.index], layer.rate) if layer.is_active else values


def gradients(output, weight, *inputs):
    return torch.autograd.grad((output * weight).sum(), inputs)


def exact(*tensors):
    return [tensor.double().requires_grad_() for tensor in tensors]


def partial_sums(config, count):
    """The columns of one kernel; eight columns of another kernel come before them."""
    return torch.full((config.parts, 8 + count), 7.0)[:, 8:]


def total(partials, *widths):
    """The sums of one kernel; the columns of the other kernel must be unchanged."""
    matrix = partials._base
    sums = torch.zeros(matrix.shape[1])
    add_partial_sums(matrix, sums)
    assert sums[:8].eq(7 * len(matrix)).all()
    return sums[8:].split(widths)


@pytest.mark.parametrize(("width", "rate"), [(8, 0.0), (24, 0.3)])
def test_embedding(width, rate):
    torch.manual_seed(0)
    config, layer = pass_config(width=width), dropout(rate, 2)
    x = ids(7, 3, 5, width=7)
    tables = torch.randn(60, width), torch.randn(9, width), torch.randn(2, width)
    norm = torch.randn(width), torch.randn(width)
    states, half, stats = embed(config, x, tables, norm, layer)
    word, position, token_type, weight, bias = exact(*tables, *norm)
    summed = (word[x.long()] + position[:7] + token_type[0]).view(21, width)
    expected = dropped(F.layer_norm(summed, (width,), weight, bias, 1e-5), layer)
    assert_close(states, expected.detach())
    assert torch.equal(half, states.half())

    dstates, dhalf = torch.randn(2, 21, width)
    partials = partial_sums(config, 3 * width)
    dsum = embed_backward(
        config,
        dstates=dstates,
        dhalf=dhalf.half(),
        ids=x,
        tables=tables,
        norm_weight=norm[0],
        norm_stats=stats,
        dropout=layer,
        partials=partials,
    )
    doutput = dstates.double() + dhalf.half().double()
    wanted = gradients(expected, doutput, summed, weight, bias, token_type)
    assert_close(dsum, wanted[0])
    for sums, known in zip(total(partials, *[width] * 3), wanted[1:], strict=True):
        assert_close(sums, known[0] if known.ndim == 2 else known)


@pytest.mark.parametrize("word", [-1, 60, 2**31 - 1])
def test_ids_outside_of_the_vocabulary_give_nan_and_write_nowhere(word):
    width = 8
    x = ids(7, 3, 5, width=7)
    x[1, 1] = word
    tables, norm = [torch.randn(rows, width) for rows in (60, 9, 2)], torch.randn(2, width)
    states, _, _ = embed(pass_config(width=width), x, tables, tuple(norm), NO_DROPOUT)
    rows = states.view(3, 7, width)
    assert rows[1, 1].isnan().all()
    assert rows.isnan().sum() == width
    gradient = embedding_gradient(torch.ones(21, width), x, 60, -1)
    assert gradient.sum() == 20 * width


@pytest.mark.parametrize(
    ("width", "has_half", "rate"),
    [(8, False, 0.0), (8, True, 0.3), (24, True, 0.0), (24, False, 0.3)],
)
def test_residual_sum_and_norm(width, has_half, rate):
    torch.manual_seed(0)
    config, layer = pass_config(width=width), dropout(rate, 3)
    y, residual, dstates, dhalf = torch.randn(4, 21, width)
    norm = torch.randn(width), torch.randn(width)
    states, half, stats = add_norm(config, y, residual, norm, layer)
    exact_y, exact_residual, weight, bias = exact(y, residual, *norm)
    summed = exact_residual + dropped(exact_y, layer)
    expected = F.layer_norm(summed, (width,), weight, bias, 1e-5)
    assert_close(states, expected.detach())
    assert torch.equal(half, states)  # in the dtype of y

    partials = partial_sums(config, 3 * width)
    dresidual, dy = add_norm_backward(
        config,
        dstates=dstates,
        dhalf=dhalf if has_half else None,
        y=y,
        residual=residual,
        norm_weight=norm[0],
        norm_stats=stats,
        dropout=layer,
        partials=partials,
    )
    doutput = dstates.double() + (dhalf.double() if has_half else 0)
    wanted = gradients(expected, doutput, exact_residual, exact_y, weight, bias)
    assert_close(dresidual, wanted[0])
    assert_close(dy, wanted[1])
    sums = (*wanted[2:], wanted[1].sum(0))
    for found, known in zip(total(partials, *[width] * 3), sums, strict=True):
        assert_close(found, known)


def test_norm_of_large_means():
    y = torch.randn(21, 24, generator=torch.Generator().manual_seed(0))
    residual = torch.full((21, 24), 1000.0)
    norm = torch.ones(24), torch.zeros(24)
    states, _, _ = add_norm(pass_config(), y, residual, norm, NO_DROPOUT)
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
    assert_close(total(partials, 40)[0], wanted.sum(0))


@pytest.mark.parametrize(
    ("dtype", "padding_index", "max_ranked"),
    [
        (torch.int32, -1, 1000),
        (torch.int64, 0, 1000),
        (torch.int64, 5, 1000),
        (torch.int32, 5, 0),  # PyTorch's kernel, for many tokens
    ],
)
def test_gradient_of_the_embedding_table(dtype, padding_index, max_ranked, monkeypatch):
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
    assert_close(embedding_gradient(dtokens, x, 50, padding_index), expected)


def attention(qkv, x, config, layer):
    """Attention written out by texts and heads."""
    width, heads = config.encoder.width, config.encoder.heads
    q, k, v = qkv.view(config.texts, config.length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(2, 3) / (width // heads) ** 0.5
    can_attend = (x != 0)[:, None, None, :].expand_as(scores)
    if config.causal:
        can_attend = can_attend & torch.ones(config.length, config.length, dtype=torch.bool).tril()
    probs = scores.masked_fill(~can_attend, -torch.inf).softmax(3).nan_to_num(0.0)
    return (dropped(probs, layer) @ v).transpose(1, 2).reshape(-1, width)


@pytest.mark.parametrize(("causal", "rate"), [(False, 0.0), (True, 0.3)])
@pytest.mark.parametrize(
    ("lengths", "length", "width"), [((7, 3, 5, 1), 7, 24), ((20, 17), 20, 52), ((70,), 70, 16)]
)
def test_attention(lengths, length, width, causal, rate):
    torch.manual_seed(0)
    config = pass_config(len(lengths), length, width, causal=causal)
    x, layer = ids(*lengths, width=length), dropout(rate, 1)
    x[0, 2] = 0  # padding within a text
    qkv, dout = torch.randn(config.rows, 3 * width), torch.randn(config.rows, width)
    (exact_qkv,) = exact(qkv)
    expected = attention(exact_qkv, x, config, layer)
    assert_close(attend(config, qkv, x, layer), expected.detach())
    (wanted,) = gradients(expected, dout.double(), exact_qkv)
    partials = partial_sums(config, 3 * width)
    found = attend_backward(config, dout=dout, qkv=qkv, ids=x, dropout=layer, partials=partials)
    assert_close(found, wanted)
    assert_close(total(partials, 3 * width)[0], wanted.sum(0))


def test_attention_without_keys_is_zero():
    config = pass_config(2, 5, 16)
    x = torch.zeros(2, 5, dtype=torch.int64)
    x[0] = 3
    qkv = torch.randn(10, 48, generator=torch.Generator().manual_seed(0))
    out = attend(config, qkv, x, NO_DROPOUT)
    assert out[:5].abs().min() > 0
    assert out[5:].eq(0).all()
    dqkv = attend_backward(
        config,
        dout=torch.ones(10, 16),
        qkv=qkv,
        ids=x,
        dropout=NO_DROPOUT,
        partials=partial_sums(config, 48),
    )
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
    torch.manual_seed(0)
    x = ids(20, 4, 13)
    x[0, 3] = 0
    x[1] = 0
    states, weight = torch.randn(3, 20, 200).requires_grad_(), torch.randn(3, 200)
    (exact_states,) = exact(states.detach())
    plain = SimpleNamespace(pooling="mean", pad_id=0)
    mean, expected = mean_of_tokens(states, x, 0), Encoder.pool(plain, exact_states, x)
    assert_close(mean.detach(), expected.detach())
    assert mean[1].eq(0).all()
    for found, known in zip(
        gradients(mean, weight, states), gradients(expected, weight, exact_states), strict=True
    ):
        assert_close(found, known)
