"""Settings that hold for a while, and only where they were made."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

_T = TypeVar("_T")


@contextmanager
def holding(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    """Within it the variable has a value, and afterwards the one before."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
