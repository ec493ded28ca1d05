"""Kernels are compiled for GPUs that are not here, and fit into their shared memory."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# KB that a program may use, by compute capability (CUDA C++ Programming Guide)
LIMITS = {"80": 163, "86": 99, "89": 99, "90": 227, "100": 227, "120": 99}


@pytest.mark.nightly
def test_all_variants_fit_on_all_targets(tmp_path):
    pytest.importorskip("triton")
    file = tmp_path / "targets.json"
    ended = subprocess.run(
        [sys.executable, "-m", "tools.kernel_targets", str(file)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=7200,
    )
    assert ended.returncode == 0, ended.stderr
    measured = json.loads(file.read_text())
    sources = "".join(path.read_text() for path in ROOT.glob("fedaux_pl/accelerate/kernels/*.py"))
    assert sorted(measured) == sorted(re.findall(r"^def (\w+_kernel)\(", sources, re.MULTILINE))
    for name, targets in measured.items():
        assert targets.keys() == LIMITS.keys(), name
        assert len({len(sizes) for sizes in targets.values()}) == 1, name
        for target, limit in LIMITS.items():
            assert max(targets[target]) <= 1024 * limit, f"{name} on sm_{target}"
