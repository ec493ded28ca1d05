"""Runs the tests in ``*_checks.py``, for which Triton has to be set to interpret kernels."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.own_process import run_checks


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is for Linux only")
@pytest.mark.parametrize("name", ["kernel_checks.py", "bert_checks.py"])
def test_kernels_in_a_process_of_their_own(name):
    run_checks(Path(__file__).with_name(name))
