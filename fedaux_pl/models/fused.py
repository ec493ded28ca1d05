"""A convolution with its norm layer, residual and activation, the fastest way there is.

On CUDA devices, networks for small images are bound by what lies between their convolutions and
by the number of kernels. What :func:`conv_norm_act` does is what its modules do; how it is done
depends on where and when (see :func:`choose_path`). Results differ from the modules' in rounding
only, and not at all on the CPU.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from types import MappingProxyType
from typing import Literal, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedaux_pl.models.batch_norm import (
    Activation,
    batch_norm_act,
    batch_norm_act_eval,
    channels_last,
)
from fedaux_pl.models.casting import cast_all
from fedaux_pl.models.contexts import holding
from fedaux_pl.models.folding import convolve_folded
from fedaux_pl.models.overlap import convolve_overlapped, overlaps
from fedaux_pl.models.stem import (
    ALIGNMENT,
    MOST_PLANES,
    convolve_stem,
    is_stem,
    pad_channels,
    stem_images,
)

Path = Literal["plain", "train", "apply", "fold"]

HALF = (torch.bfloat16, torch.float16)
_plain: ContextVar[bool] = ContextVar("plain", default=False)
# The weights of convolutions that were cast at once.
_cast: ContextVar[Mapping[nn.Module, Tensor]] = ContextVar("cast", default=MappingProxyType({}))


@contextmanager
def plain_layers() -> Iterator[None]:
    """Within it every model runs as PyTorch's modules do, for comparisons."""
    with holding(_plain, True):
        yield


@contextmanager
def weights_cast(model: nn.Module, x: Tensor) -> Iterator[None]:
    """Within it the convolutions of a model that is trained find their weights cast already.

    Args:
        model: The model, whose convolutions are called by :func:`conv_norm_act`.
        x: Its inputs.
    """
    dtype = compute_dtype(x)
    casts = fusable(x) and dtype in HALF and torch.is_grad_enabled() and model.training
    modules = list(model.modules()) if casts else []
    convs = [module for module in modules if _is_castable(module)]
    if not convs or not any(map(_is_ordinary, modules)):
        yield
        return
    cast = dict(zip(convs, cast_all([c.weight for c in convs], dtype), strict=True))  # type: ignore[misc]
    with holding(_cast, cast):
        yield


def reads_planes(model: nn.Module, x: Tensor) -> bool:
    """Whether a network is fastest, here and now, with images that are planes.

    That is where nothing is to go back and its stem has a kernel of ours. The first convolution
    that the network was given is taken for the stem; where it is another one, images that are
    planes are padded and copied before it, so that the result is the same.

    Args:
        model: The network, whose convolutions are called by :func:`conv_norm_act`.
        x: Its inputs.
    """
    if torch.is_grad_enabled() or not fusable(x):
        return False
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    return (
        first is not None
        and _has_weight_alone(first)
        and first.in_channels <= MOST_PLANES
        and is_stem(first)
        and any(map(_is_ordinary, model.modules()))
    )


def conv_norm_act(
    conv: nn.Module,
    norm: nn.Module,
    x: Tensor,
    residual: Tensor | None = None,
    *,
    shortcut: nn.Sequential | None = None,
    relu: bool = True,
    upper: float | None = None,
) -> Tensor:
    """Compute relu(norm(conv(x)) + residual).

    Args:
        conv: The convolution.
        norm: Its norm layer.
        x: Activations or images of shape (N, C, H, W).
        residual: What is added before the activation.
        shortcut: A convolution and a norm layer that the residual goes through first.
        relu: Whether there is an activation.
        upper: Upper bound of the activation, 6 for ReLU6.
    """
    activation = Activation(relu, upper)
    dtype = compute_dtype(x)

    def way(*layers: nn.Module) -> Path:
        return choose_path(
            *layers,
            usable=fusable(x) and (residual is None or residual.dtype == dtype),
            dtype=dtype,
            grad=torch.is_grad_enabled(),
            activation=activation,
        )

    path = way(conv, norm)
    if residual is not None and shortcut is not None:
        layers = shortcut[0], shortcut[1]
        if path == "fold" and way(*layers) == "fold":
            return convolve_folded(conv, norm, x.to(dtype), residual, layers)  # type: ignore[arg-type]
        residual = conv_norm_act(*layers, residual, relu=False)
        path = way(conv, norm)  # which its precision may have a say in
    if path == "fold":
        return convolve_folded(conv, norm, x.to(dtype), residual)  # type: ignore[arg-type]
    out: Tensor = conv(x) if path == "plain" else _convolve(conv, x, dtype)
    if path != "plain" and isinstance(norm, nn.BatchNorm2d) and _fits(out, residual, dtype):
        step = batch_norm_act if path == "train" else batch_norm_act_eval
        return step(norm, out, residual, activation)
    out = norm(out)
    if residual is not None:
        out = out + residual
    if not relu:
        return out
    return F.relu(out, inplace=True) if upper is None else F.hardtanh(out, 0.0, upper, inplace=True)


def choose_path(
    conv: nn.Module,
    norm: nn.Module,
    *,
    usable: bool,
    dtype: torch.dtype,
    grad: bool,
    activation: Activation,
) -> Path:
    """Say how a convolution and what follows it are computed.

    Args:
        conv: The convolution.
        norm: Its norm layer.
        usable: Whether our kernels can run on the activations, see :func:`fusable`.
        dtype: What the convolution computes in.
        grad: Whether gradients are recorded.
        activation: The activation.

    Returns:
        ``"plain"`` for the modules as they are; ``"train"`` for BatchNorm by the batch's own
        statistics; ``"apply"`` for evaluation by the running ones after the convolution; ``"fold"``
        for evaluation with them in the convolution's weight, where cuDNN adds the residual and
        takes the ReLU in the same kernel.
    """
    if not usable or dtype not in (*HALF, torch.float32) or not _is_ordinary(norm):
        return "plain"
    if norm.training:
        return "train"
    if grad:
        return "plain"
    if activation.relu and activation.upper is None and dtype in HALF and _is_foldable(conv):
        return "fold"
    return "apply"


