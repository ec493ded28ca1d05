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
    """DP-SGD with convolutions in the precision of autocast."""

    def sample_gradients(self, x: Tensor, labels: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the gradients of each sample, shapes (N, size), and its loss, shape (N,)."""
        with _SampleConvolutions(compute_dtype(next(self.parameters()))):
            return super().sample_gradients(x, labels)

    def sample_parameters(self) -> dict[str, Tensor]:
        """Return the parameters of which samples have gradients, by name."""
        parameters = super().sample_parameters()
        for name, layer in self.model.named_modules():
            key = f"{name}.weight"
            # others may change their weights before they convolve
            if type(layer) is nn.Conv2d and key in parameters and _has_padding(layer.padding):
                parameters[key] = parameters[key].to(compute_dtype(parameters[key]))
        return parameters

    def weighted_sum(self, rows: Tensor, scales: Tensor) -> Tensor:
        """Return the float32 sum of rows (N, size), each times its scale; 0 leaves out NaN."""
        if not has_kernels(rows.device):
            return super().weighted_sum(rows, scales)
        count, width = rows.shape
        out = rows.new_empty(width, dtype=torch.float32)
        grid = (ceil_div(width, BLOCK),)
        rows = rows.contiguous()
        launch("weighted_sum_kernel", grid, rows, scales, out, count, width, BLOCK=BLOCK)
        return out


class _SampleConvolutions(TorchFunctionMode):
    """Within this context, convolutions with weights of a dtype are computed in it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace ``F.conv2d``."""
        is_convolution = func is F.conv2d and args[1].dtype == self.dtype
        if is_convolution and len(args) == 7 and _has_padding(args[4]):
            return _convolve(*args)
        return func(*args, **(kwargs or {}))


def _has_padding(padding: Any) -> bool:
    """Whether padding is given in pixels."""
    return not isinstance(padding, str)


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Tensor:
    geometry = _pair(stride), _pair(padding), _pair(dilation), groups
    y: Tensor = _Convolution.apply(x, weight, geometry)  # type: ignore[no-untyped-call]
    return y if bias is None else y + bias[:, None, None]


class _Convolution(Function):
    """A convolution in the dtype of its weight, of the dtype of its input."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, geometry: _Geometry) -> Tensor:
        """Convolve (N, C, H, W)."""
        x_half = x.to(weight.dtype, memory_format=torch.channels_last)
        y = F.conv2d(x_half, weight, None, *geometry)
        return y.to(x.dtype, memory_format=torch.contiguous_format)

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
        x_gradient, weight_gradient = _Gradients.apply(gradient, x, weight, *options)  # type: ignore[no-untyped-call]
        return x_gradient if ctx.needs_input_grad[0] else None, weight_gradient, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, weight: Tensor, geometry: _Geometry
    ) -> tuple[Tensor, int]:
        """Convolve the images of all samples, (samples, N, C, H, W), at once."""
        x = x.movedim(in_dims[0], 0)
        y = _Convolution.forward(x.flatten(0, 1), weight, geometry)
        return y.unflatten(0, (info.batch_size, -1)), 0


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
        gradient = gradient.flatten(0, 1).to(weight.dtype)
        images = x.flatten(0, 1).to(weight.dtype)
        x_gradient = x.new_empty(samples, 0)
        if needs_x:
            half, _, _ = torch.ops.aten.convolution_backward(
                gradient.contiguous(memory_format=torch.channels_last),
                images.contiguous(memory_format=torch.channels_last),
                weight, None, stride, padding, dilation, False, (0, 0), groups,
                (True, False, False),
            )  # fmt: skip
            x_gradient = half.to(x.dtype, memory_format=torch.contiguous_format).view_as(x)
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
        _info: Any, in_dims: tuple[Any, ...], gradient: Tensor, x: Tensor, *options: Any
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """Return the gradients of all samples."""
        gradient = gradient.movedim(in_dims[0], 0)
        x = x.movedim(in_dims[1], 0)
        return _Gradients.forward(gradient, x, *options), (0, 0)
