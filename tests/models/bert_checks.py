"""Tests of an encoder's kernels on the CPU; ``test_kernels.py`` runs them in its own process."""

import copy
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from tests.models import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.models import (
    fused,
    overlap,
    pooling,
)
from fedaux_pl.models.bert import backward, selection, steps, words
from fedaux_pl.models.bert.attention import attend, attend_backward
from fedaux_pl.models.bert.selection import is_fused, parameters_of, run
from fedaux_pl.models.bert.steps import Dropout, Partials, Sizes
from fedaux_pl.models.overlap import join, overlapping
from tests.texts import CONFIG, encoder, ids

DROPPING = CONFIG | {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
SMALL = CONFIG | {"num_hidden_layers": 1}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """So that small tensors have several tiles and parts too."""
    monkeypatch.setattr(steps, "TILE", 256)
    monkeypatch.setattr(steps, "FEW_PARTS", 3)


def sizes(texts=3, length=7, width=24, heads=2, causal=False):
    return Sizes(texts, length, width, heads, 0, causal, 1e-5)


def seeds(seed=0, count=4):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)


def kept(seed, counter, rate):
    """What ``kernels/dropout.py`` says, on integers that do not overflow."""

    def mixed(x):
        x = x ^ (x >> 16)
        x = multiplied(x, 0x7FEB352D)
        x = x ^ (x >> 15)
        x = multiplied(x, 0x846CA68B)
        return x ^ (x >> 16)

    def multiplied(x, factor):
        low = (x & 0xFFFF) * factor
        return (low + ((((x >> 16) * factor) & 0xFFFF) << 16)) & 0xFFFFFFFF

    seed = int(seed) % 2**64
    x = mixed(mixed(counter ^ (seed & 0xFFFFFFFF)) ^ (seed >> 32))
    return (x >> 8).double() / 2**24 >= rate


def scaled(values, dropout):
    """Dropout of (rows, width)."""
    if not dropout.drops:
        return values
    counter = torch.arange(values.numel()).view(values.shape)
    keep = kept(dropout.seeds[dropout.site], counter, dropout.rate)
    return values * keep / (1 - dropout.rate)


def gradients(output, weight, *inputs):
    return torch.autograd.grad((output * weight).sum(), inputs)


def exact(*tensors):
    return [one.double().requires_grad_() for one in tensors]


def assert_close(found, expected, tolerance=1e-5):
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error <= tolerance, f"off by {error}"


def sums(partials, *widths):
    """What the partial sums of a step add up to."""
    found = torch.zeros(partials.sums.shape[1])
    steps.sum_partials(partials.sums, found)
    assert found[: partials.first].eq(7 * len(partials.sums)).all()  # that of others is left alone
    return found[partials.first :].split(widths)


def room(size, count):
    """Partial sums, of which the first eight columns are of someone else."""
    return Partials(torch.full((size.parts, 8 + count), 7.0), 8)


RATES = pytest.mark.parametrize("rate", [0.0, 0.3])


@RATES
@pytest.mark.parametrize("width", [8, 24])
def test_embedding(width, rate):
    torch.manual_seed(0)
    size = sizes(width=width)
    x = ids(7, 3, 5, width=7)
    tables = torch.randn(60, width), torch.randn(9, width), torch.randn(2, width)
    norm = torch.randn(width), torch.randn(width)
    dropout = Dropout(rate, seeds() if rate else None, 2)
    states, half, stats = steps.embed(size, x, tables, norm, torch.float16, dropout)
    word, position, kind, scale, shift = exact(*tables, *norm)
    total = (word[x.long()] + position[:7] + kind[0]).view(21, width)
    expected = scaled(F.layer_norm(total, (width,), scale, shift, 1e-5), dropout)
    assert_close(states, expected.detach())
    assert torch.equal(half, states.half())

    one, other = torch.randn(2, 21, width)
    partials = room(size, 3 * width)
    found = steps.embed_backward(
        size, one, other.half(), x, tables, stats, norm[0], partials, dropout
    )
    weight = one.double() + other.half().double()
    dsum, dscale, dshift, dkind = gradients(expected, weight, total, scale, shift, kind)
    assert_close(found, dsum)
    for got, wanted in zip(sums(partials, *[width] * 3), (dscale, dshift, dkind[0]), strict=True):
        assert_close(got, wanted)


