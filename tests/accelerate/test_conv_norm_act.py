"""Fused layers compute what the modules compute; which layers are fused, by dtype and mode."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedaux_pl.accelerate import eligibility
from fedaux_pl.accelerate.convolution.batch_norm import LINEAR, RELU, RELU6
from fedaux_pl.accelerate.convolution.conv_norm_act import choose_path, conv_norm_act
from fedaux_pl.accelerate.convolution.image_stem import is_stem, pad_channels
from tests.accelerate.pairwise import pairwise

HALF = torch.bfloat16


def layers(norm=None, **options):
    conv = nn.Conv2d(3, 8, 3, padding=1, bias=False, **options)
    return conv, nn.BatchNorm2d(8) if norm is None else norm


@pytest.mark.parametrize(
    ("norm", "train", "layer", "with_residual"),
    pairwise(
        ["batch", "group"],
        [False, True],
        [(RELU, nn.ReLU()), (RELU6, nn.ReLU6()), (LINEAR, nn.Identity())],
        [False, True],
    ),
)
def test_cpu_results_are_those_of_the_modules_bit_for_bit(norm, train, layer, with_residual):
    activation, module = layer
    torch.manual_seed(0)
    conv, own = layers(None if norm == "batch" else nn.GroupNorm(2, 8))
    own.train(train)
    twin = nn.BatchNorm2d(8) if norm == "batch" else nn.GroupNorm(2, 8)
    twin.train(train)
    x = 5 * torch.randn(4, 3, 6, 6)
    residual = torch.randn(4, 8, 6, 6) if with_residual else None
    for _ in range(2):
        got = conv_norm_act(conv, own, x, residual, activation=activation)
        expected = twin(conv(x))
        expected = module(expected if residual is None else expected + residual)
        assert torch.equal(got, expected)
    for key, value in twin.state_dict().items():
        assert torch.equal(own.state_dict()[key], value)


def test_existing_padding_is_used():
    wide = torch.zeros(4, 6, 5, 8).permute(0, 3, 1, 2)
    narrow = wide[:, :3]
    assert pad_channels(narrow).data_ptr() == wide.data_ptr()
    assert pad_channels(narrow).shape == wide.shape
    assert pad_channels(narrow[1:]).data_ptr() == wide[1:].data_ptr()
    # slices without padding behind them
    for part in (narrow.clone(), narrow.contiguous(), wide[:, 1:4], narrow[:, :, 1:], wide[:3, 5:]):
        padded = pad_channels(part)
        assert torch.equal(padded[:, :3], part)
        assert padded.shape[1] == 8
        assert padded.untyped_storage().data_ptr() != wide.untyped_storage().data_ptr()


def test_which_convolutions_are_stems():
    def conv(in_channels=3, out_channels=64, kernel=3, **options):
        options = {"padding": 1, "bias": False, **options}
        return nn.Conv2d(in_channels, out_channels, kernel, **options)

    assert is_stem(conv())
    assert is_stem(conv(1, 16))
    assert is_stem(conv(8, 128))
    for other in (
        conv(9),
        conv(out_channels=20),
        conv(out_channels=144),
        conv(kernel=1),
        conv(kernel=(3, 1)),
        conv(stride=2),
        conv(padding=0),
        conv(dilation=2),
    ):
        assert not is_stem(other)


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.setattr(eligibility, "has_kernels", lambda device: True)


def path(conv=None, norm=None, *, dtype=HALF, grad=True, activation=RELU, residual=None):
    conv = conv or nn.Conv2d(3, 8, 3, padding=1, bias=False)
    x = torch.zeros(1, 3, 4, 4, dtype=dtype)
    with torch.set_grad_enabled(grad):
        return choose_path(conv, norm or nn.BatchNorm2d(8), x, residual, activation)


def hooked(module):
    module.register_forward_hook(lambda *args: None)
    return module


@pytest.mark.usefixtures("kernels")
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
@pytest.mark.usefixtures("kernels")
def test_other_norm_layers_are_not_fused(norm):
    for grad in (False, True):
        assert path(norm=norm, grad=grad) == "plain"
        assert path(norm=norm.eval(), grad=grad) == "plain"
        norm.train()


def test_unsupported_tensors_are_not_fused(kernels, monkeypatch):
    assert path(dtype=torch.float64) == "plain"
    assert path(residual=torch.zeros(1, dtype=HALF)) == "train"
    assert path(residual=torch.zeros(1)) == "plain"
    # evaluation mode has no backward kernel
    assert path(norm=nn.BatchNorm2d(8).eval(), grad=True) == "plain"
    monkeypatch.undo()  # no kernels for the CPU
    assert path() == "plain"


@pytest.mark.usefixtures("kernels")
def test_evaluation_folds_where_cudnn_has_a_kernel():
    norm = nn.BatchNorm2d(8).eval()

    def evaluation(conv=None, **options):
        return path(conv, norm, grad=False, **options)

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


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("layout", "in_channels", "dtype", "shape"),
    pairwise(
        [torch.contiguous_format, torch.channels_last],
        [1, 2, 3],
        [torch.bfloat16, torch.float16],
        [(64, 32, 32), (3, 33, 17), (1, 28, 28)],
    ),
)
def test_cuda_stem_is_the_convolution(layout, in_channels, dtype, shape):
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
