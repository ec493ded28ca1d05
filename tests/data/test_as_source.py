"""Values that a data module refuses as data."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from fedaux_pl.data import Digits, FederatedDataModule

PIXELS = np.zeros((6, 5, 4, 3), dtype=np.uint8)
FIRST = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
LABELS = [0, 1, 2, 0, 1, 2]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(PIXELS)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("data/train.npz", "'data/train.npz'; .*: wrap files in NpzImages"),
        (Digits, r"the class Digits; .*: pass an object, Digits\(\.\.\.\)"),
        (5, "int; .*: wrap files"),
        (int, "type; .*: wrap files"),
        ((PIXELS, PIXELS, PIXELS), "tuple; .*: pass a data set with a length"),
        ({"test": FIRST}, "a mapping of test; .*: name a part `train`"),
        ({"train": FIRST, "client": LABELS}, "a mapping of .*; .*: 'client' is none of its keys"),
        (DataLoader(TensorDataset(FIRST)), "DataLoader; .*: pass its `dataset`"),
        (Stream(), "Stream; .*: pass a data set with a length"),
    ],
)
def test_what_is_no_data_is_refused(value, message):
    with pytest.raises(TypeError, match=rf"private: got {message}"):
        FederatedDataModule(value)
    with pytest.raises(TypeError, match="auxiliary: got"):
        FederatedDataModule(Digits(), auxiliary=value)
