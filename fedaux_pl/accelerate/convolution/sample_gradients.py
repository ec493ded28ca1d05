"""Gradients of samples on CUDA: those of convolutions are batched matrix products.

``vmap`` computes them as one grouped convolution, for which cuDNN is slow. Here they have the
precision of autocast; what clipping and sums compute of them is exact in float32.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.modules.utils import _pair
from torch.overrides import TorchFunctionMode

from fedaux_pl.accelerate.context import ceil_div, launch
from fedaux_pl.accelerate.eligibility import compute_dtype, has_kernels
from fedaux_pl.accelerate.versions import fast_version
from fedaux_pl.modules import PrivateClientModule

BLOCK = 1024  # values of a row that a program sums

# stride, padding, dilation, groups
_Geometry = tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]


@fast_version(PrivateClientModule)
class FastPrivateClientModule(PrivateClientModule):
    """DP-SGD whose gradients of samples have the precision of autocast."""

    def sample_precision(self, x: Tensor) -> "_FastLayers":
        """Return the context of the gradients of samples."""
        return _FastLayers()

    def sample_parameters(self) -> dict[str, Tensor]:
        """Return the parameters of which samples have gradients, convolutions' in half precision.

        So their gradients are, which are larger than all else.
        """
        parameters = super().sample_parameters()
        for name, layer in self.model.named_modules():
            key = f"{name}.weight"
            # others may change their weights before they convolve
            if type(layer) is nn.Conv2d and key in parameters:
                parameters[key] = parameters[key].to(compute_dtype(parameters[key]))
        return parameters

    def weighted_sum(self, rows: Tensor, scales: Tensor) -> Tensor:
        """Return the float32 sum of rows (N, size), each times its scale; 0 leaves out NaN."""
        if not has_kernels(rows.device):
            return super().weighted_sum(rows, scales)
        return sum_rows(rows.contiguous(), scales)


def sum_rows(rows: Tensor, scales: Tensor) -> Tensor:
    """Return the float32 sum of dense rows, each times its scale, in one kernel."""
    count, width = rows.shape
    out = rows.new_empty(width, dtype=torch.float32)
    grid = (ceil_div(width, BLOCK),)
    launch("weighted_sum_kernel", grid, rows, scales, out, count, width, BLOCK=BLOCK)
    return out


class _FastLayers(TorchFunctionMode):
    """Within this context, convolutions and frozen BatchNorm have rules of ``vmap`` of their own.

    That of PyTorch for a frozen BatchNorm is slow, and has none in half precision.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace ``F.conv2d`` and ``F.batch_norm``."""
        if func is F.conv2d:
            func = _convolve
        elif func is F.batch_norm:
            func = _normalize
        return func(*args, **(kwargs or {}))


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve images (N, C, H, W) in the precision of autocast."""
    if isinstance(padding, str):
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    geometry = _pair(stride), _pair(padding), _pair(dilation), groups
    dtype = compute_dtype(x)
    y: Tensor = _Convolution.apply(x.to(dtype), weight.to(dtype), geometry)
    return y if bias is None else y + bias.to(dtype)[:, None, None]


def _normalize(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Apply a BatchNorm, frozen if vmap is to have a rule."""
    tensors = running_mean, running_var, weight, bias
    if training or any(tensor is None for tensor in tensors):
        return F.batch_norm(x.float(), *tensors, training, momentum, eps)
    y: Tensor = _BatchNorm.apply(x, *tensors, eps)
    return y


def _batched(tensor: Tensor, dim: int | None, info: Any) -> Tensor:
    """Return a tensor with the samples first, repeated for each if it is the same for all."""
    if dim is None:
        return tensor.expand(info.batch_size, *tensor.shape)
    return tensor.movedim(dim, 0)


class _Convolution(Function):
    """A convolution of tensors of one dtype."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, geometry: _Geometry) -> Tensor:
        """Convolve (N, C, H, W)."""
        x = x.contiguous(memory_format=torch.channels_last)
        return F.conv2d(x, weight, None, *geometry).contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _output: Tensor) -> None:
        """Save the inputs."""
        x, weight, ctx.geometry = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:
        """Return the gradients of the input, unless it needs none, and of the weight."""
        x, weight = ctx.saved_tensors
        options = ctx.geometry, ctx.needs_input_grad[0]
        x_gradient, weight_gradient = _Gradients.apply(gradient, x, weight, *options)
        return x_gradient if ctx.needs_input_grad[0] else None, weight_gradient, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, weight: Tensor, geometry: _Geometry
    ) -> tuple[Tensor, int]:
        """Convolve the images of all samples, (samples, N, C, H, W), at once."""
        x = _batched(x, in_dims[0], info)
        y = _Convolution.forward(x.flatten(0, 1), weight, geometry)
        return y.view(info.batch_size, -1, *y.shape[1:]), 0


