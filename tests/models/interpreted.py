"""Lets Triton's kernels run on the CPU, for tests; to be imported before any kernel is.

Whether a kernel is compiled or interpreted is settled when it is defined, so that the tests of
kernels live in a process of their own (see ``test_kernels.py``).
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_for_numpy(tensor, scope):
    """NumPy 2.4 no longer turns an array of one element into an int, as Triton 3.6 asks it to."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


interpreter._patch_lang_tensor = _patch_for_numpy
