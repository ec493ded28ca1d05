"""Runs Triton kernels on the CPU, in Triton's interpreter; imported by all ``*_checks.py``.

A kernel is compiled or interpreted for good when it is defined. ``tests/conftest.py`` chooses the
interpreter on machines without a CUDA device; elsewhere run
``TRITON_INTERPRET=1 pytest tests/accelerate/*_checks.py``.
"""

import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels are compiled here: set TRITON_INTERPRET=1", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is available on Linux only")

import triton.language as tl
from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor
_dot = interpreter.InterpreterBuilder.create_dot


def _patch_for_numpy(tensor, scope):
    """NumPy 2.4 does not convert an array of one element to an int, as Triton 3.6 expects."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


def _dot_of_bfloat16(self, a, b, *options):
    """Triton 3.6 multiplies the bits of bfloat16 as if they were integers."""
    if a.dtype == b.dtype == tl.bfloat16:
        a, b = (self.cast_impl(one, tl.float32) for one in (a, b))
    return _dot(self, a, b, *options)


interpreter._patch_lang_tensor = _patch_for_numpy
interpreter.InterpreterBuilder.create_dot = _dot_of_bfloat16
