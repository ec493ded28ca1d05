"""The split of the auxiliary data D_aux into the negatives D^- and the distillation data."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedaux_pl.data.input_checks import check_finite
from fedaux_pl.data.lazy_inputs import Inputs, select
from fedaux_pl.errors import DataError

_LEAST_DISTILL = 2  # BatchNorm cannot normalize a batch of one sample


@dataclass(frozen=True)
class AuxiliaryData:
    """The public inputs D_aux with their two disjoint parts, D^- and D_distill.

    Args:
        inputs: All of D_aux.
        negative_rows: The ascending positions in D_aux of the samples of D^-.
        distill_rows: The ascending positions in D_aux of the samples of D_distill.
        negatives: D^-, the inputs that a scoring compares private data with.
        distill: D_distill, the inputs on which the server distills.
    """

    inputs: Inputs
    negative_rows: Tensor
    distill_rows: Tensor
    negatives: Inputs
    distill: Inputs

    def to(self, device: torch.device | str) -> "AuxiliaryData":
        """Copy to another device."""
        return AuxiliaryData(
            inputs=self.inputs.to(device),
            negative_rows=self.negative_rows.to(device),
            distill_rows=self.distill_rows.to(device),
            negatives=self.negatives.to(device),
            distill=self.distill.to(device),
        )


def split_auxiliary(
    inputs: Inputs, negative_fraction: float, distill_fraction: float, seed: int
) -> AuxiliaryData:
    """Split D_aux at random.

    Args:
        inputs: D_aux.
        negative_fraction: The fraction of D_aux that becomes D^-, in [0, 1).
        distill_fraction: The fraction of all other samples that becomes D_distill, in (0, 1].
        seed: The seed of the split. D^- does not depend on ``distill_fraction``, and a smaller
            D_distill is a part of a larger one.
    """
    check_finite(inputs)
    num_negatives = round(len(inputs) * negative_fraction)
    has_negatives = num_negatives > 0 or negative_fraction == 0
    has_others = num_negatives < len(inputs)
    if not (has_negatives and has_others):
        raise DataError(
            f"{len(inputs)} auxiliary samples leave D^- or D_distill empty at "
            f"negative_fraction = {negative_fraction}: use more auxiliary data, or change it"
        )
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    negative_rows = order[:num_negatives].sort().values
    others = order[num_negatives:]
    num_distill = max(_LEAST_DISTILL, round(len(others) * distill_fraction))
    distill_rows = others[:num_distill].sort().values
    return AuxiliaryData(
        inputs,
        negative_rows,
        distill_rows,
        negatives=select(inputs, negative_rows),
        distill=select(inputs, distill_rows),
    )
