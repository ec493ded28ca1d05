"""The sizes that the costs of a method depend on, and the traffic of a client."""

from dataclasses import dataclass

import torch
from torch import nn

from fedaux_pl.federation import Federation
from fedaux_pl.functional.communication import feature_bytes, state_bytes
from fedaux_pl.models import create_model, of_head


@dataclass(frozen=True)
class Sizes:
    """What the numbers of the tables depend on.

    Attributes:
        federation: A federation of FedAUX with one architecture; it is not run.
        rounds: T.
        samples: The private training samples of all clients.
        auxiliary: |D_aux|.
        negatives: |D^-|.
        classes: The number of classes.
        image_size: The height and width of the images.
    """

    federation: Federation
    rounds: int
    samples: int
    auxiliary: int
    negatives: int
    classes: int
    image_size: int

    @property
    def architecture(self) -> str:
        """The architecture of all clients."""
        return next(iter(self.federation.clients))

    @property
    def clients(self) -> int:
        """n."""
        return len(self.federation.architectures)

    @property
    def selected(self) -> int:
        """The number of clients in a round, C n."""
        return len(self.federation.select_clients(1))

    def model(self, classes: int | None = None) -> nn.Module:
        """f with random weights; its size and operations do not depend on them."""
        options = self.federation.model_options
        return create_model(self.architecture, classes or self.classes, **options)


@dataclass(frozen=True)
class Traffic:
    """The bytes that one client sends or receives.

    Attributes:
        model: f, in every round and in both directions.
        h0: h_0, received once.
        public_map: The statistics of the feature map, received once; 0 for the paper's.
        negatives: The features of D^-, received once; 0 for a scorer without negatives.
        head: w_i, sent once.
        dimension: The length of w_i.
    """

    model: int
    h0: int
    public_map: int
    negatives: int
    head: int
    dimension: int

    @classmethod
    def of(cls, sizes: Sizes) -> "Traffic":
        """Counts the bytes as runs do, by the tensors that are sent."""
        scoring = sizes.federation.algorithm.scoring
        assert scoring is not None  # noqa: S101 - checked by method_costs
        model = sizes.model()
        state = model.state_dict()
        features = torch.randn(2 * int(model.feature_dim), int(model.feature_dim))  # type: ignore[arg-type]
        public_map = scoring.fit_map(features, features)
        head = torch.zeros(public_map.rows(features).shape[1], dtype=torch.float64)
        negatives = sizes.negatives if scoring.scorer.uses_negatives else 0
        return cls(
            model=state_bytes(state),
            h0=state_bytes({key: value for key, value in state.items() if not of_head(key)}),
            public_map=state_bytes(public_map.tensors()),
            negatives=feature_bytes(negatives, len(head)),
            head=state_bytes({"weight": head}),
            dimension=len(head),
        )

    @property
    def preparation_down(self) -> int:
        """What a client receives once."""
        return self.h0 + self.public_map + self.negatives
