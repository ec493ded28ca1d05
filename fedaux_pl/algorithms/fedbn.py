"""FedBN (Li et al. 2021): FedAVG whose clients keep their own BatchNorm."""

from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedaux_pl.algorithms.base import Algorithm
from fedaux_pl.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class FedBN(Algorithm):
    """A client trains from the server's model with its own BatchNorm of its last round.

    Weights, biases and statistics of BatchNorm are kept. If the test data
    record which client a sample belongs to, each client is evaluated with its own BatchNorm. All
    other accuracies are those of the server's model, whose BatchNorm is the average of the
    clients', which send theirs and receive none.

    Args:
        pretrained: Whether models start from h_0, learned on the auxiliary data (the paper's +P).
        kept: What a client keeps: its ``batchnorm``, or ``all``, so that each trains alone.

    Examples:
        >>> FedBN().own_entries(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))[:2]
        ['1.weight', '1.bias']
    """

    pretrained: bool = False
    kept: Literal["batchnorm", "all"] = "batchnorm"

    def own_entries(self, model: nn.Module) -> list[str]:
        """Return the names of all entries of BatchNorm layers, or of all layers."""
        if self.kept == "all":
            return list(model.state_dict())
        layers = {name for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)}
        if not layers:
            raise ConfigurationError(
                f"FedBN needs a network with BatchNorm, but {type(model).__name__} has none: leave "
                "out model_options.norm, or choose FedAvg"
            )
        return [name for name in model.state_dict() if name.rpartition(".")[0] in layers]
