"""Fast versions of networks and blocks: which layers are fused, and which are not."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.models.resnet import BasicBlock
from torchvision.ops.misc import Conv2dNormActivation

from fedaux_pl.accelerate import eligibility, speed_up
from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.convolution import networks
from fedaux_pl.accelerate.convolution.batch_norm import RELU
from fedaux_pl.models import create_model
from fedaux_pl.models.shufflenet import ShuffleUnit, channel_shuffle
from tests.accelerate.convolution_helpers import activate


@pytest.fixture
def fused(monkeypatch):
    """The layers that are fused, as on a device with kernels; modules compute them here."""
    calls = []

    def conv_norm_act(conv, norm, x, residual=None, *, shortcut=None, activation=RELU):
        calls.append(conv)
        out = norm(conv(x))
        if residual is not None:
            out = out + (residual if shortcut is None else shortcut(residual))
        return activate(out, activation)

    monkeypatch.setattr(eligibility, "has_kernels", lambda device: True)
    monkeypatch.setattr(networks, "conv_norm_act", conv_norm_act)
    pool = partial(F.avg_pool2d, kernel_size=3, stride=2, padding=1)
    monkeypatch.setattr(networks.depthwise, "average_pool", pool)
    return calls


def shortcut(*layers):
    return nn.Sequential(nn.Conv2d(8, 16, 1, 2, bias=False), *layers)


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda: BasicBlock(8, 8), 2),
        (lambda: BasicBlock(8, 16, 2, shortcut(nn.BatchNorm2d(16))), 2),
        (lambda: Conv2dNormActivation(8, 16, activation_layer=nn.ReLU6), 1),
        (lambda: InvertedResidual(8, 8, 1, 6), 3),
        (lambda: InvertedResidual(8, 16, 2, 1), 2),
        (lambda: ShuffleUnit(8, 8, 1, 2, 2, nn.BatchNorm2d), 3),
        (lambda: ShuffleUnit(8, 16, 2, 2, 1, nn.BatchNorm2d), 3),
        # variants that our networks do not contain
        (lambda: BasicBlock(8, 16, 2, shortcut()), 0),
        (lambda: BasicBlock(8, 16, 2, shortcut(nn.BatchNorm2d(16), nn.Tanh())), 0),
        (lambda: Conv2dNormActivation(8, 16), 0),
        (lambda: Conv2dNormActivation(8, 16, activation_layer=nn.SiLU), 0),
        (lambda: Conv2dNormActivation(8, 16, activation_layer=None), 0),
        (lambda: Conv2dNormActivation(8, 16, norm_layer=None), 0),
        (lambda: Conv2dNormActivation(8, 16, activation_layer=nn.ReLU6, inplace=False), 0),
    ],
)
def test_blocks(make, count, fused):
    torch.manual_seed(0)
    block = make()
    twin = speed_up(copy.deepcopy(block))
    x = 5 * torch.randn(3, 8, 6, 6)
    torch.testing.assert_close(twin(x.clone()), block(x.clone()))
    assert len(fused) == count


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (BasicBlock(8, 8), "relu"),
        (BasicBlock(8, 16, 2, shortcut(nn.BatchNorm2d(16))), "downsample"),
        (InvertedResidual(8, 8, 1, 1), "conv.0.2"),
        (InvertedResidual(8, 8, 1, 1), "conv.0"),
        (InvertedResidual(8, 8, 1, 1), "conv"),
    ],
)
@pytest.mark.usefixtures("fused")
def test_hooks_on_modules_that_fusing_would_skip_are_called(block, part):
    called = []
    block.get_submodule(part).register_forward_hook(lambda *given: called.append(given))
    speed_up(block)(torch.randn(2, 8, 4, 4))
    assert called


@pytest.mark.parametrize(
    ("name", "count"), [("resnet8", 9), ("mobilenetv2", 52), ("shufflenet", 49)]
)
def test_all_layers_of_our_networks_are_fused(name, count, fused):
    model = speed_up(create_model(name, 4, width=0.125)).eval()
    x = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    found = model(x)
    assert len(fused) == len(set(fused)) == count
    with using(plain=True):
        torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-4)
    assert len(fused) == count


@pytest.mark.usefixtures("fused")
def test_compiled_networks_are_plain():
    model = speed_up(create_model("resnet8", 4, width=0.125)).eval()
    x = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)(x)
        with using(plain=True):
            assert torch.equal(compiled, model(x))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_shuffle_keeps_the_layout(layout):
    x = torch.randn(2, 6, 3, 4).contiguous(memory_format=layout)
    found = networks._shuffle(x, 2)
    assert torch.equal(found, channel_shuffle(x, 2))
    assert found.is_contiguous(memory_format=layout)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["resnet8", "mobilenetv2", "shufflenet"])
def test_cuda_networks_are_as_exact_as_plain_ones(name, dtype):
    torch.manual_seed(0)
    model = speed_up(create_model(name, 5)).cuda().to(memory_format=torch.channels_last)
    x = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, device="cuda")
    start = {key: value.clone() for key, value in model.state_dict().items()}

    def gradient(network, half):
        network.load_state_dict(start)
        network.zero_grad()
        with torch.autocast("cuda", dtype, enabled=half):
            outputs = network.train()(x)
        outputs.logsumexp(1).double().sum().backward()
        return torch.cat([p.grad.flatten().double() for p in network.parameters()])

    half = dtype != torch.float32
    fused = gradient(model, half)
    with using(plain=True):
        plain = gradient(model, half)
        exact = gradient(model.double(), False)
    assert (fused - exact).norm() <= 1.5 * (plain - exact).norm() + 1e-6 * exact.norm()


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["resnet8", "mobilenetv2", "shufflenet"])
def test_cuda_evaluation_is_as_exact_as_plain(name):
    torch.manual_seed(0)
    model = speed_up(create_model(name, 5)).cuda().to(memory_format=torch.channels_last)
    x = torch.randint(0, 256, (1024, 3, 32, 32), dtype=torch.uint8, device="cuda")

    def outputs(network, half):
        precision = torch.autocast("cuda", torch.bfloat16, enabled=half)
        with torch.no_grad(), precision:
            return network.eval()(x).double()

    fused = outputs(model, True)
    with using(plain=True):
        plain, exact = outputs(model, True), outputs(model, False)
    assert (fused - exact).norm() <= 1.5 * (plain - exact).norm()
