"""Runs Triton kernels on the CPU, in Triton's interpreter; imported by all ``*_checks.py``.

A kernel is compiled or interpreted for good when it is defined. ``tests/conftest.py`` chooses the
interpreter on machines without a CUDA device; elsewhere run
``TRITON_INTERPRET=1 pytest tests/accelerate/*_checks.py``.
"""

import inspect
import math
import os
from functools import cache

import numpy as np
import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels are compiled here: set TRITON_INTERPRET=1", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is available on Linux only")

import triton.language as tl
from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor
_np_dtype = cache(interpreter._get_np_dtype)
_dot = interpreter.InterpreterBuilder.create_dot
_binary_op = interpreter.InterpreterBuilder.binary_op
_init_block = tl.block_type.__init__
_blocks = {}  # attributes by the name of the element type and the shape


def _patch_for_numpy(tensor, scope):
    """NumPy 2.4 does not convert an array of one element to an int, as Triton 3.6 expects."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


@cache
def _names_of_builtins(module):
    return [name for name, member in inspect.getmembers(module) if tl.core.is_builtin(member)]


def _patch_builtin(module, builder, scope):
    """Triton looks for the builtins of its modules again in each call of a function: 3 ms."""
    for name in _names_of_builtins(module):
        member = getattr(module, name)
        if tl.core.is_builtin(member):  # not yet patched
            interpreter._patch_attr(module, name, member, builder, scope)


def _get_np_dtype(dtype):
    """Triton makes a table of all dtypes in each operation."""
    return np.dtype(np.uint64) if dtype.scalar.is_ptr() else _np_dtype(dtype.scalar)


def _compare_to_bools(self, lhs, rhs, operation):
    """Make masks ``tl.int1``, as the compiler does.

    Triton takes the result of a comparison for its operands' type. So it would spread a condition
    of a whole program over a block as integers, which are no mask: Triton 3.9 refuses them.
    """
    result = _binary_op(self, lhs, rhs, operation)
    if result.data.dtype == np.bool_:
        result.dtype = tl.int1
    return result


def _dot_of_bfloat16(self, a, b, *options):
    """Triton 3.6 multiplies the bits of bfloat16 as if they were integers."""
    if a.dtype == b.dtype == tl.bfloat16:
        a, b = (self.cast_impl(one, tl.float32) for one in (a, b))
    return _dot(self, a, b, *options)


def _create_block(self, element_ty, shape):
    """Describes each shape once: Triton does it for every result, longer than it computes."""
    sizes = tuple(getattr(size, "value", size) for size in shape)
    key = str(element_ty), sizes
    if key not in _blocks:
        _init_block(self, element_ty, list(sizes))
        _blocks[key] = vars(self).copy()
    vars(self).update(_blocks[key], element_ty=element_ty)


@cache
def _constants(sizes):
    return tl.core.tuple([tl.constexpr(size) for size in sizes]), tl.constexpr(math.prod(sizes))


def _create_tensor(self, handle, kind):
    """The same for tensors, whose shape is a tuple of constants."""
    self.handle, self.type, self.dtype = handle, kind, kind.scalar
    self.shape, self.numel = _constants(tuple(kind.shape) if kind.is_block() else ())


interpreter._patch_lang_tensor = _patch_for_numpy
interpreter._patch_builtin = _patch_builtin
interpreter._get_np_dtype = _get_np_dtype
interpreter.InterpreterBuilder.binary_op = _compare_to_bools
interpreter.InterpreterBuilder.create_dot = _dot_of_bfloat16
# as on GPUs, where these two return the number if the other operand is NaN
for _name, _operation in (("create_maxnumf", np.fmax), ("create_minnumf", np.fmin)):
    setattr(
        interpreter.InterpreterBuilder,
        _name,
        lambda self, lhs, rhs, operation=_operation: self.binary_op(lhs, rhs, operation),
    )
# by default every integer operation is computed twice, for a check that only debug=True makes
interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
tl.block_type.__init__ = _create_block
tl.tensor.__init__ = _create_tensor
