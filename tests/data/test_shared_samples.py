"""Auxiliary samples that are also private training samples."""

import pytest
import torch

from fedaux_pl.data import Digits, Glosses
from fedaux_pl.data.input_checks import note
from fedaux_pl.data.shared_samples import count_shared
from fedaux_pl.errors import DataError
from tests.federations import FewDigits, split


def test_auxiliary_rows_that_are_private_are_counted():
    x = torch.randint(256, (20, 1, 4, 4), dtype=torch.uint8)
    assert count_shared(x[:12], x[8:], b"k") == 4
    assert count_shared(x[:12], x[[1, 1, 1, 15]], b"k") == 3
    for source in (Digits(), Glosses(max_length=24)):  # as in the quickstarts
        assert count_shared(source.train().inputs, source.auxiliary(), b"k") == 0


class Leaking(FewDigits):
    """Some of the private samples are auxiliary data, too."""

    def auxiliary(self):
        return torch.cat([super().auxiliary(), self.train().inputs[:7]])


@pytest.mark.filterwarnings("error")
def test_shared_samples_are_noted(capsys):
    note.cache_clear()
    data = split(auxiliary=Leaking())
    data.setup()
    noted = "note: 7 of 47 auxiliary samples are also private training samples: h_0 and the scores"
    assert noted in capsys.readouterr().err
    assert data.shared_rows == 7
    without = split(auxiliary=None)
    without.setup()
    assert without.shared_rows == 0


class PartlyPrivate(FewDigits):
    """Ten auxiliary samples, of which some are private."""

    def __init__(self, shared):
        super().__init__()
        self.shared = shared

    def auxiliary(self):
        return torch.cat(
            [super().auxiliary()[self.shared : 10], self.train().inputs[: self.shared]]
        )


def test_auxiliary_data_that_are_mostly_private_are_an_error():
    split(auxiliary=PartlyPrivate(5)).setup()
    expected = "^6 of 10 auxiliary samples are also private training samples, so the auxiliary data"
    with pytest.raises(DataError, match=f"{expected}.*: give data.auxiliary a source of other"):
        split(auxiliary=PartlyPrivate(6)).setup()
