"""The settings of the three kinds of training, with the paper's defaults for images."""

from dataclasses import dataclass

from fedaux_pl.modules.language import Objective
from fedaux_pl.modules.optimizers import OptimizerName


def _check(of: str, epochs: int, batch_size: int, smallest: int, lr: float) -> None:
    if epochs < 0:
        raise ValueError(f"{of}: epochs must be at least 0, but is {epochs}")
    if batch_size < smallest:
        raise ValueError(f"{of}: batch_size must be at least {smallest}, but is {batch_size}")
    if not lr > 0:
        raise ValueError(f"{of}: lr must be positive, but is {lr}")


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains.

    Args:
        epochs: E, passes over the client's data in a round.
        batch_size: Samples of a step.
        optimizer: ``adam``, ``adamw`` or ``sgd``.
        lr: The learning rate.
        momentum: Of sgd alone.
        weight_decay: At least 0.
    """

    epochs: int = 1
    batch_size: int = 32
    optimizer: OptimizerName = "adam"
    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check("local", self.epochs, self.batch_size, 1, self.lr)


@dataclass(frozen=True)
class Distillation:
    """How the server distils its students.

    Args:
        epochs: Passes over D_distill in a round.
        batch_size: Samples of a step.
        optimizer: ``adam``, ``adamw`` or ``sgd``.
        lr: The learning rate.
        momentum: Of sgd alone.
        weight_decay: At least 0.
    """

    epochs: int = 1
    batch_size: int = 128
    optimizer: OptimizerName = "adam"
    lr: float = 5e-5
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check("distillation", self.epochs, self.batch_size, 1, self.lr)


@dataclass(frozen=True)
class Pretraining:
    """How h_0 is learned from D_aux: images by SimCLR, text by language modelling.

    Args:
        epochs: Passes over D_aux; with 0, h_0 is the weights that come with the model.
        batch_size: Samples of a step; images are seen in two views.
        temperature: Of the NT-Xent loss, for images.
        optimizer: ``adam``, ``adamw`` or ``sgd``.
        lr: The learning rate.
        momentum: Of sgd alone.
        weight_decay: At least 0.
        min_scale: The smallest share of an image's area that a crop covers.
        flip: The probability of mirroring a view.
        jitter: The probability of changing the colours of a view.
        strength: How much colours are changed, s in the paper of SimCLR.
        grayscale: The probability of removing the colours of a view.
        objective: For text, ``masked`` guesses hidden tokens and ``next`` each from those before.
        mask_rate: The share of a text's tokens that is hidden.
    """

    epochs: int = 100
    batch_size: int = 512
    temperature: float = 0.5
    optimizer: OptimizerName = "adam"
    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    min_scale: float = 0.08
    flip: float = 0.5
    jitter: float = 0.8
    strength: float = 0.5
    grayscale: float = 0.2
    objective: Objective = "masked"
    mask_rate: float = 0.15

    def __post_init__(self) -> None:
        _check("pretraining", self.epochs, self.batch_size, 2, self.lr)
