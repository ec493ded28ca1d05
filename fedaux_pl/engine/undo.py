"""Changes of which all happen or none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from fedaux_pl.models.states import copy_state


@contextmanager
def all_or_nothing(models: nn.Module, *kept: dict[Any, Any]) -> Iterator[None]:
    """Gives everything back as it was if the block fails.

    Args:
        models: Whose weights are put back.
        *kept: What is put back in place, since others hold these dicts too; their values are to
            be replaced, not changed.
    """
    weights = copy_state(models)
    before = [dict(one) for one in kept]
    try:
        yield
    except BaseException:
        for one, entries in zip(kept, before, strict=True):
            one.clear()
            one.update(entries)
        models.load_state_dict(weights)
        raise