class _Gradients(Function):
    """The gradients of a convolution, of many samples at once."""

    @staticmethod
    def forward(
        gradient: Tensor, x: Tensor, weight: Tensor, geometry: _Geometry, needs_x: bool
    ) -> tuple[Tensor, Tensor]:
        """Return those of its input (samples, N, C, H, W), or an empty tensor, and of its weight.

        Those of the weight have a first dimension of samples.
        """
        samples = len(x)
        stride, padding, dilation, groups = geometry
        gradient = gradient.flatten(0, 1)
        images = x.flatten(0, 1)
        x_gradient = x.new_empty(samples, 0)
        if needs_x:
            x_gradient, _, _ = torch.ops.aten.convolution_backward(
                gradient.contiguous(memory_format=torch.channels_last),
                images.contiguous(memory_format=torch.channels_last),
                weight, None, stride, padding, dilation, False, (0, 0), groups,
                (True, False, False),
            )  # fmt: skip
            x_gradient = x_gradient.contiguous().view_as(x)
        windows = F.pad(images, (padding[1], padding[1], padding[0], padding[0]))
        for dim in (0, 1):
            extent = dilation[dim] * (weight.shape[2 + dim] - 1) + 1
            windows = windows.unfold(2 + dim, extent, stride[dim])[..., :: dilation[dim]]
        # (samples, N, groups, inputs of an output's pixel, pixels of the output)
        pixels = gradient[0, 0].numel()
        columns = windows.permute(0, 1, 4, 5, 2, 3)
        columns = columns.reshape(samples, -1, groups, weight[0].numel(), pixels)
        gradient = gradient.reshape(samples, -1, groups, len(weight) // groups, pixels)
        rows = torch.einsum("sngop,sngcp->sgoc", gradient, columns)
        return x_gradient, rows.reshape(samples, *weight.shape)

    @staticmethod
    def setup_context(*_: Any) -> None:
        """Save nothing: there are no second derivatives."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], gradient: Tensor, x: Tensor, *options: Any
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """Return the gradients of all samples."""
        gradient = _batched(gradient, in_dims[0], info)
        x = _batched(x, in_dims[1], info)
        return _Gradients.forward(gradient, x, *options), (0, 0)


class _BatchNorm(Function):
    """A frozen BatchNorm with float32 parameters, in any precision."""

    @staticmethod
    def forward(
        x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        """Normalize (N, C, ...)."""
        y, _, _ = torch.native_batch_norm(x, weight, bias, mean, variance, False, 0.0, eps)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _output: Tensor) -> None:
        """Save the inputs but for the bias."""
        *tensors, _, ctx.eps = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of input, weight and bias."""
        x, weight, bias = _BatchNormGradients.apply(gradient, *ctx.saved_tensors, ctx.eps)
        return x, None, None, weight, bias, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, *options: Any) -> tuple[Tensor, int]:
        """Normalize the inputs of all samples, (samples, N, C, ...), at once."""
        x = _batched(x, in_dims[0], info)
        y = _BatchNorm.forward(x.flatten(0, 1), *options)
        return y.view(info.batch_size, -1, *y.shape[1:]), 0


class _BatchNormGradients(Function):
    """The gradients of a frozen BatchNorm, of many samples at once."""

    @staticmethod
    def forward(
        gradient: Tensor, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return those of input (samples, N, C, ...), and of weight and bias, (samples, C).

        PyTorch's kernel computes them as if the channels of each sample were channels of their own.
        """
        samples = len(x)
        channels = [each.transpose(0, 1).flatten(1, 2) for each in (gradient, x)]
        options = [each.repeat(samples) for each in (weight, mean, variance)]
        x_gradient, *rows = torch.ops.aten.native_batch_norm_backward(
            *channels, *options, None, None, False, eps, (True, True, True)
        )
        x_gradient = x_gradient.view(len(x_gradient), samples, -1, *x.shape[3:]).transpose(0, 1)
        return x_gradient, *(each.view(samples, -1) for each in rows)

    @staticmethod
    def setup_context(*_: Any) -> None:
        """Save nothing: there are no second derivatives."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], gradient: Tensor, x: Tensor, *options: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Return the gradients of all samples."""
        gradient = _batched(gradient, in_dims[0], info)
        x = _batched(x, in_dims[1], info)
        return _BatchNormGradients.forward(gradient, x, *options), (0, 0, 0)
