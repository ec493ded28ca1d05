"""The auxiliary data of a federation, split into D^- and D_distill."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedaux_pl.data.input_checks import check_finite
from fedaux_pl.errors import DataError


@dataclass(frozen=True)
class PublicData:
    """D_aux and its two disjoint parts.

    Args:
        inputs: D_aux.
        negatives: D^-, which scorers compare a client's data with.
        distill: D_distill, on which students are distilled.
        negative_rows: Where the samples of D^- are in D_aux, ascending.
        distill_rows: Where those of D_distill are.
    """

    inputs: Tensor
    negatives: Tensor
    distill: Tensor
    negative_rows: Tensor
    distill_rows: Tensor

    @classmethod
    def split(cls, inputs: Tensor, share: float, seed: int) -> "PublicData":
        """Splits D_aux at random.

        Args:
            inputs: D_aux.
            share: The share that becomes D^-.
            seed: The seed of the draw.

        Raises:
            DataError: If a part is empty, or inputs are not finite.

        Example:
            >>> data = PublicData.split(torch.arange(10), share=0.2, seed=0)
            >>> len(data.negatives), len(data.distill)
            (2, 8)
        """
        check_finite(inputs)
        count = round(len(inputs) * share)
        if not 0 < count < len(inputs):
            raise DataError(
                f"{len(inputs)} auxiliary samples leave D^- or D_distill empty at negatives = "
                f"{share}: use more auxiliary data, or change negatives"
            )
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
        negative_rows, distill_rows = order[:count].sort().values, order[count:].sort().values
        return cls(inputs, inputs[negative_rows], inputs[distill_rows], negative_rows, distill_rows)

    def to(self, device: torch.device | str) -> "PublicData":
        """A copy on another device."""
        return PublicData(*(tensor.to(device) for tensor in vars(self).values()))
