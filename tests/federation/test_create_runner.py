"""Acceleration is used on CUDA alone, and the log says when a part of it is missing."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from fedaux_pl.algorithms import FedAvg
from fedaux_pl.engine import StageRunner
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation, create_runner


class FastRunner(StageRunner):
    """In place of CudaRunner, which needs a GPU."""


def create(device, monkeypatch, installed, acceleration="auto"):
    """The runner for a device if only some packages are installed."""
    accelerate = ModuleType("fedaux_pl.accelerate")
    accelerate.CudaRunner = FastRunner
    monkeypatch.setitem(sys.modules, "fedaux_pl.accelerate", accelerate)
    specs = {name: SimpleNamespace(origin="__init__.py") for name in installed}
    monkeypatch.setattr(create_runner, "find_spec", specs.get)
    strategy = SimpleNamespace(root_device=torch.device(device))
    return create_runner.create_runner(SimpleNamespace(strategy=strategy), acceleration)


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


@pytest.mark.parametrize(
    ("option", "variable", "runner"),
    [
        ("auto", None, FastRunner),
        ("auto", "auto", FastRunner),
        ("off", None, StageRunner),
        ("off", "auto", StageRunner),
        ("auto", "off", StageRunner),
    ],
)
def test_the_option_or_the_variable_turns_acceleration_off(option, variable, runner, monkeypatch):
    monkeypatch.delenv("FEDAUX_PL_ACCELERATION", raising=False)
    if variable is not None:
        monkeypatch.setenv("FEDAUX_PL_ACCELERATION", variable)
    installed = ["fedaux_pl.accelerate", "triton"]
    assert type(create("cuda", monkeypatch, installed, option)) is runner


def test_yaml_reads_off_as_false():
    assert Federation(FedAvg(), {"resnet8": 2}, acceleration=False).acceleration == "off"
    with pytest.raises(ValueError, match="acceleration: got 'on'; expected to be auto or off"):
        Federation(FedAvg(), {"resnet8": 2}, acceleration="on")


def test_another_value_of_the_variable_is_refused(monkeypatch):
    monkeypatch.setenv("FEDAUX_PL_ACCELERATION", "0")
    with pytest.raises(ConfigurationError, match=r"got '0'; expected auto or off"):
        create("cuda", monkeypatch, ["fedaux_pl.accelerate", "triton"])
