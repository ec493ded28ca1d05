"""The model of the last round, which a site may keep for its own use."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class FinalModel:
    """The final model of a site.

    Attributes:
        architecture: Its architecture.
        model: The model.
        reasons: What makes it differ from the server's model, such as fine-tuning.
        about: The run, as the entry ``federation`` of a checkpoint describes it.
    """

    architecture: str
    model: nn.Module
    reasons: list[str]
    about: Mapping[str, Any]


@dataclass(frozen=True)
class Output:
    """What a site does with the final model.

    Args:
        write: Writes the model.
        fine_tuning: The number of epochs for which the model is first trained on the site's data.
    """

    write: Callable[[FinalModel], None]
    fine_tuning: int = 0
