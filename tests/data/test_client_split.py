"""Given clients, and samples that clients hold out."""

import numpy as np
import pytest
import torch

from fedaux_pl.data.client_split import hold_out, name_clients
from fedaux_pl.errors import DataError


def test_names_are_sorted_and_integers_by_value():
    clients, names = name_clients(np.array(["b", "a ", "b"]), 3, "site")
    assert (clients.tolist(), names) == ([1, 0, 1], ("a", "b"))
    clients, names = name_clients(np.array([10, 2, 10], dtype=np.uint8), 3, "site")
    assert (clients.tolist(), names) == ([1, 0, 1], ("2", "10"))
    # equal as integers: the order must not depend on that of a set
    assert name_clients(["1", "01", "001"], 3, "site")[1] == ("001", "01", "1")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "b"], r"site must have one client for each of the 3 samples, .* shape \(2,\)"),
        ([[1], [2], [3]], r"the shape \(3, 1\)"),
        ([0.5, 1.0, 2.0], "must hold client names or integers, but is float64"),
        ([True, False, True], "must hold client names or integers, but is bool"),
        ([None, "a", "b"], "must hold client names or integers, but is object"),
        (["a", " ", "b"], "site is empty for sample 1"),
    ],
)
def test_clients_that_cannot_be_named(values, message):
    with pytest.raises(DataError, match=message):
        name_clients(values, 3, "site")


def test_a_share_of_every_client_is_held_out():
    parts = [torch.arange(20), torch.arange(20, 26), torch.tensor([26])]
    kept, held = hold_out(parts, 0.25, seed=3)
    assert [len(part) for part in kept] == [15, 4, 1]
    assert sorted(torch.cat([*kept, held]).tolist()) == list(range(27))
    assert held.tolist() == sorted(held.tolist())
    assert held.tolist() != [0, 1, 2, 3, 4, 20, 21]
    assert torch.equal(hold_out(parts, 0.25, seed=3)[1], held)
    assert not torch.equal(hold_out(parts, 0.25, seed=4)[1], held)
    # a client's held-out samples do not depend on the other clients
    assert torch.equal(hold_out(parts[:1], 0.25, seed=3)[0][0], kept[0])


def test_a_client_keeps_one_sample_and_one_is_held_out_in_all():
    kept, held = hold_out([torch.arange(3), torch.tensor([3])], 0.99, seed=0)
    assert ([len(part) for part in kept], len(held)) == ([1, 1], 2)
    kept, held = hold_out([torch.arange(2), torch.arange(2, 6)], 0.01, seed=0)
    assert ([len(part) for part in kept], len(held)) == ([2, 3], 1)
    with pytest.raises(DataError, match="none of the 2 clients has more than one sample"):
        hold_out([torch.tensor([0]), torch.tensor([1])], 0.5, seed=0)
