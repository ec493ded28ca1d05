"""What every data source returns, and how the rest of the package asks for it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedaux_pl.errors import DataError


@dataclass(frozen=True)
class Examples:
    """Samples in memory, with their labels where these are known.

    Args:
        inputs: The samples, first dimension N; images are uint8 of shape (N, C, H, W), texts are
            int32 token ids of shape (N, L).
        labels: int64 of shape (N,) with values in 0 ... len(classes) - 1, or None.
        classes: The name of each class; empty where there are no labels.
    """

    inputs: Tensor
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.inputs) == 0:
            raise DataError("the data set holds no samples")
        if self.labels is None:
            return
        if self.labels.shape != (len(self.inputs),) or self.labels.dtype != torch.int64:
            raise DataError(
                f"labels must be int64 of shape ({len(self.inputs)},), one for each sample, "
                f"but are {self.labels.dtype} of shape {tuple(self.labels.shape)}"
            )
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.classes):
            raise DataError(
                f"labels must lie in 0 ... {len(self.classes) - 1} for {len(self.classes)} "
                f"classes, but run from {low} to {high}"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def targets(self) -> Tensor:
        """The labels, where there must be some.

        Raises:
            DataError: If there are none.
        """
        if self.labels is None:
            raise DataError("these data have no labels: use a source that has them")
        return self.labels

    def to(self, device: torch.device | str) -> "Examples":
        """The same examples on another device."""
        labels = None if self.labels is None else self.labels.to(device)
        return Examples(self.inputs.to(device), labels, self.classes)


class Source(ABC):
    """A data set that loads itself into memory.

    A source is cheap to construct (so that a configuration can be checked without the data) and
    reads its files when one of the methods is called.
    """

    @abstractmethod
    def train(self) -> Examples:
        """The training part, labelled where the source has labels."""

    def test(self) -> Examples:
        """The held-out part for evaluation."""
        raise DataError(f"{type(self).__name__} has no test data: choose another source for it")

    def auxiliary(self) -> Tensor:
        """All inputs that may serve as public unlabeled data D_aux (default: the training part)."""
        return self.train().inputs

    def check_model(self, model: nn.Module) -> None:  # noqa: B027 - most sources have no say
        """Refuses a model that would take these inputs for something else than they are."""

    @property
    def input_format(self) -> dict[str, str | int]:
        """What it takes to make such inputs of other samples later, where their shape says less."""
        return {}
