"""Tests that need a process of their own."""

import subprocess
import sys
from pathlib import Path


def run_checks(path):
    """Runs a file of tests, for which Triton has to be set to interpret kernels."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
