"""Acceleration is used on CUDA alone, and the log says when a part of it is missing."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from fedaux_pl.engine import StageRunner
from fedaux_pl.federation import create_runner


class FastRunner(StageRunner):
    """In place of CudaRunner, which needs a GPU."""


def create(device, monkeypatch, installed):
    """The runner for a device if only some packages are installed."""
    accelerate = ModuleType("fedaux_pl.accelerate")
    accelerate.CudaRunner = FastRunner
    monkeypatch.setitem(sys.modules, "fedaux_pl.accelerate", accelerate)
    specs = {name: SimpleNamespace(origin="__init__.py") for name in installed}
    monkeypatch.setattr(create_runner, "find_spec", specs.get)
    strategy = SimpleNamespace(root_device=torch.device(device))
    return create_runner.create_runner(SimpleNamespace(strategy=strategy))


@pytest.mark.parametrize(
    ("device", "installed", "runner", "message"),
    [
        ("cpu", ["fedaux_pl.accelerate", "triton"], StageRunner, None),
        ("cuda", ["fedaux_pl.accelerate", "triton"], FastRunner, None),
        ("cuda", ["fedaux_pl.accelerate"], FastRunner, "triton is not installed"),
        ("cuda", ["triton"], StageRunner, "fedaux_pl.accelerate is missing"),
    ],
)
def test_the_runner_and_the_log(device, installed, runner, message, monkeypatch, caplog):
    with caplog.at_level("INFO", logger="fedaux_pl"):
        assert type(create(device, monkeypatch, installed)) is runner
    assert len(caplog.records) == (message is not None)
    assert message is None or message in caplog.text