def compute_dtype(x: Tensor) -> torch.dtype:
    """What a convolution of ``x`` computes in."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def fusable(x: Tensor) -> bool:
    """Whether kernels of our own can run on a tensor, here and now."""
    return (
        x.is_cuda
        and not _plain.get()
        and _device_is_supported(x.device.index)
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )


@cache
def _device_is_supported(index: int) -> bool:
    """NVIDIA's since Ampere, which have bfloat16; Triton comes with PyTorch on Linux only."""
    return (
        find_spec("triton") is not None
        and torch.version.cuda is not None
        and torch.cuda.get_device_capability(index) >= (8, 0)
    )


def _is_ordinary(norm: nn.Module) -> bool:
    """Whether a layer is BatchNorm as it comes, with nothing that only its module would do."""
    if type(norm) is not nn.BatchNorm2d or norm.momentum is None or not norm.track_running_stats:
        return False
    state = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    return (
        norm.num_batches_tracked is not None
        and all(t is not None and t.dtype == torch.float32 and t.is_contiguous() for t in state)
        and not has_hooks(norm)
    )


def _is_ordinary_conv(conv: nn.Module) -> bool:
    """Whether a layer is a convolution over all channels, with nothing but its weight."""
    return (
        type(conv) is nn.Conv2d
        and conv.groups == 1
        and conv.padding_mode == "zeros"
        and conv.weight.dtype == torch.float32
        and not has_hooks(conv)
    )


def _has_weight_alone(conv: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether such a layer has no bias either, and pads by numbers."""
    return (
        isinstance(conv, nn.Conv2d)
        and _is_ordinary_conv(conv)
        and conv.bias is None
        and not isinstance(conv.padding, str)
    )


def _is_castable(conv: nn.Module) -> bool:
    """Whether a convolution takes its weight as it is, but for the precision."""
    return _has_weight_alone(conv) and conv.in_channels % ALIGNMENT == 0 and not is_stem(conv)


def _is_foldable(conv: nn.Module) -> bool:
    """Whether cuDNN has a kernel of the convolution with bias, residual and ReLU."""
    return (
        _has_weight_alone(conv)
        and conv.out_channels % ALIGNMENT == 0
        and torch.backends.cudnn.enabled
    )


def has_hooks(module: nn.Module) -> bool:
    """Whether calling the module does more than its class says: hooks, or a forward of its own."""
    return bool(
        "forward" in module.__dict__
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _fits(out: Tensor, residual: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether activations are what the kernels expect; BatchNorm itself refuses single values."""
    return (
        out.ndim == 4
        and out.dtype == dtype
        and out.numel() > out.shape[1]
        and (residual is None or residual.shape == out.shape)
    )


def _convolve(conv: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The convolution where our kernels can run, with zeros for the channels tensor cores lack.

    Without them cuDNN takes a slow kernel for images, and changes their layout and back. Even with
    them it may, so that stems have a kernel of our own. Grouped 1x1 convolutions are products.
    """
    if dtype in HALF and isinstance(conv, nn.Conv2d) and _is_ordinary_conv(conv):
        fits = x.numel() > 0 and x.shape[1] == conv.in_channels
        stem = fits and conv.bias is None and is_stem(conv)
        cast = _cast.get().get(conv)
        if overlaps(conv):
            return convolve_overlapped(conv, pad_channels(x.to(dtype)), stem=stem, cast=cast)
        if cast is not None:
            return torch.conv2d(x.to(dtype), cast, None, conv.stride, conv.padding, conv.dilation)
        if stem:
            return convolve_stem(conv, stem_images(x.to(dtype)))
        if conv.in_channels % ALIGNMENT:
            weight = F.pad(conv.weight, (0, 0, 0, 0, 0, -conv.in_channels % ALIGNMENT))
            x = pad_channels(x.to(dtype))
            return F.conv2d(x, weight, conv.bias, conv.stride, conv.padding, conv.dilation)
    if dtype in HALF and isinstance(conv, nn.Conv2d) and _is_grouped_pointwise(conv):
        return _multiply_groups(conv, x.to(dtype))
    out: Tensor = conv(x)
    return out


def _is_grouped_pointwise(conv: nn.Conv2d) -> bool:
    """Whether a layer mixes the channels of each group, and nothing else."""
    return (
        type(conv) is nn.Conv2d
        and 1 < conv.groups < conv.in_channels
        and conv.kernel_size == conv.stride == (1, 1)
        and conv.padding == (0, 0)
        and conv.bias is None
        and conv.weight.dtype == torch.float32
        and not has_hooks(conv)
    )


def _multiply_groups(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Such a convolution as one matrix product, with zeros for what other groups hold.

    Groups are narrower than what tensor cores multiply at once, so that the zeros cost little, and
    nothing against cuDNN, which changes the layout of the activations and back.
    """
    n, channels, height, width = x.shape
    blocks = conv.weight.flatten(1).to(x.dtype).chunk(conv.groups)
    rows = channels_last(x).permute(0, 2, 3, 1).reshape(-1, channels)
    out = F.linear(rows, torch.block_diag(*blocks))  # type: ignore[no-untyped-call]
    return out.view(n, height, width, conv.out_channels).permute(0, 3, 1, 2)
