"""The package works without the folder ``fedaux_pl/accelerate``."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedaux_pl
from fedaux_pl.algorithms import FedAUX
from tests.federations import assert_same, run, weights

PACKAGE = Path(fedaux_pl.__file__).parent

SCRIPT = """
import importlib.util, sys, torch

# An editable install would find the missing folder in the checkout.
sys.meta_path = [f for f in sys.meta_path if "__editable__" not in getattr(f, "__module__", "")]
import fedaux_pl
from fedaux_pl.algorithms import FedAUX
from tests.federations import run, weights

assert fedaux_pl.__file__.startswith(sys.argv[1]), fedaux_pl.__file__
assert importlib.util.find_spec("fedaux_pl.accelerate") is None
torch.set_num_threads(1)
federation = run(sys.argv[1], FedAUX(), rounds=1)
torch.save({"rounds": len(federation.history), "weights": weights(federation)}, sys.argv[2])
"""


@pytest.mark.nightly
def test_a_federation_runs_without_the_folder_and_ends_with_the_same_weights(tmp_path):
    copy, result = tmp_path / "copy", tmp_path / "result.pt"
    ignored = shutil.ignore_patterns("accelerate", "__pycache__")
    shutil.copytree(PACKAGE, copy / "fedaux_pl", ignore=ignored)
    tests = Path(__file__).parent
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(copy), str(result)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(copy), str(tests.parent)])},
        check=True,
    )
    without = torch.load(result, weights_only=True)
    assert without["rounds"] == 1
    assert_same(without["weights"], weights(run(tmp_path / "whole", FedAUX(), rounds=1)))
