"""Triton's kernels are compiled in threads, before the first step needs them.

A network has dozens of kernels that take a second each on one core. Within ``compiling_in_threads``
a step launches none of them: each launch starts a compilation in a thread and returns, while cuDNN
tries its own kernels in the thread of the step. So what the step computes means nothing.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

MAX_THREADS = 16


@contextmanager
def compiling_in_threads() -> Iterator[None]:
    """Within this context, kernels are compiled in threads and not launched.

    At its end all of them are compiled. Without Triton it does nothing.
    """
    if find_spec("triton") is None:
        yield
        return
    from triton import AsyncCompileMode, JITFunction
    from triton.runtime._async_compile import active_mode

    from fedaux_pl.accelerate import kernels

    functions = [one for one in vars(kernels).values() if isinstance(one, JITFunction)]
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as threads:
        mode = AsyncCompileMode(threads)
        for function in functions:
            # on the object: the backward pass launches kernels in a thread of autograd's, which
            # does not see the context variable
            function.run = partial(_compile, function, mode, active_mode)
        try:
            yield
        finally:
            for function in functions:
                del function.run
        for kernel in mode.future_kernels.values():
            kernel.result()


def _compile(function: Any, mode: Any, active_mode: Any, *args: Any, **options: Any) -> None:
    """Start a compilation in place of a launch, with the arguments of ``JITFunction.run``."""
    token = active_mode.set(mode)
    try:
        type(function).run(function, *args, **(options | {"warmup": True}))
    finally:
        active_mode.reset(token)
