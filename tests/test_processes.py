import pytest
import torch

from fedaux_pl import processes
from fedaux_pl.processes import Processes, choose_threads


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (2, 2), (64, 4)])
def test_the_number_of_threads_depends_on_networks_and_cores(cores, expected, monkeypatch):
    small, large = torch.nn.Linear(100, 10), torch.nn.Linear(1000, 1000)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr(processes, "_OMP_NUM_THREADS", None)
    assert choose_threads([small, small]) == 1
    assert choose_threads([small, large]) == expected
    monkeypatch.setattr(processes, "_OMP_NUM_THREADS", 3)
    assert choose_threads([small]) == 3


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
