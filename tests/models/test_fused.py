"""What conv_norm_act does on the CPU, and which way it would go elsewhere."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.models.resnet import BasicBlock

from fedaux_pl.engine.inference import evaluating
from fedaux_pl.models import create_model, folding
from fedaux_pl.models.batch_norm import Activation
from fedaux_pl.models.fused import choose_path, conv_norm_act, fusable, plain_layers
from fedaux_pl.models.stem import is_stem, pad_channels

RELU, RELU6, LINEAR = Activation(), Activation(True, 6.0), Activation(False)


def layers(norm=None, **options):
    conv = nn.Conv2d(3, 8, 3, padding=1, bias=False, **options)
    return conv, nn.BatchNorm2d(8) if norm is None else norm


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    ("activation", "module"), [(RELU, nn.ReLU()), (RELU6, nn.ReLU6()), (LINEAR, nn.Identity())]
)
@pytest.mark.parametrize("with_residual", [False, True])
def test_on_the_cpu_it_is_the_modules_bit_for_bit(norm, train, activation, module, with_residual):
    torch.manual_seed(0)
    conv, layer = layers(None if norm == "batch" else nn.GroupNorm(2, 8))
    layer.train(train)
    twin = nn.BatchNorm2d(8) if norm == "batch" else nn.GroupNorm(2, 8)
    twin.train(train)
    x = 5 * torch.randn(4, 3, 6, 6)
    residual = torch.randn(4, 8, 6, 6) if with_residual else None
    for _ in range(2):
        got = conv_norm_act(conv, layer, x, residual, relu=activation.relu, upper=activation.upper)
        expected = twin(conv(x))
        expected = module(expected if residual is None else expected + residual)
        assert torch.equal(got, expected)
    for key, value in twin.state_dict().items():
        assert torch.equal(layer.state_dict()[key], value)


def test_blocks_are_torchvisions_bit_for_bit():
    """Also the gradients, of blocks with and without a shortcut of their own."""
    resnet, mobilenet = create_model("resnet8", 2, width=0.25), create_model("mobilenetv2", 2)
    shortcut = nn.Sequential(nn.Conv2d(16, 32, 1, 2, bias=False), nn.BatchNorm2d(32))
    pairs = [
        (resnet.layer1[0], BasicBlock(16, 16), 16),
        (resnet.layer2[0], BasicBlock(16, 32, 2, shortcut), 16),
        (mobilenet.blocks[1], InvertedResidual(16, 8, 1, 1), 16),
        (mobilenet.blocks[3], InvertedResidual(16, 16, 1, 6), 16),
    ]
    for ours, theirs, channels in pairs:
        theirs.load_state_dict(ours.state_dict())
        inputs = [torch.randn(3, channels, 6, 6).requires_grad_() for _ in range(2)]
        inputs[1].data.copy_(inputs[0])
        outputs = [block.train()(x) for block, x in zip((ours, theirs), inputs, strict=True)]
        assert torch.equal(*outputs)
        for output in outputs:
            output.square().sum().backward()
        assert torch.equal(inputs[0].grad, inputs[1].grad)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)


def path(conv=None, norm=None, **facts):
    default_conv, default_norm = layers()
    facts = {"usable": True, "dtype": torch.bfloat16, "grad": True, "activation": RELU, **facts}
    return choose_path(conv or default_conv, norm or default_norm, **facts)


def hooked(module):
    module.register_forward_hook(lambda *args: None)
    return module


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_training_is_fused_in_these_dtypes(dtype):
    assert path(dtype=dtype) == "train"
    # batch statistics without gradients, as for teachers
    assert path(dtype=dtype, grad=False) == "train"


@pytest.mark.parametrize(
    "norm",
    [
        nn.GroupNorm(2, 8),
        nn.SyncBatchNorm(8),
        nn.Identity(),
        nn.BatchNorm2d(8, momentum=None),
        nn.BatchNorm2d(8, affine=False),
        nn.BatchNorm2d(8, track_running_stats=False),
        nn.BatchNorm2d(8).double(),
        nn.BatchNorm2d(8).bfloat16(),
        hooked(nn.BatchNorm2d(8)),
    ],
)
def test_other_norm_layers_are_left_alone(norm):
    for grad in (False, True):
        assert path(norm=norm, grad=grad) == "plain"
        assert path(norm=norm.eval(), grad=grad) == "plain"
        norm.train()


def test_where_kernels_do_not_run():
    assert path(usable=False) == "plain"
    assert path(dtype=torch.float64) == "plain"
    assert not fusable(torch.zeros(1, 3, 4, 4))
    # gradients of evaluation mode are nobody's bottleneck
    assert path(norm=nn.BatchNorm2d(8).eval(), grad=True) == "plain"


@pytest.mark.parametrize("trying", [False, True])
@pytest.mark.parametrize("exact", ["", "cudnn", "torch"])
def test_kernels_are_tried_unless_results_are_to_repeat(exact, trying, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "cudnn_convolution", lambda *given: asked.append(given[6:8]))
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", trying)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", exact == "cudnn")
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: exact == "torch")
    folding._convolve(SimpleNamespace(is_cuda=True), torch.zeros(1), layers()[0])
    assert asked == [(not exact, bool(exact))]


def test_evaluation_folds_where_cudnn_has_a_kernel():
    norm = nn.BatchNorm2d(8).eval()

    def evaluation(conv=None, **facts):
        return path(conv, norm, grad=False, **facts)

    assert evaluation() == evaluation(dtype=torch.float16) == "fold"
    assert evaluation(dtype=torch.float32) == "apply"
    assert evaluation(activation=RELU6) == evaluation(activation=LINEAR) == "apply"
    for conv in (
        nn.Conv2d(8, 8, 3, groups=2, bias=False),
        nn.Conv2d(3, 8, 3),
        nn.Conv2d(3, 7, 3, bias=False),
        nn.Conv2d(3, 8, 3, padding="same", bias=False),
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular", bias=False),
        nn.Conv2d(3, 8, 3, bias=False).bfloat16(),
        hooked(nn.Conv2d(3, 8, 3, bias=False)),
        nn.Sequential(nn.Conv2d(3, 8, 3, bias=False)),
    ):
        assert evaluation(conv) == "apply"


@pytest.mark.parametrize("channels", [1, 3, 8, 11])
def test_padded_channels_change_nothing(channels):
    x = torch.randn(2, channels, 5, 5)
    weight = torch.randn(4, channels, 3, 3)
    padded = pad_channels(x)
    assert padded.shape[1] % 8 == 0
    assert torch.equal(padded[:, :channels], x)
    wide = F.pad(weight, (0, 0, 0, 0, 0, -channels % 8))
    torch.testing.assert_close(F.conv2d(padded, wide), F.conv2d(x, weight))


def test_padding_that_is_there_already_is_used():
    wide = torch.zeros(4, 6, 5, 8).permute(0, 3, 1, 2)
    narrow = wide[:, :3]
    assert pad_channels(narrow).data_ptr() == wide.data_ptr()
    assert pad_channels(narrow).shape == wide.shape
    assert pad_channels(narrow[1:]).data_ptr() == wide[1:].data_ptr()
    # parts that only look like it
    for part in (narrow.clone(), narrow.contiguous(), wide[:, 1:4], narrow[:, :, 1:], wide[:3, 5:]):
        padded = pad_channels(part)
        assert torch.equal(padded[:, :3], part)
        assert padded.shape[1] == 8
        assert padded.untyped_storage().data_ptr() != wide.untyped_storage().data_ptr()


def test_stems_of_these_kinds_have_a_kernel():
    def conv(in_channels=3, out_channels=64, kernel=3, **options):
        options = {"padding": 1, "bias": False, **options}
        return nn.Conv2d(in_channels, out_channels, kernel, **options)

    assert is_stem(conv())
    assert is_stem(conv(1, 16))
    assert is_stem(conv(8, 128))
    for other in (
        conv(9),
        conv(out_channels=24),
        conv(out_channels=144),
        conv(kernel=1),
        conv(kernel=(3, 1)),
        conv(stride=2),
        conv(padding=0),
        conv(dilation=2),
    ):
        assert not is_stem(other)


def test_importing_models_defines_no_kernels():
    """For which Triton would be needed; PyTorch may import it for reasons of its own."""
    code = "import sys, fedaux_pl.models; sys.exit('fedaux_pl.models.kernels' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["resnet8", "mobilenetv2", "shufflenet"])
def test_cuda_networks_are_as_exact_as_plain_ones(name, dtype):
    torch.manual_seed(0)
    model = create_model(name, 5).cuda().to(memory_format=torch.channels_last)
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
    with plain_layers():
        plain = gradient(model, half)
        exact = gradient(model.double(), False)
    assert (fused - exact).norm() <= 1.5 * (plain - exact).norm() + 1e-6 * exact.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("statistics", ["running", "batch"])
@pytest.mark.parametrize("name", ["resnet8", "mobilenetv2", "shufflenet"])
def test_cuda_evaluation_is_as_exact_as_plain(name, statistics):
    """In large batches too, where some convolutions are of pairs of pixels."""
    torch.manual_seed(0)
    model = create_model(name, 5).cuda().to(memory_format=torch.channels_last)
    x = torch.randint(0, 256, (1024, 3, 32, 32), dtype=torch.uint8, device="cuda")

    def outputs(network, half):
        precision = torch.autocast("cuda", torch.bfloat16, enabled=half)
        with torch.no_grad(), evaluating(network, statistics), precision:
            return network(x).double()

    fused = outputs(model, True)
    with plain_layers():
        plain, exact = outputs(model, True), outputs(model, False)
    assert (fused - exact).norm() <= 1.5 * (plain - exact).norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("shape", [(64, 32, 32), (3, 33, 17), (1, 28, 28)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("in_channels", [1, 2, 3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_cuda_stem_is_the_convolution(layout, in_channels, dtype, shape):
    """Of planes, and of images by the eight."""
    torch.manual_seed(0)
    conv = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False).cuda()
    norm = nn.BatchNorm2d(64).cuda().eval()
    n, height, width = shape
    x = torch.randn(n, in_channels, height, width, device="cuda").to(memory_format=layout)
    with torch.no_grad(), torch.autocast("cuda", dtype):
        out = conv_norm_act(conv, norm, x)
    exact = F.relu(norm.double()(conv.double()(x.double())))
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert (out - exact).norm() < 1e-2 * exact.norm()
