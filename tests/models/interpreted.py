"""Lets Triton's kernels run on the CPU, for tests; to be imported before any kernel is.

Whether a kernel is compiled or interpreted is settled when it is defined, so that the tests of
kernels live in a process of their own (see ``test_kernels.py``).
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import triton.language as tl
from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor
_dot = interpreter.InterpreterBuilder.create_dot


def _patch_for_numpy(tensor, scope):
    """NumPy 2.4 no longer turns an array of one element into an int, as Triton 3.6 asks it to."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


interpreter._patch_lang_tensor = _patch_for_numpy


def _dot_of_bfloat16(self, a, b, *options):
    """Triton 3.6 multiplies the bits of bfloat16 as if they were integers."""
    if a.dtype == b.dtype == tl.bfloat16:
        a, b = (self.cast_impl(one, tl.float32) for one in (a, b))
    return _dot(self, a, b, *options)


interpreter.InterpreterBuilder.create_dot = _dot_of_bfloat16
