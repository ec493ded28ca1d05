"""What this server has first sent to sites: each later run sends the same again.

With other threads or on another device the same computation rounds differently. A release in
features that differ even by rounding is another release, which a site refuses or pays for again.
Therefore the state folder of the server keeps these results forever.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fedaux_pl.data import FederatedDataModule
from fedaux_pl.data.cache import CacheKey
from fedaux_pl.files import state_folder
from fedaux_pl.scoring import PublicMap, ReleasedHead, Step
from fedaux_pl.sites.ledger_keys import first_classifier_key, first_map_key

Tensors = dict[str, Tensor]


def first_results_folder() -> Path:
    """Return the folder of each h_0, feature map and classifier that was first sent."""
    return state_folder() / "h0"


@dataclass(frozen=True)
class FirstResults:
    """The feature maps and classifiers that were first sent.

    Attributes:
        data: The data of the server.
        describe_h0: Returns the text that determines h_0 of an architecture, for keys.
        load_or_compute: Loads the tensors of a key from `first_results_folder`, or computes them
            and stores them there.
    """

    data: FederatedDataModule
    describe_h0: Callable[[str, nn.Module], str]
    load_or_compute: Callable[[CacheKey, Callable[[], Tensors]], Tensors]

    def public_map(
        self,
        step: Step,
        architecture: str,
        h0: nn.Module,
        fitted: PublicMap,
        compute_negatives: Callable[[], Tensor],
    ) -> tuple[PublicMap, Tensor | None]:
        """Return the feature map that was first sent, and h_0(x) on D^- if the release uses it.

        Args:
            step: The first step of releases.
            architecture: The architecture.
            h0: Its h_0.
            fitted: The map of this run, which is stored if it is the first one.
            compute_negatives: Computes h_0(x) on D^- for that case.
        """

        def compute() -> Tensors:
            bound = torch.tensor(fitted.bound, dtype=torch.float64)
            tensors = {**fitted.tensors(), "bound": bound}
            if step.scorer.uses_negatives:
                tensors["negatives"] = compute_negatives().cpu()
            return tensors

        key = first_map_key(
            architecture,
            self.describe_h0(architecture, h0),
            step,
            self.data.fingerprints["auxiliary"],
            self.data.auxiliary_rows["negatives"],
        )
        stored = self.load_or_compute(key, compute)
        negatives = stored.pop("negatives", None)
        bound = float(stored.pop("bound"))
        has_unit_rows = step.scoring.norm_bound == "unit"
        return PublicMap(**stored, unit=has_unit_rows, bound=bound), negatives

    def with_first_classifier(
        self, step: Step, clients: Sequence[int], first: Sequence[ReleasedHead]
    ) -> Step:
        """Return a later step with the classifier that was first sent to these clients.

        ``first`` are the releases of the first step.
        """
        heads = [head for head in first if not {*clients}.isdisjoint(head.clients)]
        key = first_classifier_key(step, heads)
        classifier: Mapping[str, Tensor] = self.load_or_compute(
            key, lambda: dict(step.scorer.tensors())
        )
        return step.with_sent(classifier)