@pytest.mark.parametrize("word", [-1, 60, 2**31 - 1])
def test_what_is_no_word_gives_nan_and_writes_nowhere(word):
    size, width = sizes(width=8), 8
    x = ids(7, 3, 5, width=7)
    x[1, 1] = word
    table = torch.randn(60, width)
    tables, norm = (table, torch.randn(9, width), torch.randn(2, width)), torch.randn(2, width)
    states, _, _ = steps.embed(size, x, tables, tuple(norm), torch.float16, Dropout(0.0, None, 0))
    rows = states.view(3, 7, width)
    assert rows[1, 1].isnan().all()
    assert rows.isnan().sum() == width
    found = words.word_gradient(torch.ones(21, width), x, 60, -1)
    assert found.sum() == 20 * width


@RATES
@pytest.mark.parametrize("with_half", [False, True])
@pytest.mark.parametrize("width", [8, 24])
def test_sum_and_norm(width, with_half, rate):
    torch.manual_seed(0)
    size = sizes(width=width)
    y, residual, one, other = torch.randn(4, 21, width)
    norm = torch.randn(width), torch.randn(width)
    dropout = Dropout(rate, seeds() if rate else None, 3)
    states, half, stats = steps.add_norm(size, y, residual, norm, dropout)
    ey, eresidual, scale, shift = exact(y, residual, *norm)
    dropped = scaled(ey, dropout)
    expected = F.layer_norm(eresidual + dropped, (width,), scale, shift, 1e-5)
    assert_close(states, expected.detach())
    assert torch.equal(half, states)  # which is in the dtype of y

    partials = room(size, 3 * width)
    dresidual, dy = steps.add_norm_backward(
        size, one, other if with_half else None, y, residual, stats, norm[0], partials, dropout
    )
    weight = one.double() + (other.double() if with_half else 0)
    wanted = gradients(expected, weight, eresidual, ey, scale, shift)
    assert_close(dresidual, wanted[0])
    assert_close(dy, wanted[1])
    for got, known in zip(
        sums(partials, *[width] * 3), (*wanted[2:], wanted[1].sum(0)), strict=True
    ):
        assert_close(got, known)


def test_norm_of_large_means():
    y = torch.randn(21, 24, generator=torch.Generator().manual_seed(0))
    residual = torch.full((21, 24), 1000.0)
    norm = torch.ones(24), torch.zeros(24)
    states, _, _ = steps.add_norm(sizes(), y, residual, norm, Dropout(0.0, None, 0))
    assert_close(states, F.layer_norm((y + residual).double(), (24,)), 1e-3)


def test_gelu():
    torch.manual_seed(0)
    size = sizes()
    x, dy = 3 * torch.randn(21, 40), torch.randn(21, 40)
    partials = room(size, 40)
    (ex,) = exact(x)
    expected = F.gelu(ex)
    assert_close(steps.gelu(x), expected.detach())
    (wanted,) = gradients(expected, dy.double(), ex)
    assert_close(steps.gelu_backward(size, dy, x, partials), wanted)
    assert_close(sums(partials, 40)[0], wanted.sum(0))


@pytest.mark.parametrize("most", [0, 1000])
@pytest.mark.parametrize("padding", [-1, 0, 5])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_gradient_of_word_vectors(dtype, padding, most, monkeypatch):
    """With words that are there once, often, more often than a tile has rows, or never."""
    monkeypatch.setattr(words, "MOST_RANKED", most)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 40, (5, 20), generator=generator, dtype=dtype)
    x[:3, 2:15] = 5
    x[:, 0] = 39
    given = torch.randn(100, 24, generator=generator)
    found = words.word_gradient(given, x, 50, padding)
    expected = torch.zeros(50, 24, dtype=torch.float64)
    expected.index_add_(0, x.flatten().long(), given.double())
    if padding >= 0:
        expected[padding] = 0
    assert (x == 5).sum() > 32
    assert_close(found, expected)


def attention(qkv, x, size, dropout):
    """As it is written down, by texts and heads."""
    dim = size.width // size.heads
    q, k, v = qkv.view(size.texts, size.length, 3, size.heads, dim).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(2, 3) / dim**0.5
    visible = (x != 0)[:, None, None, :].expand_as(scores)
    if size.causal:
        visible = visible & torch.ones(size.length, size.length, dtype=torch.bool).tril()
    shares = scores.masked_fill(~visible, -torch.inf).softmax(3).nan_to_num(0.0)
    if dropout.drops:
        counter = torch.arange(shares.numel()).view(shares.shape)
        keep = kept(dropout.seeds[dropout.site], counter, dropout.rate)
        shares = shares * keep / (1 - dropout.rate)
    return (shares @ v).transpose(1, 2).reshape(-1, size.width)


