import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """The networks here are so small that threads wait for each other more than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
