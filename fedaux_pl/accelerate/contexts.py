"""Context variables that are set for the duration of a ``with`` block."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

_T = TypeVar("_T")


@contextmanager
def setting(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    """Set the variable within a ``with`` block and restore its previous value afterwards."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
