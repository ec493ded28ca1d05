import pytest
import torch

from fedaux_pl.processes import Processes


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 20])
def test_shares_and_parts_are_all_there_is_once_and_of_nearly_equal_size(size, count):
    items = list(range(count))
    crew = [Processes(rank, size) for rank in range(size)]
    for divided in (
        [one.share(items) for one in crew],
        [items[one.part(count)] for one in crew],
    ):
        assert sorted(item for own in divided for item in own) == items
        assert max(map(len, divided)) - min(map(len, divided)) <= 1
    assert [item for one in crew for item in items[one.part(count)]] == items  # in their order


def test_alone_everything_is_as_it_was_given():
    alone, tensor = Processes(), torch.ones(2)
    assert alone.first
    assert alone.sum([tensor])[0] is tensor
    assert alone.gather(tensor) == [tensor]
    assert alone.broadcast(tensor) is tensor
    assert alone.merge({3: tensor}) == {3: tensor}
