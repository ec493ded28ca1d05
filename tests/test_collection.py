"""The tests of a GPU can be collected without the packages that only other tests need."""

import subprocess
import sys
from pathlib import Path

import pytest

OPTIONAL = [
    "cryptography",
    "datasets",
    "dp_accounting",
    "nvflare",
    "onnxruntime",
    "opendp",
    "sklearn",
    "submitit",
    "timm",
]
SCRIPT = f"""
import sys

sys.modules |= dict.fromkeys({OPTIONAL})  # an import of any of them raises ModuleNotFoundError
import pytest

raise SystemExit(pytest.main(["-n", "0", "--collect-only", "-q", "-m", "cuda", "tests"]))
"""


@pytest.mark.nightly
def test_tests_whose_packages_are_missing_are_skipped():
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    expected = {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}  # the latter without a GPU
    assert ended.returncode in expected, ended.stdout
    assert "error" not in ended.stdout.splitlines()[-1]
    assert "could not import 'opendp'" in ended.stdout