@RATES
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("lengths", "length", "width"), [((7, 3, 5, 1), 7, 24), ((20, 17), 20, 52), ((70,), 70, 16)]
)
def test_attention(lengths, length, width, causal, rate):
    torch.manual_seed(0)
    size = sizes(len(lengths), length, width, causal=causal)
    x = ids(*lengths, width=length)
    x[0, 2] = 0  # padding amid a text
    qkv, dout = torch.randn(size.rows, 3 * width), torch.randn(size.rows, width)
    dropout = Dropout(rate, seeds() if rate else None, 1)
    (given,) = exact(qkv)
    expected = attention(given, x, size, dropout)
    assert_close(attend(size, qkv, x, dropout), expected.detach())
    (wanted,) = gradients(expected, dout.double(), given)
    partials = room(size, 3 * width)
    assert_close(attend_backward(size, dout, qkv, x, partials, dropout), wanted)
    (found,) = sums(partials, 3 * width)
    assert_close(found, wanted.sum(0))


def test_attention_to_nothing_is_zero():
    size = sizes(2, 5, 16)
    x = torch.zeros(2, 5, dtype=torch.int64)
    x[0] = 3
    qkv = torch.randn(10, 48, generator=torch.Generator().manual_seed(0))
    dropout = Dropout(0.0, None, 0)
    out = attend(size, qkv, x, dropout)
    assert out[:5].abs().min() > 0
    assert out[5:].eq(0).all()
    partials = room(size, 48)
    back = attend_backward(size, torch.ones(10, 16), qkv, x, partials, dropout)
    assert back[5:].eq(0).all()
    assert back.isfinite().all()


def test_what_is_dropped_is_random():
    """Its share, beside each other and among sites, seeds and steps."""
    rows, width, rate = 40, 128, 0.3
    size = sizes(8, 5, width)
    norm = torch.ones(width), torch.zeros(width)
    y = torch.ones(rows, width)

    def mask(seed, site):
        # what the norm leaves above zero was kept
        made = Dropout(rate, seeds(seed), site)
        return steps.add_norm(size, y, torch.zeros_like(y), norm, made)[0] > 0

    first = mask(0, 0)
    assert torch.equal(first, mask(0, 0))
    spread = (rate * (1 - rate) / first.numel()) ** 0.5
    for one in (first, mask(0, 1), mask(1, 0)):
        assert abs(float(one.float().mean()) - (1 - rate)) < 4 * spread
        centred = one.float() - (1 - rate)
        for shift, dim in ((1, 0), (1, 1), (2, 1), (16, 1)):
            together = (centred * centred.roll(shift, dim)).mean()
            assert abs(float(together)) < 4 * rate * (1 - rate) / first.numel() ** 0.5
    for other in (mask(0, 1), mask(1, 0)):
        both = float((first & other).float().mean())
        assert abs(both - (1 - rate) ** 2) < 0.03


def stirred(config, seed=0):
    """An encoder of which no parameter is zero or one."""
    model = encoder(config=config, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("dtype", "of_states", "of_gradients"),
    # the interpreter cuts bfloat16 off where GPUs round it
    [(torch.float32, 1e-5, 1e-5), (torch.float16, 2e-3, 4e-3), (torch.bfloat16, 2e-2, 6e-2)],
)
def test_states_and_gradients_are_those_of_the_library(dtype, of_states, of_gradients, causal):
    model = stirred(CONFIG).eval()
    x = ids(20, 4, 13)
    x[0, 5] = 0
    weight = torch.randn(3, 20, 16)

    def step(network, states):
        network.zero_grad()
        (states * weight).sum().backward()
        return states.detach(), {n: p.grad for n, p in network.encoder.named_parameters()}

    reference = copy.deepcopy(model).double()
    expected, wanted = step(reference, reference.states(x, causal=causal))
    found, got = step(model, run(model.encoder, x, 0, dtype, causal=causal))
    assert found.dtype == torch.float32
    assert (found - expected).norm() <= of_states * expected.norm()
    for name, known in wanted.items():
        assert got[name].shape == known.shape
        assert got[name].dtype == torch.float32
        # a bias of all keys changes no softmax: zero but for rounding
        size = wanted[name.replace("key", "query")].norm()
        assert (got[name] - known).norm() <= of_gradients * size, name


@pytest.fixture
def _fused_on_the_cpu(monkeypatch):
    for module in (selection, pooling):
        monkeypatch.setattr(module, "fusable", lambda x: not fused._plain.get())


def outcome(model, x):
    """The features, and the gradients of all parameters, in a step under autocast."""
    model.zero_grad()
    with torch.autocast("cpu", torch.float16):
        features = model.features(x)
        features.square().sum().backward()
    join()
    return features.detach(), [p.grad for p in model.encoder.parameters()]


