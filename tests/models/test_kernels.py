"""Runs the tests in ``kernel_checks.py``, for which Triton has to be set to interpret kernels."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is for Linux only")
def test_kernels_in_a_process_of_their_own():
    checks = Path(__file__).with_name("kernel_checks.py")
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", checks]
    done = subprocess.run(command, capture_output=True, text=True, cwd=checks.parents[2])
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
