"""Given clients."""

import numpy as np
import pytest

from fedaux_pl.data.labels import name_clients
from fedaux_pl.errors import DataError


@pytest.mark.parametrize(
    ("values", "clients", "names"),
    [
        (np.array(["b", "a ", "b"]), [1, 0, 1], ("a", "b")),
        (np.array([10, 2, 10], dtype=np.uint8), [1, 0, 1], ("2", "10")),
        # equal as integers: the order must not depend on that of a set
        (["1", "01", "001"], [2, 1, 0], ("001", "01", "1")),
    ],
)
def test_names_are_sorted_and_integers_by_value(values, clients, names):
    found = name_clients(values, 3, "site")
    assert (found["clients"].tolist(), found["client_names"]) == (clients, names)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "b"], "site: got 2; expected a client for each of 3 samples"),
        ([[1], [2], [3]], r"of shape \(3, 1\)"),
        ([0.5, 1.0, 2.0], "got float64 .*; expected integers or names"),
        ([True, False, True], "got bool"),
        ([None, "a", "b"], "got object"),
        (["a", " ", "b"], "site is empty for sample 1"),
    ],
)
def test_clients_that_cannot_be_named(values, message):
    with pytest.raises(DataError, match=message):
        name_clients(values, 3, "site")
