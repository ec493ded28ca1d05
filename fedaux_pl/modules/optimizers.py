"""Optimizers by name, so that a module's hyper-parameters stay plain values."""

from collections.abc import Iterable
from typing import Literal

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

OptimizerName = Literal["adam", "adamw", "sgd"]


def create_optimizer(
    parameters: Iterable[nn.Parameter],
    name: OptimizerName,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Creates an optimizer for those of the parameters that are to be trained.

    Args:
        parameters: Parameters; those that require no gradient are passed over.
        name: ``adam``, ``adamw`` or ``sgd``.
        lr: The learning rate, greater than 0.
        momentum: Of SGD alone.
        weight_decay: At least 0.
    """
    if not lr > 0:
        raise ValueError(f"lr must be positive, but is {lr}")
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if momentum and name != "sgd":
        raise ValueError(f"momentum belongs to sgd, but the optimizer is {name}: leave it at 0")
    if name == "adam":
        return Adam(trained, lr=lr, weight_decay=weight_decay)
    if name == "adamw":
        return AdamW(trained, lr=lr, weight_decay=weight_decay)
    if name == "sgd":
        return SGD(trained, lr=lr, momentum=momentum, weight_decay=weight_decay)
    raise ValueError(f"optimizer must be one of adam, adamw, sgd, but is {name!r}")
