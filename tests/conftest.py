import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy and SciPy are imported

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined, see accelerate/interpreted

torch.set_num_threads(1)  # also for fixtures of modules, which are made before those of tests

settings.register_profile("same_examples", derandomize=True)  # a green commit stays green
settings.load_profile("same_examples")


# Tests with several processes. They come first: no worker is left alone with one at the end, and
# those of one worker share one forkserver, which takes seconds to import the packages.
FIRST = (
    "federation/test_parallel.py",
    "test_kills.py",
    "modules/test_distributed.py",
    "sweeps/test_miniature.py",
)


def pytest_collection_modifyitems(config, items):
    """Put ``FIRST`` first; deselect ``cuda`` without a device, and long tests without ``-m``."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(FIRST))
    left_out = set() if config.getoption("-m") else {"nightly", "sites"}
    if not torch.cuda.is_available():
        left_out.add("cuda")
    deselected = [i for i in items if left_out & {mark.name for mark in i.iter_markers()}]
    config.hook.pytest_deselected(items=deselected)
    items[:] = [item for item in items if item not in set(deselected)]


@pytest.fixture(autouse=True)
def _one_thread():
    """The networks here are so small that threads wait for each other more than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def _own_folders(tmp_path_factory):
    """Keys, ledgers and caches of tests never mix with those of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("user_cache")))
        yield


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """One run for all tests that only look at a finished run."""
    from tests.command_line import create, without_figures

    torch.set_num_threads(1)
    with without_figures():
        return create(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def without_figures():
    """Runs of the command line draw no figures, which take longer than small rounds."""
    from tests.command_line import without_figures

    with without_figures():
        yield
