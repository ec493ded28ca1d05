"""Several processes of one run, and the lock of the cache."""

import queue
import threading

import torch

from fedaux_pl.data.cache import cache_lock
from fedaux_pl.federation.cache import load_or_compute


class Pair:
    """Two processes as threads: the first's broadcasts reach the second."""

    def __init__(self, rank, channel, heard):
        self.first, self.channel, self.heard = rank == 0, channel, heard

    def broadcast(self, value):
        if not self.first:
            value = self.channel.get(timeout=60)
            self.heard.set()
            return value
        self.channel.put(value)
        return value


def test_only_the_first_process_takes_the_lock(tmp_path):
    """While it waits for another run, it tells so to the others, whose calls would time out."""
    key, channel, heard, results = {"kind": "h0"}, queue.Queue(), threading.Event(), {}

    def work(rank):
        processes = Pair(rank, channel, heard)
        results[rank] = load_or_compute(processes, tmp_path, key, lambda: {"x": torch.tensor(rank)})

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    with cache_lock(tmp_path, key):
        for thread in threads:
            thread.start()
        assert heard.wait(60)  # the second has heard that the first waits
        assert not results
    for thread in threads:
        thread.join(60)
    assert results == {0: {"x": torch.tensor(0)}, 1: {"x": torch.tensor(0)}}
