"""The settings of the three kinds of training.

Defaults are the paper's for images where it gives them: Adam, the learning rates, the batch sizes,
one epoch of clients and students. The epochs and the temperature of the pre-training are ours.
"""

import math
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, get_args

from torch import Tensor, nn

from fedaux_pl.data.augmentation import Augmentation, AugmentationOption
from fedaux_pl.data.augmentation import check_option as check_augmentation
from fedaux_pl.data.views import ViewSettings
from fedaux_pl.errors import (
    ConfigurationError,
    check_setting,
    is_count,
    is_fraction,
    is_positive,
)
from fedaux_pl.models import load_network
from fedaux_pl.modules import FeatureDistillation, LanguageModeling, SelfSupervised, SimCLR
from fedaux_pl.modules.client import BatchNormMode
from fedaux_pl.modules.language_modeling import Objective, check_language_modeling
from fedaux_pl.modules.optimizers import OptimizerName, OptimizerSettings

Schedule = Literal["constant", "cosine"]
ClassWeights = Literal["none", "balanced"]
Blend = float | Literal["vote"]
"""lambda of the server's new model, or the clients' choice of it."""

_MAX_COUNT = 2**31 - 1


@dataclass(frozen=True)
class TrainingSettings:
    """The settings that all kinds of training share.

    Args:
        epochs: Passes over the data.
        batch_size: Samples per step.
        optimizer: ``adam``, ``adamw`` or ``sgd``.
        lr: The learning rate.
        momentum: The momentum, in [0, 1), with sgd only.
        weight_decay: The weight decay, at least 0.
        schedule: The learning rate over the rounds, in pre-training over the steps: ``constant``,
            or ``cosine``, down to 0.
        warmup: The fraction of them over which the learning rate first rises linearly, in [0, 1).
        clip_norm: The largest norm of the gradients of a step; null for no bound.
    """

    option: ClassVar[str]
    """The name of the option of Federation, for error messages."""
    min_epochs: ClassVar[int] = 1
    min_batch_size: ClassVar[int] = 1
    recorded: ClassVar[str] = "epochs batch_size optimizer lr momentum weight_decay"
    """The options that are recorded at their defaults, too: the key of a kept h_0 has them."""

    epochs: int = 1
    batch_size: int = 32
    optimizer: OptimizerName = "adam"
    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    warmup: float = 0.0
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        for name, minimum in (("epochs", self.min_epochs), ("batch_size", self.min_batch_size)):
            value = getattr(self, name)
            is_allowed = is_count(value, minimum) and value <= _MAX_COUNT
            expected = f"be an integer of at least {minimum} and at most {_MAX_COUNT}"
            check_setting(f"{self.option}.{name}", value, is_allowed, expected)
        try:
            self._check_options()
        except ValueError as error:  # begins with the name of an option
            raise ValueError(f"{self.option}.{error}") from error

    def _check_options(self) -> None:
        self.optimizer_settings  # noqa: B018 - checks them
        check_setting("warmup", self.warmup, is_fraction(self.warmup), "lie in [0, 1)")
        is_known = self.schedule in get_args(Schedule)
        check_setting("schedule", self.schedule, is_known, "be constant or cosine")

    @cached_property
    def optimizer_settings(self) -> OptimizerSettings:
        """The optimizer of the trained modules."""
        momentum, decay = self.momentum, self.weight_decay
        return OptimizerSettings(self.optimizer, self.lr, momentum, decay, self.clip_norm)

    @property
    def is_scheduled(self) -> bool:
        """Whether the learning rate changes."""
        return self.schedule != "constant" or self.warmup > 0

    def lr_at(self, step: int, total: int) -> float:
        """Return the learning rate of a round (or a step) of ``total``, counted from 0.

        Examples:
            >>> cosine = LocalTraining(lr=1.0, schedule="cosine", warmup=0.25)
            >>> [round(cosine.lr_at(t, 8), 2) for t in range(8)]
            [0.5, 1.0, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07]
        """
        first = round(self.warmup * total)
        if step < first:
            return self.lr * (step + 1) / first
        if self.schedule == "constant":
            return self.lr
        progress = (step - first) / (total - first)
        return self.lr * (1 + math.cos(math.pi * progress)) / 2

    def plain(self) -> dict[str, Any]:
        """Return the values that checkpoints, cache keys and ``from_plain`` have.

        Options that ``recorded`` lacks are left out at their defaults.
        """
        values, recorded = asdict(self), self.recorded.split()
        unset = [f.name for f in fields(self) if values[f.name] == f.default]
        return {k: v for k, v in values.items() if k in recorded or k not in unset}


