"""The stored results, and the machine that they came from."""

import hashlib
import json
import platform
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.golden import runs

RESULTS = Path(__file__).parent / "results.json"
FIRST_ROUNDS = Path(__file__).parent / "first_rounds.safetensors"
ALL = {
    **{name: partial(runs.run, name) for name in runs.RUNS},
    "resumed": runs.run_resumed,
    "over sites": runs.run_over_sites,
    "without sites": runs.run_without_sites,
}
"""Each golden run, a function of an empty folder."""


def results():
    """The stored digests and accuracies by run."""
    return json.loads(RESULTS.read_text())["runs"]


def pixels():
    """The stored digests of pictures."""
    return json.loads(RESULTS.read_text())["pixels"]


def first_rounds():
    """The stored entries of the server's models after round 1, by run and name.

    Only runs from random weights are there: with pre-training, sums that are rounded in another way
    grow to differences of the size of the weights within two epochs.
    """
    by_run = {}
    for name, tensor in load_file(FIRST_ROUNDS).items():
        run, _, key = name.partition("//")
        by_run.setdefault(run, {})[key] = tensor
    return by_run


def machine():
    """What rounding depends on: bit for bit results are promised for equal machines alone."""
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text().splitlines() if cpu_info.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    flags = [line.partition(": ")[2] for line in lines if line.startswith("flags")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "flags": hashlib.sha256("".join(flags[:1]).encode()).hexdigest()[:16],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__.partition("+")[0],
    }
