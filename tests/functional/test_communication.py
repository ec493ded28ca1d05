import math

import torch

from fedaux_pl.functional.communication import feature_bytes, state_bytes
from fedaux_pl.models import create_model


def test_bytes_of_tensors():
    state = {
        "a": torch.zeros(3, 5),
        "b": torch.zeros(7, dtype=torch.float64),
        "c": torch.zeros((), dtype=torch.int64),
        "d": torch.zeros(2, dtype=torch.bfloat16),
    }
    assert state_bytes(state) == 3 * 5 * 4 + 7 * 8 + 8 + 2 * 2
    assert state_bytes({}) == 0


def test_the_numbers_of_the_paper():
    """19.79 MB for a ResNet-8 with 100 classes (digits cut off), 24.58 MB for the negatives."""
    parameters = dict(create_model("resnet8", 100).named_parameters())
    assert math.floor(state_bytes(parameters) / 1e4) / 100 == 19.79
    assert round(feature_bytes(12_000, 512) / 1e6, 2) == 24.58