@pytest.mark.usefixtures("_fused_on_the_cpu")
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_features_under_autocast(pooling, monkeypatch):
    model = stirred(CONFIG | {"hidden_dropout_prob": 0.0}).train()
    model.pooling = pooling
    x = ids(20, 4, 13, 1)
    called = []
    monkeypatch.setattr(
        "fedaux_pl.models.encoder.bert_states",
        lambda *args, **options: called.append(1) or selection.bert_states(*args, **options),
    )
    features, found = outcome(model, x)
    assert called
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        torch.testing.assert_close(model.eval().features(x), features, rtol=2e-3, atol=2e-3)
        del called[:]
        with fused.plain_layers():
            expected = model.features(x)
            assert not called
    assert (features - expected).norm() < 2e-3 * expected.norm()
    with fused.plain_layers():
        expected, wanted = outcome(model.train(), x)
        assert not called
    assert (features - expected).norm() < 2e-3 * expected.norm()
    one, other = (torch.cat([part.flatten() for part in parts]) for parts in (found, wanted))
    assert (one - other).norm() < 5e-3 * other.norm()


@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_gradients_with_dropout_are_those_of_the_same_function():
    """By differences: a seed that is another one backward would show."""
    model = stirred(DROPPING).train().encoder
    x = ids(9, 4, 7, width=9)
    weight = torch.randn(3, 9, 16) * (x != 0)[:, :, None]  # the vector of padding has no gradient
    parameters = [p for p in model.parameters() if p.requires_grad]

    def loss(seed=3):
        torch.manual_seed(seed)
        return (run(model, x, 0, torch.float32, causal=False) * weight).sum()

    value = loss()
    found = torch.autograd.grad(value, parameters)
    with torch.no_grad():
        assert torch.equal(loss(), value)  # also without a way back
        assert not torch.allclose(loss(4), value, rtol=1e-2)
    # each kind of parameter by itself, so that no place where something is dropped hides
    for name in ("word_emb", "self.value", "output.dense", "intermediate", "LayerNorm.bias"):
        names = [n for n, _ in model.named_parameters()]
        torch.manual_seed(1)
        way = [torch.randn_like(p) * (name in n) for n, p in zip(names, parameters, strict=True)]
        expected = sum(float((g * w).sum()) for g, w in zip(found, way, strict=True))
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                for p, w in zip(parameters, way, strict=True):
                    p += sign * 5e-3 * w
                values.append(float(loss().double()))
                for p, w in zip(parameters, way, strict=True):
                    p -= sign * 5e-3 * w
        assert (values[0] - values[1]) / 1e-2 == pytest.approx(expected, rel=0.03, abs=0.1), name


def test_every_place_of_dropout_has_a_seed_of_its_own(monkeypatch):
    model = stirred(DROPPING | {"num_hidden_layers": 1}).train().encoder
    x = ids(9, 4, width=9)

    def states(given):
        monkeypatch.setattr(backward, "draw_seeds", lambda plan, device: given)
        with torch.no_grad():
            return run(model, x, 0, torch.float32, causal=False)

    start = seeds(count=4)
    before = states(start)
    for site in range(4):
        other = start.clone()
        other[site] += 1
        assert not torch.allclose(states(other), before, atol=1e-2), site
    assert torch.equal(states(start), before)


@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_frozen_parameters_have_no_gradient():
    model = stirred(SMALL).eval()
    frozen = ("attention.self.query", "word_embeddings", "output.LayerNorm.weight", "intermediate")
    x = ids(9, 4, width=9)
    _, expected = outcome(model, x)
    for name, parameter in model.encoder.named_parameters():
        parameter.requires_grad_(not any(part in name for part in frozen))
    _, found = outcome(model, x)
    for parameter, one, other in zip(model.encoder.parameters(), found, expected, strict=True):
        assert (one is None) == (not parameter.requires_grad)
        assert one is None or torch.equal(one, other)


