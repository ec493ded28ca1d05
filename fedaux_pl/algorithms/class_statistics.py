"""Class statistics as a release: the server builds a classifier p(c | x) from those of all clients.

FedClassMeans distills from the classifier. FedAUX weighs its teachers by it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedaux_pl.algorithms.client_release import ClientRelease, Evidence, Released
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional import (
    LinearClassifier,
    linear_discriminant,
    newton_step,
    ridge_classifier,
    split_statistics,
)
from fedaux_pl.functional.discriminant import Discriminant, shrunk_covariance
from fedaux_pl.scoring import (
    ClassStatistics,
    Plan,
    PublicNumbers,
    ReleasedHead,
    clients_of,
    counts_of_clients,
    plan,
    pool_statistics,
    stack_heads,
)

# The logits of a discriminant are divided by it, because rows are not Gaussian, which makes a
# discriminant too certain. With much noise its means are shrunk, it is less certain, and its logits
# stay as they are.
_TEMPERATURE = 2.0
_LITTLE_NOISE = 0.012  # of the class sums, relative to the mean number of records of a class
_RIDGE_TEMPERATURE = 0.1  # of the outputs of a ridge regression, which estimate 0 and 1


@dataclass(frozen=True)
class CertaintyOfClasses(ClientRelease):
    """FedAUX's release of class statistics: s_i(x) = p(client i | x) = sum_c p(c | x) n_ic / n_c.

    The classifier p(c | x) is made of the statistics of all clients. Client i holds n_ic of the n_c
    records of class c.
    """

    def plan(self, numbers: PublicNumbers | None) -> Plan:
        """Statistics, then the class counts of each client if the statistics are summed."""
        return plan(self.scoring, numbers, counts=True)

    def send(self, released: Released, architecture: str) -> Mapping[str, Tensor]:
        """The discriminant, whose gradient clients then release."""
        return send_discriminant(released, architecture)

    def evidence(self, released: Released) -> Evidence:
        """Compute p(c | x) and p(client i | x) on each part of the data."""
        probabilities = label_parts(released, discriminants(released))
        shares = client_shares(released)
        certainty = {part: shares.to(rows) @ rows.T for part, rows in probabilities.items()}
        return Evidence(certainty, probabilities)


@dataclass(frozen=True)
class ClassTeacher(ClientRelease):
    """FedClassMeans' release of class statistics: p(c | x) is the teacher of the students.

    Args:
        classifier: ``discriminant``, or ``ridge`` for the ridge regression of one-hot labels.
        regularization: lambda of the ridge regression.
    """

    classifier: Literal["discriminant", "ridge"] = "discriminant"
    regularization: float = 0.01

    def send(self, released: Released, architecture: str) -> Mapping[str, Tensor]:
        """The discriminant, whose gradient clients then release."""
        return send_discriminant(released, architecture)

    def evidence(self, released: Released) -> Evidence:
        """Compute the classifier of each architecture, and p(c | x) on each part of the data."""
        if self.classifier == "ridge":
            classifiers = ridge_regressions(released, self.regularization)
        else:
            classifiers = discriminants(released)
        return Evidence(
            class_probabilities=label_parts(released, classifiers), classifiers=classifiers
        )


def discriminants(released: Released) -> dict[str, LinearClassifier]:
    """Return the linear discriminant of the rows of each architecture.

    If the clients have also released its gradient, one Newton step improves it.
    """

    def fit(name: str, heads: Sequence[ReleasedHead]) -> LinearClassifier:
        return _improved_discriminant(released, name, heads)

    return fit_classifiers(released, fit)


def ridge_regressions(released: Released, regularization: float) -> dict[str, LinearClassifier]:
    """Return the ridge regression of one-hot labels on the rows of each architecture.

    W = (X^T X + lambda I)^-1 X^T Y needs two sums over records: X^T X is the second moment of the
    class statistics, and X^T Y are their class sums. Without noise it is the regression on all
    records together, however they are split. As in Fed3R (Fanì et al. 2024) there is no intercept.
    """
    rho = _rho(released)

    def fit(_name: str, heads: Sequence[ReleasedHead]) -> LinearClassifier:
        vectors, sigmas = stack_heads(heads)
        sums, _, moment = split_statistics(vectors.sum(dim=0), released.num_classes, rho)
        noise = float(sigmas.norm()) / math.sqrt(rho)
        fitted = ridge_classifier(sums, moment, regularization, noise)
        return fitted.cooled(_RIDGE_TEMPERATURE)

    return fit_classifiers(released, fit)


def fit_classifiers(
    released: Released, fit: Callable[[str, Sequence[ReleasedHead]], LinearClassifier]
) -> dict[str, LinearClassifier]:
    """Return a classifier of the rows of each architecture; ``fit`` takes its name and heads."""
    groups = {name: released.group(name) for name in released.reference}
    # none of sites that have never been there
    return {name: fit(name, heads) for name, heads in groups.items() if heads}


def label_parts(
    released: Released, classifiers: Mapping[str, LinearClassifier]
) -> dict[str, Tensor]:
    """Return p(c | x) on each part of the data, shapes (N, C), as a mean over the architectures."""
    members: dict[str, list[Tensor]] = {part: [] for part in released.parts}
    for name, classifier in classifiers.items():
        public_map = released.group(name)[0].public_map
        for part, features in released.parts.items():
            rows = public_map.rows(features[name])
            members[part].append(classifier.logits(rows).softmax(dim=1).float())
    return {part: torch.stack(labels).mean(dim=0) for part, labels in members.items()}


def _improved_discriminant(
    released: Released, name: str, heads: Sequence[ReleasedHead]
) -> LinearClassifier:
    """Return the discriminant of an architecture, improved if there is a gradient."""
    rows = heads[0].public_map.rows(released.reference[name])
    moments = _estimate(released, heads, rows)
    gradient = released.collected.get(f"gradient/{name}")
    clients = clients_of(heads)
    # a gradient without some clients would lead away from the classes that they hold
    if gradient is None or clients_of(gradient.heads) != clients:
        return moments.classifier
    vectors, sigmas = stack_heads(gradient.heads)
    records = sum(released.sizes[client] for client in clients)
    return newton_step(
        LinearClassifier(**gradient.step.scorer.tensors()),
        gradient=vectors.sum(dim=0).view(released.num_classes, -1) / records,
        noise=float(sigmas.norm()) / records,
        records=records,
        public=rows,
        moments=moments,
    )


def _estimate(released: Released, heads: Sequence[ReleasedHead], rows: Tensor) -> Discriminant:
    """The discriminant of the statistics of an architecture; ``rows`` are its public ones."""
    rho = _rho(released)
    pooled = pool_statistics(heads, released.num_classes, rho)
    records = sum(released.sizes[client] for client in clients_of(heads))
    noise = pooled.noise * math.sqrt(rho) * released.num_classes / records
    discriminant = linear_discriminant(
        pooled.means,
        pooled.variances,
        pooled.priors,
        moment=pooled.moment / records,
        noise=pooled.noise / records,
        public=shrunk_covariance(rows).cpu(),
    )
    return discriminant.cooled(_TEMPERATURE if noise <= _LITTLE_NOISE else 1.0)


def _rho(released: Released) -> float:
    scorer = released.first.scorer
    assert isinstance(scorer, ClassStatistics)  # noqa: S101 - for mypy
    return scorer.second_moment


def send_discriminant(released: Released, architecture: str) -> Mapping[str, Tensor]:
    """Return the discriminant of the statistics, whose gradient clients then release."""
    heads = released.group(architecture)
    rows = heads[0].public_map.rows(released.reference[architecture])
    return _estimate(released, heads, rows).classifier._asdict()


def client_shares(released: Released) -> Tensor:
    """Return n_ic / n_c, the share of client i in the records of class c, shape (n, C)."""
    heads = released.heads
    rho: float | None = _rho(released)
    if "counts" in released.plan:
        heads = released.collected["counts"].heads
        rho = None
    if not heads:
        raise ConfigurationError(
            "no site has released the numbers of its records by class, by which FedAUX weighs it: "
            "let sites state higher limits of epsilon, or use FedClassMeans"
        )
    counts = counts_of_clients(heads, released.num_classes, rho)
    shares = counts.new_zeros(len(released.architectures), released.num_classes)
    shares[[head.client for head in heads]] = counts / counts.sum(dim=0)
    return shares
