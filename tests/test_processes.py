import pytest
import torch

from fedaux_pl.processes import Processes


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 20])
def test_items_and_samples_are_split_evenly_over_the_processes(size, count):
    items = list(range(count))
    everyone = [Processes(rank, size) for rank in range(size)]
    for divided in (
        [one.local(items) for one in everyone],
        [items[one.part(count)] for one in everyone],
    ):
        assert sorted(item for own in divided for item in own) == items
        assert max(map(len, divided)) - min(map(len, divided)) <= 1
    assert [item for one in everyone for item in items[one.part(count)]] == items  # in their order


def test_with_one_process_every_method_returns_its_argument():
    alone, tensor = Processes(), torch.ones(2)
    assert alone.first
    assert alone.sum([tensor])[0] is tensor
    assert alone.gather(tensor) == [tensor]
    assert alone.broadcast(tensor) is tensor
    assert alone.merge({3: tensor}) == {3: tensor}
    items = alone.in_order([2, 0], [0, 2], lambda item: [tensor + item], lambda _: [tensor])
    assert [(item, value.tolist()) for item, [value] in items] == [(2, [3, 3]), (0, [1, 1])]