@dataclass(frozen=True)
class RoundTraining(TrainingSettings):
    """The settings of a training in rounds.

    Args:
        augmentation: Random changes of the images: ``flip``, ``crop`` or ``crop_flip``, which
            change each image in its own way, the class path of a torchvision.transforms.v2
            transform, or a mapping of such names to their options, applied in turn, such as
            {crop: {padding: 4}, torchvision.transforms.v2.RandomErasing: {p: 0.5}}.
    """

    augmentation: AugmentationOption = None

    def _check_options(self) -> None:
        super()._check_options()
        check_augmentation(self.augmentation)

    @cached_property
    def augment(self) -> Augmentation | None:
        """The augmentation; None for none."""
        return Augmentation.create(self.augmentation)

    def check(self, images: Tensor, rounds: int | None) -> None:
        """Raise a ConfigurationError for an augmentation or a schedule that the run cannot use."""
        if self.augment is not None:
            self.augment.check(images, f"{self.option}.augmentation")
        if self.is_scheduled and not (rounds and rounds > 0):
            raise ConfigurationError(
                f"{self.option}.schedule {self.schedule} needs the number of rounds, but "
                f"trainer.max_epochs is {rounds}: set it, or use constant without warmup"
            )


@dataclass(frozen=True)
class LocalTraining(RoundTraining):
    """How a client trains.

    Args:
        epochs: E, passes over the client's data in a round.
        label_smoothing: The probability that labels give to all classes alike, in [0, 1).
        batchnorm: ``batch`` normalizes by the statistics of each batch and updates the running
            ones. ``frozen`` normalizes by those of the server's model, which stay: h_0's, unless
            the server distills (its students update them). Weights and biases are trained.
        fine_tuning: Where test or validation data name their client, the epochs for which the
            server's model is trained on the client's data before it is evaluated on them; 0 for
            none. Every evaluated round costs that training of all clients.
        class_weights: ``balanced`` weights the loss of each sample by N / (K n_c): the client has N
            samples of K classes, n_c of the sample's. ``none`` weights all alike.
    """

    option: ClassVar[str] = "local"

    label_smoothing: float = 0.0
    batchnorm: BatchNormMode = "batch"
    fine_tuning: int = 0
    class_weights: ClassWeights = "none"

    def _check_options(self) -> None:
        super()._check_options()
        smoothing = self.label_smoothing
        check_setting("label_smoothing", smoothing, is_fraction(smoothing), "lie in [0, 1)")
        is_allowed = is_count(self.fine_tuning, 0)
        check_setting("fine_tuning", self.fine_tuning, is_allowed, "be an integer of at least 0")
        is_known = self.batchnorm in get_args(BatchNormMode)
        check_setting("batchnorm", self.batchnorm, is_known, "be batch or frozen")
        is_known = self.class_weights in get_args(ClassWeights)
        check_setting("class_weights", self.class_weights, is_known, "be none or balanced")


@dataclass(frozen=True)
class Distillation(RoundTraining):
    """How the server distills its students.

    Args:
        epochs: Passes over D_distill in a round.
        temperature: tau > 0; student and teachers are compared at softmax(logits / tau), and the
            loss is multiplied by tau^2 (Hinton et al. 2015).
        blend: lambda in [0, 1] of the server's new model, which is theta_avg + lambda (theta_dist -
            theta_avg): 1 is the distilled model, as in the paper, 0 the average. With ``vote`` the
            clients choose 0, 1/4, 1/2, 3/4 or 1 in every round by the log-likelihood of data that
            they hold out (``data.validation_fraction``, or validation data of the source) or, if
            there are none, of their training data.
    """

    option: ClassVar[str] = "distillation"

    batch_size: int = 128
    lr: float = 5e-5
    temperature: float = 1.0
    blend: Blend = 1.0

    def _check_options(self) -> None:
        super()._check_options()
        is_allowed = is_positive(self.temperature)
        check_setting("temperature", self.temperature, is_allowed, "be a positive number")
        blend = self.blend
        is_allowed = blend in ("vote", 1) or (not isinstance(blend, str) and is_fraction(blend))
        check_setting("blend", self.blend, is_allowed, "lie in [0, 1], or be vote")


