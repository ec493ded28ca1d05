"""Predictions of a model on many inputs, outside of training, and their batch sizes."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedaux_pl.data.batches import fit_batch_size
from fedaux_pl.data.lazy_inputs import Inputs, read_batches
from fedaux_pl.models.layers import check_separate_records

BatchNormOption = Literal["running", "own"]
"""The values of ``Federation.batchnorm_statistics``."""

BATCH_SIZE = 2048
# Encoders sort the texts of a batch by length: larger batches compute less padding.
VARIABLE_SIZE_BATCH = 131_072
# At most: captured predictions split their inputs into batches of nearly equal sizes.
CAPTURED_BATCH_SIZE = 5120
# At most, in float32, where cuDNN's fastest kernels need a workspace: 2,048 images of 32x32 through
# ResNet-8 take 7.2 GiB of an H200. Much smaller batches are slow, too: 512 images of MobileNetV2
# take as long as 2,048, because the host launches its kernels too slowly.
FLOAT32_BATCH_SIZE = 1280
STATISTICS_BATCH_SIZE = 1024  # at most: the samples of which BatchNorm's statistics are computed


def prediction_batch_size(model: nn.Module, inputs: Inputs, *, captured: bool = False) -> int:
    """Return the number of inputs that a model predicts at a time.

    ``captured`` is whether the prediction is replayed from a CUDA graph.
    """
    if not _has_fixed_size(model):
        return VARIABLE_SIZE_BATCH
    size = fit_batch_size(CAPTURED_BATCH_SIZE if captured else BATCH_SIZE, inputs)
    is_float32 = any(parameter.dtype == torch.float32 for parameter in model.parameters())
    if not inputs.is_cuda or not is_float32:
        return size
    return size if torch.is_autocast_enabled("cuda") else min(size, FLOAT32_BATCH_SIZE)


def _has_fixed_size(model: nn.Module) -> bool:
    return bool(getattr(model, "fixed_size_inputs", True))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, then restore the mode of each of its layers."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@torch.no_grad()
def predict_logits(
    model: nn.Module,
    inputs: Inputs,
    batch_size: int | None = None,
    function: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Compute f(x) of all inputs, shape (N, C), float32, or another ``function`` of the model.

    Training modes are restored afterwards. ``batch_size`` is by default ``prediction_batch_size``.
    """
    size = batch_size or prediction_batch_size(model, inputs)
    equal = inputs.is_cuda and _has_fixed_size(model)  # texts need no cuDNN
    ranges = split_range(len(inputs), size, equal=equal)
    trials = without_trials() if len(inputs) < size else nullcontext()
    batches = read_batches(inputs, [slice(start, end) for start, end, _ in ranges])
    with evaluating(model), trials:
        outputs = ((function or model)(batch).float() for batch in batches)
        return torch.cat([y[drop:] for y, (_, _, drop) in zip(outputs, ranges, strict=True)])


def statistics_batch_size(inputs: Inputs, count: int) -> int:
    """Return the batch size with which ``count`` of the inputs make nearly equal batches."""
    batches = math.ceil(count / fit_batch_size(STATISTICS_BATCH_SIZE, inputs))
    return math.ceil(count / batches)


@torch.no_grad()
def estimate_statistics(model: nn.Module, batches: Iterable[Sequence[Tensor]]) -> None:
    """Replace the running statistics of BatchNorm by their means over batches (inputs, ...).

    As ``torch.optim.swa_utils.update_bn``, except that all other layers, such as dropout, are in
    evaluation mode.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    before = [(layer.momentum, layer.num_batches_tracked) for layer in layers]
    with evaluating(model), without_trials():
        try:
            for layer, (_, counter) in zip(layers, before, strict=True):
                layer.training = True
                # these batches are not counted
                layer.num_batches_tracked = None if counter is None else counter.clone()
            for number, batch in enumerate(batches, start=1):
                for layer in layers:
                    # a cumulative mean; with momentum None a GPU would wait for the counter
                    layer.momentum = 1 / number
                model(batch[0])
        finally:
            for layer, (momentum, counter) in zip(layers, before, strict=True):
                layer.momentum = momentum
                layer.num_batches_tracked = counter


def predict_features(model: nn.Module, inputs: Inputs, batch_size: int | None = None) -> Tensor:
    """Compute h(x) of all inputs, shape (N, d), float32; arguments as of ``predict_logits``."""
    features = cast("Callable[[Tensor], Tensor]", model.features)
    return predict_logits(model, inputs, batch_size, features)


def predict_private_logits(
    model: nn.Module, inputs: Inputs, function: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Compute f(x), or a ``function`` of x, that depends on no other record, not even in rounding.

    Encoders trim a batch to its longest text, which rounds the features of all its texts in another
    way. A map that magnifies small differences makes of that more than the sensitivity allows, so
    texts are predicted one by one.
    """
    check_separate_records(model)
    batch_size = None if _has_fixed_size(model) else 1
    return predict_logits(model, inputs, batch_size=batch_size, function=function)


def predict_private_features(model: nn.Module, inputs: Inputs) -> Tensor:
    """Compute h(x) as ``predict_private_logits`` does f(x), shape (N, d), float32."""
    features = cast("Callable[[Tensor], Tensor]", model.features)
    return predict_private_logits(model, inputs, features)


@contextmanager
def without_trials() -> Iterator[None]:
    """Let cuDNN choose kernels by its heuristics: trying them costs more for a rare batch size."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def split_range(count: int, size: int, *, equal: bool) -> list[tuple[int, int, int]]:
    """Return where each batch of ``size`` begins, ends, and how much of it was in the one before.

    With ``equal`` the last batch begins earlier where it would be smaller: cuDNN tries its kernels
    for every new size, which takes longer than to predict inputs twice.

    Examples:
        >>> split_range(5, 2, equal=False)
        [(0, 2, 0), (2, 4, 0), (4, 5, 0)]
        >>> split_range(5, 2, equal=True)
        [(0, 2, 0), (2, 4, 0), (3, 5, 1)]
    """
    ranges = [(start, min(start + size, count), 0) for start in range(0, count, size)]
    if equal and count > size and count % size:
        ranges[-1] = count - size, count, size - count % size
    return ranges
