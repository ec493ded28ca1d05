"""Which layers are fused, by dtype and mode."""

import pytest
import torch
from torch import nn

from fedaux_pl.accelerate import eligibility
from fedaux_pl.accelerate.convolution.batch_norm import LINEAR, RELU, RELU6
from fedaux_pl.accelerate.convolution.paths import choose_path

HALF = torch.bfloat16


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    monkeypatch.setattr(eligibility, "has_kernels", lambda device: True)


def path(conv=None, norm=None, *, dtype=HALF, grad=True, activation=RELU, residual=None):
    conv = conv or nn.Conv2d(3, 8, 3, padding=1, bias=False)
    x = torch.zeros(1, 3, 4, 4, dtype=dtype)
    with torch.set_grad_enabled(grad):
        return choose_path(conv, norm or nn.BatchNorm2d(8), x, residual, activation)


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
def test_other_norm_layers_are_not_fused(norm):
    for grad in (False, True):
        assert path(norm=norm, grad=grad) == "plain"
        assert path(norm=norm.eval(), grad=grad) == "plain"
        norm.train()


def test_unsupported_tensors_are_not_fused(monkeypatch):
    assert path(dtype=torch.float64) == "plain"
    assert path(residual=torch.zeros(1, dtype=HALF)) == "train"
    assert path(residual=torch.zeros(1)) == "plain"
    # evaluation mode has no backward kernel
    assert path(norm=nn.BatchNorm2d(8).eval(), grad=True) == "plain"
    monkeypatch.undo()  # no kernels for the CPU
    assert path() == "plain"


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
