import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedaux_pl.modules import GradientNoise, PrivateClientModule
from fedaux_pl.modules import private_client as module_file
from tests.modules.conftest import SMALL

CLIP = 0.3
SILENT = GradientNoise(CLIP, multiplier=0.0, batch_size=8)


def small(noise=SILENT, **options):
    torch.manual_seed(1)
    options = {"batchnorm": "frozen", "model_options": SMALL} | options
    client = PrivateClientModule("resnet8", 10, **options)
    client.set_noise(noise)
    return client.train()


def gradient(client, batch):
    client.zero_grad()
    loss = client.training_step(batch, 0)
    loss.backward()
    trained = [p for p in client.parameters() if p.requires_grad]
    return torch.cat([p.grad.flatten() for p in trained]), loss.item()


def naive(client, batch):
    """One backward pass a sample: its clipped gradient, their sum by the expected batch size."""
    trained = [p for p in client.parameters() if p.requires_grad]
    total, losses = 0.0, 0.0
    for x, y in zip(*batch, strict=True):
        client.zero_grad()
        loss = F.cross_entropy(
            client.model(x[None]), y[None], label_smoothing=client.label_smoothing
        )
        loss.backward()
        row = torch.cat([p.grad.flatten() for p in trained])
        total = total + row * min(1.0, CLIP / row.norm().item())
        losses += loss.item()
    return total / SILENT.batch_size, losses / SILENT.batch_size


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"trained": "head"},
        {"label_smoothing": 0.1, "model_options": SMALL | {"norm": "group"}, "batchnorm": "batch"},
    ],
)
def test_gradients_are_those_of_a_loop_over_samples(options, batch, monkeypatch):
    monkeypatch.setattr(module_file, "_CHUNK", 4)  # the last chunk is smaller
    client = small(**options)
    samples = batch(11)
    expected, mean_loss = naive(client, samples)
    got, loss = gradient(client, samples)
    # norms stay below the bound by a small margin
    torch.testing.assert_close(got, expected, rtol=3e-4, atol=2e-6)
    assert loss == pytest.approx(mean_loss, rel=1e-5)
    assert got.norm() <= 11 * CLIP / 8


def test_one_sample_moves_the_sum_by_at_most_the_clip_norm(batch):
    client = small(GradientNoise(CLIP, 0.0, batch_size=1))
    whole, _ = gradient(client, batch(6))
    without, _ = gradient(client, batch(5))
    assert 0.9 * CLIP < (whole - without).norm() <= CLIP


@pytest.mark.parametrize("secret", [False, True])
def test_noise_has_the_stated_deviation_in_an_empty_batch_too(batch, secret):
    noise = GradientNoise(CLIP, multiplier=2.0, batch_size=8, secret=secret)
    client = small(noise)
    images, labels = batch(8)
    got, loss = gradient(client, (images[:0], labels[:0]))
    sigma = 2 * CLIP / 8
    assert loss == 0
    assert got.std() == pytest.approx(sigma, rel=0.05)
    assert abs(got.mean()) < 5 * sigma / math.sqrt(len(got))
    exact, _ = gradient(small(SILENT), (images, labels))
    noisy, _ = gradient(client, (images, labels))
    assert (noisy - exact).std() == pytest.approx(sigma, rel=0.05)
    assert not torch.equal(noisy, gradient(client, (images, labels))[0])


def test_secret_noise_ignores_the_seed_and_lies_on_a_grid(batch):
    noise = GradientNoise(1.0, multiplier=1.0, batch_size=1, secret=True)
    client = small(noise)
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        results.append(gradient(client, batch(2))[0])
    assert not torch.equal(*results)
    steps = results[0].double() * 1024
    assert torch.equal(steps, steps.round())


def test_a_sample_without_a_finite_gradient_counts_as_zero(batch):
    client = small(trained="head")
    images, labels = batch(4)
    floats = images.float() / 255
    expected, _ = gradient(client, (floats[1:], labels[1:]))
    floats[0] = math.inf
    got, loss = gradient(client, (floats, labels))
    torch.testing.assert_close(got, expected)
    assert math.isfinite(loss)


