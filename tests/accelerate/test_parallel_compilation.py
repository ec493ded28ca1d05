"""Kernels are compiled in threads and not launched; here for a GPU that is not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import threading

import fedaux_pl.accelerate.bert

# registering fast versions defines no kernels: they need Triton, which may be missing
assert not any(name.startswith("fedaux_pl.accelerate.kernels") for name in sys.modules)

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from fedaux_pl.accelerate import kernels
from fedaux_pl.accelerate.recording.cuda_graphs import CudaGraphs


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


def refuse(*args, **options):
    raise RuntimeError("ptxas refuses it")


kernel.compile = refuse  # the launch of the kernel raises it again, not the preparation
with CudaGraphs.compiling():
    kernel[(1,)](torch.zeros(64), torch.zeros(64), 64, BLOCK=64, num_warps=1)
assert len(compiled) == 0

kernel.compile = compile_and_note
with CudaGraphs.compiling():
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
    with CudaGraphs.compiling():
        raise RuntimeError("a step that fails")
except RuntimeError:
    assert "run" not in vars(kernel)
print("compiled", *sorted(len(one.asm["ptx"]) > 0 for one in compiled.values()))
"""


@pytest.mark.nightly
def test_launches_become_compilations(tmp_path):
    pytest.importorskip("triton")
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TRITON_CACHE_DIR": str(tmp_path),
        "TRITON_INTERPRET": "0",
        "OMP_NUM_THREADS": "1",
    }
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "compiled True True\n"
