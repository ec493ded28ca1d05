"""Predictions of many inputs at once, outside of any training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedaux_pl.models.classifier import Classifier

BatchNormStatistics = Literal["running", "batch"]


# In float32 cuDNN's fastest kernels take memory of their own: with 2,048 images of 32x32 at a time
# ResNet-8 takes 7.2 GiB of an H200.
FULL_PRECISION_PARTS = 4


@contextmanager
def evaluating(model: nn.Module, statistics: BatchNormStatistics) -> Iterator[None]:
    """Puts a model into evaluation mode, with the BatchNorm statistics that are asked for."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        if statistics == "batch":
            with batch_statistics(model):
                yield
        else:
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Lets BatchNorm normalise by the batch at hand, and leaves its running statistics alone.

    This is what the authors' code does for teachers and evaluation. It is transductive: the
    prediction for a sample depends on the others of its batch, test data included.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    before = [(layer.training, layer.momentum, layer.num_batches_tracked) for layer in layers]
    for layer in layers:
        layer.training = True
        layer.momentum = 0.0  # the running statistics move by nothing
        counter = layer.num_batches_tracked
        layer.num_batches_tracked = None if counter is None else counter.clone()
    try:
        yield
    finally:
        for layer, (training, momentum, counter) in zip(layers, before, strict=True):
            layer.training, layer.momentum, layer.num_batches_tracked = training, momentum, counter


def predict_logits(
    model: nn.Module,
    inputs: Tensor,
    statistics: BatchNormStatistics = "running",
    batch_size: int | None = None,
) -> Tensor:
    """f(x) of all inputs, shape (N, C), float32.

    Args:
        model: The model, whose modes are afterwards what they were.
        inputs: All inputs.
        statistics: Those of BatchNorm.
        batch_size: Inputs at a time; by default as many as the model asks for.
    """
    return _predict(model, model, inputs, statistics, batch_size)


def predict_features(
    model: nn.Module,
    inputs: Tensor,
    statistics: BatchNormStatistics = "running",
    batch_size: int | None = None,
) -> Tensor:
    """h(x) of all inputs, shape (N, d), float32; for the arguments see ``predict_logits``."""
    features = cast("Callable[[Tensor], Tensor]", model.features)
    return _predict(model, features, inputs, statistics, batch_size)


def fewer_rows(model: nn.Module, inputs: Tensor, rows: int) -> int:
    """How many inputs to predict at a time in place of ``rows``, where these take much memory."""
    convolves = getattr(model, "inputs", "images") == "images"
    if not (inputs.is_cuda and convolves and _in_full_precision(model, inputs)):
        return rows
    return -(-rows // FULL_PRECISION_PARTS)


def _in_full_precision(model: nn.Module, inputs: Tensor) -> bool:
    weights = (p.dtype for p in model.parameters())
    return not torch.is_autocast_enabled(inputs.device.type) and torch.float32 in weights


@torch.no_grad()
def _predict(
    model: nn.Module,
    function: Callable[[Tensor], Tensor],
    inputs: Tensor,
    statistics: BatchNormStatistics,
    batch_size: int | None,
) -> Tensor:
    """A function of the model on all inputs, part by part."""
    size = batch_size or int(getattr(model, "rows_at_once", Classifier.rows_at_once))
    if not batch_size and statistics == "running":
        size = fewer_rows(model, inputs, size)
    starts = range(0, len(inputs), size)
    with evaluating(model, statistics):
        parts = [function(inputs[start : start + size]).float() for start in starts]
    return torch.cat(parts)