def test_a_negative_label_pads_a_batch(batch):
    images, labels = batch(4)
    expected, loss = gradient(small(), (images[:3], labels[:3]))
    labels = labels.clone()
    labels[3] = -1
    got, padded_loss = gradient(small(), (images, labels))
    torch.testing.assert_close(got, expected)
    assert padded_loss == pytest.approx(loss)


def test_noise_is_set_in_place():
    """Captured steps read its numbers where they were."""
    client = small()
    address = client.noise.multiplier.data_ptr()
    client.set_noise(GradientNoise(CLIP, multiplier=3.0, batch_size=5))
    assert client.noise.multiplier.data_ptr() == address
    assert client.noise.multiplier == 3
    assert client.noise.batch_size == 5


def test_gradients_in_half_precision_are_clipped_and_added_in_32_bits():
    rows = torch.rand(6, 5000, generator=torch.Generator().manual_seed(0)).bfloat16()
    rows[3] = torch.nan
    client = small()
    scales = module_file.clip_scales([rows[:, :3000], rows[:, 3000:]], CLIP)
    for row, scale in zip(rows.double(), scales, strict=True):
        assert scale == 0 or 0.999 * CLIP < (scale * row).norm() < CLIP
    expected = sum(scale * row for row, scale in zip(rows.double(), scales, strict=True) if scale)
    total = client.weighted_sum(rows, scales)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total.double(), expected)


@pytest.mark.parametrize("value", [0.1, 1.1])
def test_long_rows_are_clipped(value):
    """A sum of 2^23 equal squares in few lanes of float32 would be too small."""
    rows = torch.full((1, 2**23), value)
    scale = module_file.clip_scales([rows], CLIP).double()
    assert 0.999 * CLIP < float(scale * rows.double().norm()) < CLIP


def test_the_proximal_term_is_added_and_not_clipped(batch):
    client = small(mu=100.0)
    client.set_anchor()
    with torch.no_grad():
        client.model.head.bias += 1
    got, _ = gradient(client, batch(4))
    plain, _ = gradient(small(), batch(4))
    assert (got - plain).norm() > 100


def test_batchnorm_in_training_mode_cannot_be_used(batch):
    with pytest.raises(RuntimeError):
        gradient(small(batchnorm="batch"), batch(2))


def test_a_module_without_noise_trains_nothing(batch):
    client = small()
    client.noise = None
    with pytest.raises(ValueError, match="call set_noise"):
        client.training_step(batch(2), 0)


def test_a_network_with_dropout_draws_for_each_sample(batch):
    client = small()
    client.model.head = nn.Sequential(nn.Dropout(0.5), client.model.head)
    images, labels = batch(1)
    rows, _ = client.sample_gradients(images.repeat(6, 1, 1, 1), labels.repeat(6))
    assert len({row.norm().item() for row in rows[-1]}) > 1


def test_gradients_of_texts_are_those_of_a_loop():
    config = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 8}
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    torch.manual_seed(1)
    client = PrivateClientModule("encoder", 10, model_options={"config": config, "mask_id": 4})
    client.set_noise(SILENT)
    texts = torch.randint(5, 40, (5, 8), generator=torch.Generator().manual_seed(0))
    texts[:, 6:] = 0  # padding
    texts[0, 3:] = 0
    samples = texts, torch.arange(5)
    expected, _ = naive(client.train(), samples)
    got, _ = gradient(client, samples)
    torch.testing.assert_close(got, expected, rtol=3e-4, atol=2e-6)


def test_bf16_computes_gradients_of_samples_in_32_bits(batch):
    client = small()
    expected, _ = gradient(client, batch(4))
    client.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = client.training_step(batch(4), 0)
    loss.backward()
    got = torch.cat([p.grad.flatten() for p in client.parameters()])
    torch.testing.assert_close(got, expected)
