"""A teacher of classes that the server makes of the class statistics of all clients."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedaux_pl.algorithms.base import Released
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
    ReleasedHead,
    clients_of,
    counts_of_clients,
    pool_statistics,
    stack_heads,
)

# The logits of a discriminant are divided by it: rows are not Gaussian, and it is too certain. With
# much noise the means are shrunk, which makes it less certain: logits then stay as they are.
_TEMPERATURE = 2.0
_LITTLE_NOISE = 0.012  # of the class sums, relative to the mean number of records of a class
_RIDGE_TEMPERATURE = 0.1  # of the outputs of a ridge regression, which estimate 0 and 1


def classify_rows(released: Released) -> dict[str, LinearClassifier]:
    """Return the discriminant, or a better classifier, of the rows of each architecture."""

    def fit(name: str, heads: Sequence[ReleasedHead]) -> LinearClassifier:
        return _classifier(released, name, heads)

    return fit_classifiers(released, fit)


def regress_rows(released: Released, regularization: float) -> dict[str, LinearClassifier]:
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


def _classifier(released: Released, name: str, heads: Sequence[ReleasedHead]) -> LinearClassifier:
    """The discriminant of the rows of an architecture, or a better one if there is a gradient."""
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


def send_classifier(released: Released, architecture: str) -> Mapping[str, Tensor]:
    """Return the classifier of the statistics, whose gradient clients then release."""
    heads = released.group(architecture)
    rows = heads[0].public_map.rows(released.reference[architecture])
    return _estimate(released, heads, rows).classifier._asdict()


def class_holders(released: Released) -> Tensor:
    """Return n_ic / n_c, shape (n, C), of p(client i | x) = sum_c p(c | x) n_ic / n_c."""
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
    holders = counts.new_zeros(len(released.architectures), released.num_classes)
    holders[[head.client for head in heads]] = counts / counts.sum(dim=0)
    return holders
