"""Kernels are compiled in threads and not launched; here for a GPU that is not there."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
import threading
from types import ModuleType

for name in ("fedaux_pl", "fedaux_pl.accelerate"):  # whose __init__ would import much more
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = ["/".join([sys.argv[1], *name.split(".")])]

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from fedaux_pl.accelerate import kernels
from fedaux_pl.accelerate.recording.parallel_compilation import compiling_in_threads


class H200:
    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


driver.set_active(H200())
kernel, threads = kernels.gelu_kernel, set()
compiled = kernel.device_caches[0][0]
original = kernel.compile  # set when the caches of a device are created


def compile_and_note(*args, **options):
    threads.add(threading.current_thread() is threading.main_thread())
    return original(*args, **options)


kernel.compile = compile_and_note
with compiling_in_threads():
    for dtype in (torch.float32, torch.bfloat16, torch.bfloat16):
        x = torch.zeros(64, dtype=dtype)
        worker = threading.Thread(  # as the backward pass does
            target=lambda: kernel[(1,)](x, x, 64, BLOCK=64, num_warps=1)
        )
        worker.start()
        worker.join()
    assert len(kernels.gelu_backward_kernel.device_caches[0][0]) == 0
assert len(compiled) == 2, len(compiled)
assert threads == {False}
assert "run" not in vars(kernel)
try:
    with compiling_in_threads():
        raise RuntimeError("a step that fails")
except RuntimeError:
    assert "run" not in vars(kernel)
print("compiled", *sorted(len(one.asm["ptx"]) > 0 for one in compiled.values()))
"""


def test_kernels_are_imported_at_their_first_launch():
    """They need Triton, which may be missing."""
    for path in (ROOT / "fedaux_pl" / "accelerate").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if path.parent.name != "kernels" and isinstance(node, (ast.Import, ast.ImportFrom)):
                assert not re.search("triton|accelerate.kernels", ast.unparse(node)), path


def test_launches_become_compilations(tmp_path):
    pytest.importorskip("triton")
    environment = os.environ | {
        "TRITON_CACHE_DIR": str(tmp_path),
        "TRITON_INTERPRET": "0",
        "OMP_NUM_THREADS": "1",
    }
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(ROOT)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "compiled True True\n"
