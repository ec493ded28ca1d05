import pytest
import torch

from fedaux_pl.data import Examples, Source
from fedaux_pl.errors import DataError


@pytest.mark.parametrize(
    ("what", "values", "message"),
    [
        ("labels", [0, 2], r"got 0 to 2; expected 0 ... 1 for 2 classes"),
        ("labels", [-1, 0], "got -1 to 0"),
        ("labels", [0], r"labels: .*; expected int64 of shape \(2,\), one for each sample"),
        ("labels", [0.0, 1.0], "got torch.float32"),
        ("clients", [0, 1, 1], r"clients: .*; expected int64 of shape \(2,\), one for each"),
        ("clients", [0.0, 1.0], "got torch.float32"),
        ("clients", [0, 2], r"got 0 to 2; expected 0 \.\.\. 1 for 2 client names"),
    ],
)
def test_labels_and_clients_are_checked(what, values, message):
    names = {"classes": ("a", "b"), "client_names": ("a", "b")}
    with pytest.raises(DataError, match=message):
        Examples(torch.zeros(2, 1, 2, 2), **names, **{what: torch.tensor(values)})


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

        def load(self, path):  # of its own: only a PartSource has parts
            raise FileNotFoundError(path)

    assert Only().validation() is None
    assert torch.equal(Only().auxiliary(), torch.zeros(2, 3))
    with pytest.raises(DataError, match="Only has no test data"):
        Only().test()
