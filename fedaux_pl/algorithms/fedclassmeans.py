"""FedClassMeans: one private release of class-wise feature sums, no model update."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedaux_pl.algorithms.one_release import OneRelease
from fedaux_pl.algorithms.steps import Released
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional import discriminant_directions, pool_class_means
from fedaux_pl.scoring import ClassMeans, FeatureMap, Privacy, Whitened


class FedClassMeans(OneRelease):
    """Distills from a linear classifier that is made of class-wise feature sums of all clients.

    h_0 stays as it is. Every client sums its feature rows class by class, counts its records, and
    releases both as one vector, once, with noise that makes it (epsilon, delta)-private if it is
    secret. That and the number of its records are all that leaves a client: C (k + 1) numbers for C
    classes and k dimensions. The server pools the sums to class means, and makes a linear
    discriminant of them with the public covariance of the rows.

    Args:
        feature_map: How features become rows, by statistics of the public auxiliary data.
        sharpness: The teacher's probabilities are softmax(sharpness z) of its discriminants z,
            standardized over the distillation data; above 0 and at most 20.
        privacy: The privacy of all that leaves a client.

    Example:
        >>> FedClassMeans(privacy=Privacy(epsilon=0.6, delta=2e-5)).name
        'FedClassMeans'
    """

    # The feature map is frozen. The command line reads it from this signature, as a class path.
    def __init__(
        self,
        *,
        feature_map: FeatureMap = Whitened(dimensions=128, whitening=0.25),  # noqa: B008
        sharpness: float = 3.0,
        privacy: Privacy = Privacy(),  # noqa: B008
    ) -> None:
        super().__init__(ClassMeans(), feature_map, privacy, sharpness)

    def check_architectures(self, clients: Mapping[str, int]) -> None:
        """Refuse several architectures: sums in the features of two networks cannot be added."""
        if len(clients) > 1:
            raise ConfigurationError(
                f"FedClassMeans adds up sums of features of one network, but clients have "
                f"{len(clients)} architectures {dict(clients)}: use one, or FedAUXfdp"
            )

    def teach(self, released: Released) -> Tensor:
        """<w_c, row(x)> with the directions w_c of a linear discriminant."""
        [name] = released.features
        public_map = released.heads[0].public_map
        means, variances = pool_class_means(*self.class_sums(released))
        reference = public_map.rows(released.reference[name])
        covariance = torch.cov(reference.T).cpu()
        directions = discriminant_directions(means, variances, covariance)
        rows = public_map.rows(released.features[name])
        return rows @ directions.T.to(rows)

    def class_sums(self, released: Released) -> tuple[Tensor, Tensor, Tensor]:
        """The clients' sums (n, C, k) and counts (n, C) in records, and their noise (n,)."""
        own = [released.sizes[head.client] for head in released.heads]
        sizes = torch.tensor(own, dtype=torch.float64)
        vectors = [
            ClassMeans.class_sums(head.weight, released.num_classes) for head in released.heads
        ]
        table = torch.stack(vectors) * sizes[:, None, None]
        sigma = [2**0.5 * head.release.sigma for head in released.heads]
        return table[..., :-1], table[..., -1], sizes * torch.tensor(sigma, dtype=torch.float64)
