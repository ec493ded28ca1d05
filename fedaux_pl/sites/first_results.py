"""What this machine has first sent to sites, which the state folder of the server keeps forever.

Other threads or another device round a result differently. A release in other features is another
release, which sites refuse or pay for again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedaux_pl.data.cache import CacheKey
from fedaux_pl.federation.context import Context, ServerFeatures
from fedaux_pl.federation.preparation import describe_model, load_or_compute
from fedaux_pl.files import state_folder
from fedaux_pl.scoring import PublicMap, ReleasedHead, Step
from fedaux_pl.sites.ledger_keys import first_classifier_key, first_map_key


def first_results_folder() -> Path:
    """Return the folder of each h_0, map and classifier that was first sent."""
    return state_folder() / "h0"


@dataclass(frozen=True)
class FirstResults:
    """The maps and classifiers that were first sent.

    ``model_options`` are the options of each architecture, defaults included.
    """

    context: Context
    model_options: Mapping[str, Mapping[str, Any]]

    def public_map(
        self, step: Step, features: ServerFeatures, name: str, fitted: PublicMap
    ) -> tuple[PublicMap, Tensor | None]:
        """Return an architecture's first public map, and h_0(x) on D^- if the release uses it.

        ``fitted`` is the map of this run, which is kept if it is the first one.
        """
        needs_negatives = step.scorer.uses_negatives

        def tensors() -> dict[str, Tensor]:
            bound = torch.tensor(fitted.bound, dtype=torch.float64)
            fitted_tensors = fitted.tensors() | {"bound": bound}
            if needs_negatives:
                fitted_tensors["negatives"] = features.negatives(name).cpu()
            return fitted_tensors

        data = self.context.data
        key = first_map_key(
            name,
            describe_model(self.model_options[name], features.h0[name], head=False),
            step,
            data.fingerprints["auxiliary"],
            data.auxiliary_rows["negatives"],
        )
        kept = self._first(key, tensors)
        negatives = kept.pop("negatives", None)
        bound = float(kept.pop("bound"))
        unit = step.scoring.norm_bound == "unit"
        return PublicMap(**kept, unit=unit, bound=bound), negatives

    def settle(self, step: Step, clients: Sequence[int], first: Sequence[ReleasedHead]) -> Step:
        """Return a step with the tensors that were first sent in it."""
        heads = [head for head in first if not {*clients}.isdisjoint(head.clients)]
        key = first_classifier_key(step, heads)
        return step.with_sent(self._first(key, step.scorer.tensors))

    def _first(self, key: CacheKey, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        return load_or_compute(self.context.processes, first_results_folder(), key, compute)