@pytest.mark.usefixtures("_fused_on_the_cpu")
@pytest.mark.parametrize(
    ("trained", "gone"),
    [
        ("layer.2.output.dense.bias", [2]),
        ("layer.1.attention.self.key", [2, 1]),
        ("layer.0.output", [2, 1, 0]),
        ("position_embeddings", [2, 1, 0, "embedding"]),
    ],
)
def test_the_way_back_ends_where_nothing_more_is_trained(trained, gone, monkeypatch):
    model = stirred(CONFIG | {"num_hidden_layers": 3}).eval()
    x, way = ids(9, 4, width=9), []
    _, expected = outcome(model, x)
    layer, last = backward._Back.through_layer, backward._Back.through_embedding
    monkeypatch.setattr(
        backward._Back, "through_layer", lambda self, n, *a: way.append(n) or layer(self, n, *a)
    )
    monkeypatch.setattr(
        backward._Back, "through_embedding", lambda *a: way.append("embedding") or last(*a)
    )
    for name, parameter in model.encoder.named_parameters():
        parameter.requires_grad_(trained in name)
    _, found = outcome(model, x)
    assert way == gone
    for parameter, one, other in zip(model.encoder.parameters(), found, expected, strict=True):
        assert (one is None) == (not parameter.requires_grad)
        assert one is None or torch.equal(one, other)


@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_two_uses_and_a_penalty_add_up():
    model = stirred(SMALL).eval()
    one, other = ids(9, 4, width=9), ids(5, 8, width=9, seed=1)
    parts = [outcome(model, x)[1] for x in (one, other)]
    model.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = sum(model.features(x).square().sum() for x in (one, other))
    loss = loss + sum(0.5 * p.square().sum() for p in model.encoder.parameters())
    loss.backward()
    for parameter, *given in zip(model.encoder.parameters(), *parts, strict=True):
        expected = sum(given) + parameter.detach()
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_weight_gradients_aside(monkeypatch):
    """The side stream waits before each product, what it reads is kept, and join waits for it."""
    events = []

    class Stream(SimpleNamespace):
        def wait_stream(self, other):
            events.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def entered(stream):
        events.append(f"on {stream.name}")
        yield
        events.append(f"off {stream.name}")

    main, beside = Stream(name="main"), Stream(name="side")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: main)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    model = stirred(CONFIG).eval()
    x = ids(9, 4, width=9)
    _, expected = outcome(model, x)
    with overlapping(beside):
        with torch.autocast("cpu", torch.float16):
            model.zero_grad()
            model.features(x).square().sum().backward()
        late = [n for n, p in model.encoder.named_parameters() if p.grad is None]
        products = 4 * CONFIG["num_hidden_layers"]
        assert events == ["side waits for main", "on side", "off side"] * products
        side = overlap.current_side()
        assert len(side.kept) == products
        assert all(len(tensors) == 2 for tensors in side.kept)
        join()
        assert events[3 * products :] == ["main waits for side"]
        assert not side.kept
    linear = (".query.weight", ".key.weight", ".value.weight", ".dense.weight")
    names = [name for name, _ in model.encoder.named_parameters()]
    assert late == [name for name in names if name.endswith(linear)] != []
    for parameter, known in zip(model.encoder.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, known)
        assert parameter.grad.stride() == parameter.stride()


@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_copies_have_parameters_of_their_own():
    model = stirred(SMALL).eval()
    x = ids(9, 4, width=9)
    before, _ = outcome(model, x)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.1
    assert torch.equal(outcome(model, x)[0], before)
    assert not torch.allclose(outcome(other, x)[0], before)


@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_sorted_texts_have_the_features_of_unsorted_ones():
    model = stirred(SMALL).eval()
    x = ids(9, 4, 12, 1, 12, 7)
    x[4, 3] = 0
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        found = model.features(x)
        with fused.plain_layers():
            expected = torch.cat([model.features(row[None]) for row in x])
    assert (found - expected).norm() < 2e-3 * expected.norm()


@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_means_of_states():
    torch.manual_seed(0)
    x = ids(20, 4, 13)
    x[0, 3] = 0
    x[1] = 0
    states = torch.randn(3, 20, 200)
    weight = torch.randn(3, 200)

    def both(values):
        values.requires_grad_()
        mean = pooling.mean_states(values, x, 0)
        return mean.detach(), *torch.autograd.grad((mean * weight).sum(), values)

    found = both(states.clone())
    with fused.plain_layers():
        expected = both(states.double())
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)
    assert found[0][1].eq(0).all()


@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_second_derivatives_are_refused():
    model = stirred(SMALL).eval().encoder
    states = run(model, ids(4, width=4), 0, torch.float32, causal=False)
    parameters = parameters_of(model)
    (gradient,) = torch.autograd.grad(states.square().sum(), parameters[5], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_it_is_for_half_precision_under_autocast():
    model, x = encoder().encoder, ids(4, 9)
    assert not is_fused(model, x)
    with torch.autocast("cpu", torch.bfloat16):
        assert is_fused(model, x)
        assert not is_fused(model, x[:0])
        with fused.plain_layers():
            assert not is_fused(model, x)
