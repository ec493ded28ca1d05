import pytest
import torch

from fedaux_pl.data import Examples, Source
from fedaux_pl.errors import DataError


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 2]), r"0 ... 1 for 2 classes, but run from 0 to 2"),
        (torch.tensor([-1, 0]), "run from -1 to 0"),
        (torch.tensor([0]), r"shape \(2,\), one for each sample"),
        (torch.tensor([0.0, 1.0]), "but are torch.float32"),
    ],
)
def test_labels_are_checked(labels, message):
    with pytest.raises(DataError, match=message):
        Examples(torch.zeros(2, 1, 2, 2, dtype=torch.uint8), labels, ("a", "b"))


def test_empty_data_raises():
    with pytest.raises(DataError, match="no samples"):
        Examples(torch.zeros(0, 1, 2, 2))


def test_targets_raise_without_labels():
    x = torch.zeros(2, 1, 2, 2)
    assert Examples(x, torch.tensor([1, 0]), ("a", "b")).targets.tolist() == [1, 0]
    with pytest.raises(DataError, match="no labels"):
        _ = Examples(x).targets


def test_source_without_test_data_raises():
    class Only(Source):
        def train(self):
            return Examples(torch.zeros(2, 3))

    assert torch.equal(Only().auxiliary(), torch.zeros(2, 3))
    with pytest.raises(DataError, match="Only has no test data"):
        Only().test()