@dataclass(frozen=True)
class Pretraining(TrainingSettings):
    """How h_0 is learned from D_aux: from images by SimCLR, from text by language modeling.

    Args:
        epochs: Passes over D_aux; with 0, h_0 has the initial weights of the model.
        batch_size: Samples per step, at least 2; SimCLR sees two views of each.
        temperature: The temperature of the NT-Xent loss, for images.
        views: How the views of an image differ from it.
        objective: For text, ``masked`` predicts masked tokens and ``next`` each next token.
        mask_rate: The fraction of a text's tokens that is masked.
        h0: A file with an h_0 that was learned elsewhere, which is used as it is: of ``fedaux-pl
            pretrain --output``, ``save_backbone``, a Lightning checkpoint of ``SimCLR``, or a
            state dict. With several architectures the folder that ``pretrain`` wrote, or files by
            architecture. Weights in memory: ``federation.h0 = {"resnet8": module}``.
        seed: Seeds the initial weights of h and its training; null for the seed of the run. With a
            number, runs of other seeds, methods and classes share one h_0.
        projection_width: The hidden width of SimCLR's projection head, or of the predictor of a
            teacher's features; null for that of the features.
        teacher: A file of ``fedaux-pl pretrain --output`` or ``save_backbone`` with a network for
            images, usually a larger one. h_0 then learns to predict its features in place of
            SimCLR, see ``FeatureDistillation``.
        teacher_size: Height and width to which images are resized for the teacher, such as 128 for
            a public backbone; null for none.
    """

    option: ClassVar[str] = "pretraining"
    min_epochs: ClassVar[int] = 0
    min_batch_size: ClassVar[int] = 2
    recorded: ClassVar[str] = f"{TrainingSettings.recorded} temperature views objective mask_rate"

    epochs: int = 100
    batch_size: int = 512
    temperature: float = 0.2
    views: ViewSettings = ViewSettings()  # noqa: RUF009 - frozen
    objective: Objective = "masked"
    mask_rate: float = 0.15
    h0: str | dict[str, str] | None = None
    seed: int | None = None
    projection_width: int | None = None
    teacher: str | None = None
    teacher_size: int | None = None

    def _check_options(self) -> None:
        super()._check_options()
        is_allowed = is_positive(self.temperature)
        check_setting("temperature", self.temperature, is_allowed, "be a positive number")
        check_language_modeling(self.objective, self.mask_rate)
        is_allowed = self.seed is None or is_count(self.seed, 0)
        check_setting("seed", self.seed, is_allowed, "be an integer of at least 0, or null")
        width = self.projection_width
        is_allowed = width is None or is_count(width, 1)
        expected = "be an integer of at least 1, or null"
        check_setting("projection_width", width, is_allowed, expected)
        is_allowed = self.teacher is None or (self.h0 is None and self.epochs > 0)
        expected = "be null with h0 or 0 epochs, with which nothing is learned: leave one out"
        check_setting("teacher", self.teacher, is_allowed, expected)
        size = self.teacher_size
        is_allowed = size is None or (is_count(size, 1) and self.teacher is not None)
        expected = "be an integer of at least 1 with pretraining.teacher, null without"
        check_setting("teacher_size", size, is_allowed, expected)

    def plain(self) -> dict[str, Any]:
        """Return the values, those of ``views`` among them, as the key of a kept h_0 has them."""
        values = super().plain()
        values |= values.pop("views")
        return values

    @classmethod
    def from_plain(cls, **values: Any) -> Self:
        """Create the settings of which ``plain`` has the values."""
        return cls(views=ViewSettings.pop_from(values), **values)

    def create_module(self, model: nn.Module) -> SelfSupervised:
        """Create the module that learns h_0 of a model, by the model's inputs and the teacher."""
        optimizer = self.optimizer_settings
        if getattr(model, "inputs", "images") != "images":
            if self.teacher is not None:
                raise ConfigurationError(
                    f"pretraining.teacher: got {self.teacher}; expected null, because "
                    f"{type(model).__name__} reads text: only networks for images have teachers"
                )
            return LanguageModeling(model, self.objective, self.mask_rate, optimizer)
        width = self.projection_width
        if self.teacher is not None:
            teacher = load_network(self.teacher)
            return FeatureDistillation(
                model,
                teacher,
                optimizer,
                self.views,
                predictor_width=width,
                teacher_size=self.teacher_size,
            )
        return SimCLR(
            model,
            self.temperature,
            optimizer=optimizer,
            views=self.views,
            projection_width=width,
        )
