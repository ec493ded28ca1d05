"""The settings of the three kinds of training, and checks of a federation's settings.

The defaults are the paper's for images.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedaux_pl.algorithms import Algorithm
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional import sample_clients
from fedaux_pl.models import check_model, options_of
from fedaux_pl.modules.language_modelling import Objective
from fedaux_pl.modules.optimizers import OptimizerName


@dataclass(frozen=True)
class TrainingSettings:
    """The settings that all kinds of training share.

    Args:
        epochs: Passes over the data.
        batch_size: Samples per step.
        optimizer: ``adam``, ``adamw`` or ``sgd``.
        lr: The learning rate.
        momentum: The momentum, with sgd only.
        weight_decay: The weight decay, at least 0.
    """

    option: ClassVar[str]
    """The name of the option of Federation, for error messages."""
    min_batch_size: ClassVar[int] = 1

    epochs: int = 1
    batch_size: int = 32
    optimizer: OptimizerName = "adam"
    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise ValueError(f"{self.option}: epochs must be at least 0, but is {self.epochs}")
        if self.batch_size < self.min_batch_size:
            raise ValueError(
                f"{self.option}: batch_size must be at least {self.min_batch_size}, but is "
                f"{self.batch_size}"
            )
        if not self.lr > 0:
            raise ValueError(f"{self.option}: lr must be positive, but is {self.lr}")

    @property
    def optimizer_options(self) -> dict[str, Any]:
        """The arguments of a module that choose its optimizer."""
        names = ("optimizer", "lr", "momentum", "weight_decay")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class LocalTraining(TrainingSettings):
    """How a client trains.

    Args:
        epochs: E, passes over the client's data in a round.
    """

    option: ClassVar[str] = "local"


@dataclass(frozen=True)
class Distillation(TrainingSettings):
    """How the server distills its students.

    Args:
        epochs: Passes over D_distill in a round.
    """

    option: ClassVar[str] = "distillation"

    batch_size: int = 128
    lr: float = 5e-5


@dataclass(frozen=True)
class Pretraining(TrainingSettings):
    """How h_0 is learned from D_aux: from images by SimCLR, from text by language modeling.

    Args:
        epochs: Passes over D_aux; with 0, h_0 has the initial weights of the model.
        batch_size: Samples per step, at least 2; SimCLR sees two views of each.
        temperature: The temperature of the NT-Xent loss, for images.
        min_scale: The smallest fraction of an image's area that a crop covers.
        flip: The probability of mirroring a view.
        jitter: The probability of changing the colors of a view.
        strength: How much the colors change, s in the paper of SimCLR.
        grayscale: The probability of removing the colors of a view.
        objective: For text, ``masked`` predicts masked tokens and ``next`` each next token.
        mask_rate: The fraction of a text's tokens that is masked.
    """

    option: ClassVar[str] = "pretraining"
    min_batch_size: ClassVar[int] = 2

    epochs: int = 100
    batch_size: int = 512
    temperature: float = 0.5
    min_scale: float = 0.08
    flip: float = 0.5
    jitter: float = 0.8
    strength: float = 0.5
    grayscale: float = 0.2
    objective: Objective = "masked"
    mask_rate: float = 0.15


def check_settings(
    clients: Mapping[str, int], participation: float, model_options: Mapping[str, Any]
) -> None:
    """Raises a ValueError or TypeError for wrong settings of a federation."""
    if not clients or any(count < 1 for count in clients.values()):
        raise ValueError(
            f"clients must name architectures with at least 1 client each, but is {clients}"
        )
    sample_clients(1, participation, 0)  # checks the participation
    for name in clients:
        check_model(name, **options_of(name, clients, model_options))


def check_data(data: FederatedDataModule, algorithm: Algorithm, clients: Mapping[str, int]) -> None:
    """Raises a ConfigurationError if the data do not fit the method or the clients."""
    count = sum(clients.values())
    if data.num_clients != count:
        raise ConfigurationError(
            f"the data are split over {data.num_clients} clients, but the federation has "
            f"{count} {clients}: set num_clients={count} in the FederatedDataModule"
        )
    if algorithm.needs_auxiliary and data.auxiliary is None:
        raise ConfigurationError(
            f"{type(algorithm).__name__} needs auxiliary data: set data.auxiliary, or choose "
            "FedAvg or FedProx with pretrained: false"
        )
