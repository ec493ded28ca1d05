"""Results of earlier runs on disk, found again by all that determines them."""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedaux_pl.data.cache import CacheKey, cache_lock, load_cached, save_cached, tensor_digest
from fedaux_pl.models import backbone_state, of_head
from fedaux_pl.processes import Processes


def load_or_compute(
    processes: Processes,
    folder: Path | None,
    key: CacheKey,
    compute: Callable[[], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """Load a result from a folder, or compute it and store it there.

    Only the first process takes the lock, reads and writes files, and it broadcasts what it has
    found. If it has found nothing, all processes compute together, and all use the first process's
    result. Without a folder the result is computed.
    """
    if folder is None:
        return processes.broadcast(compute())
    with ExitStack() as stack:
        if processes.first:
            # keep-alive, so that collective calls of the others do not time out
            keep_alive = partial(processes.broadcast, True)
            stack.enter_context(cache_lock(folder, key, on_wait=keep_alive))
        # the others get True from each keep-alive, False once the first has the lock
        while processes.broadcast(False):
            pass
        result = processes.broadcast(load_cached(folder, key) if processes.first else None)
        if result is None:
            result = processes.broadcast(compute())
            if processes.first:
                save_cached(folder, key, result)
    return result


def describe_model(options: Mapping[str, Any], model: nn.Module, head: bool = True) -> str:
    """Return all that determines a model, or its features: weights, options, layers."""
    state = model.state_dict()
    layers = {name: layer.extra_repr() for name, layer in model.named_modules()}
    if not head:
        state = backbone_state(state)
        layers = {name: text for name, text in layers.items() if not of_head(f"{name}.")}
    text = as_text({"options": options, "layers": layers})
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{tensor_digest(*state.values())} {digest}"


def as_text(settings: Mapping[str, Any]) -> str:
    """Return settings as the text of a key."""
    return json.dumps(settings, sort_keys=True, default=str)
