"""The random split over clients, and the samples that clients hold out."""

import pytest
import torch

from fedaux_pl.data.client_split import hold_out, split_at_random, split_by_client
from fedaux_pl.errors import DataError
from fedaux_pl.functional import dirichlet_partition, shard_partition, unequal_partition

LABELS = torch.arange(60) % 4


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("equal", dirichlet_partition(LABELS, 3, 1.0, seed=5)),
        ("unequal", unequal_partition(LABELS, 3, 1.0, seed=5)),
        ("shards", shard_partition(LABELS, 3, seed=5)),
    ],
)
def test_each_random_split_is_that_of_its_function(split, expected):
    clients = split_at_random(LABELS, 3, split, alpha=1.0, seed=5)
    assert [positions.tolist() for positions in clients] == [rows.tolist() for rows in expected]


def test_named_clients_hold_the_samples_that_name_them():
    clients = split_by_client(torch.tensor([1, 0, 1, 1]), ["north", "south"])
    assert [positions.tolist() for positions in clients] == [[1], [0, 2, 3]]
    with pytest.raises(DataError, match="client 'east' has no training sample: remove its name"):
        split_by_client(torch.tensor([1, 0, 1, 1]), ["north", "south", "east"])


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
