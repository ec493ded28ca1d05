"""Gradients of samples by batched products are those of ``vmap``."""

import copy

import pytest
import torch
from torch import nn

from fedaux_pl.accelerate import speed_up
from fedaux_pl.accelerate.convolution.sample_gradients import FastPrivateClientModule
from fedaux_pl.modules import GradientNoise, PrivateClientModule

IMAGES = torch.rand(5, 3, 12, 12, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 3, 1, 2, -1])


class Net(nn.Module):
    """Some convolutions that our architectures do not have."""

    feature_dim = 6

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, (3, 5), stride=(2, 1), padding=(0, 2)),
            nn.Tanh(),
            nn.Conv2d(8, 8, 3, padding="same", groups=2),
            nn.Tanh(),
            nn.Conv2d(8, 12, 3, padding=2, dilation=2, groups=4),
            nn.Tanh(),
            nn.Conv2d(12, 6, 3, padding=1, padding_mode="circular"),
        )
        self.head = nn.Linear(6, 4)

    def features(self, x):
        return self.body(x).mean(dim=(2, 3))

    def forward(self, x):
        return self.head(self.features(x))


class Patches(Net):
    """Convolves several patches of an image."""

    def features(self, x):
        return super().features(x.unfold(3, 6, 6).movedim(3, 1).flatten(0, 1)).mean(dim=0)[None]


class Positions(Net):
    """Adds a convolution of a constant."""

    def __init__(self):
        super().__init__()
        self.register_buffer("positions", torch.linspace(0, 1, 144).view(1, 1, 12, 12))
        self.embedding = nn.Conv2d(1, 3, 3, padding=1)

    def features(self, x):
        return super().features(x + self.embedding(self.positions))


def create(model, **options):
    torch.manual_seed(0)
    client = PrivateClientModule(model, 4, batchnorm="frozen", **options).train()
    client.set_noise(GradientNoise(1.0, 0.0, batch_size=4))
    return client, speed_up(copy.deepcopy(client))


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("resnet8", {"model_options": {"width": 0.125}}),
        ("resnet8", {"model_options": {"width": 0.125, "norm": "group"}}),
        ("resnet8", {"model_options": {"width": 0.125}, "trained": "head"}),
        ("shufflenet", {}),
        (Net(), {}),
        (Patches(), {}),
        (Positions(), {}),
    ],
)
def test_gradients_are_those_of_vmap(model, options):
    client, fast = create(model, **options)
    assert type(fast) is FastPrivateClientModule
    expected, losses = client.sample_gradients(IMAGES, LABELS)
    rows, fast_losses = fast.sample_gradients(IMAGES, LABELS)
    torch.testing.assert_close(fast_losses, losses, rtol=1e-5, atol=1e-5)
    for one, other in zip(rows, expected, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() <= 1e-5 * other.norm()


@pytest.mark.parametrize("model", ["resnet8", Net()])
def test_convolutions_have_the_precision_of_autocast(model):
    client, fast = create(model)
    expected, _ = client.sample_gradients(IMAGES, LABELS)
    with torch.autocast("cpu", torch.bfloat16):
        rows, _ = fast.sample_gradients(IMAGES, LABELS)
    assert {row.dtype for row in rows} == {torch.bfloat16, torch.float32}
    one, other = torch.cat(rows, dim=1), torch.cat(expected, dim=1)
    assert (one - other).norm() < 0.1 * other.norm()
    assert not one[-1].any()  # padding


@pytest.mark.cuda
@pytest.mark.parametrize(("enabled", "tolerance"), [(False, 0.05), (True, 0.15)])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_clipped_sums_on_the_gpu(norm, enabled, tolerance):
    """In bf16, or in float32 with TensorFloat-32; a sample without finite gradients is left out."""
    client, fast = create("resnet8", model_options={"norm": norm})
    fast.cuda().to(memory_format=torch.channels_last)
    images = IMAGES.clone()
    images[1] = torch.inf

    def train(module, device):
        module.set_noise(GradientNoise(1.0, 0.0, batch_size=4))
        with torch.autocast(device, torch.bfloat16, enabled=enabled and device == "cuda"):
            module.training_step((images.to(device), LABELS.to(device)), 0).backward()
        return torch.cat([p.grad.flatten().cpu() for p in module.parameters()])

    one, other = train(client, "cpu"), train(fast, "cuda")
    assert other.isfinite().all()
    assert (one - other).norm() < tolerance * one.norm()
