"""Statistics of rows and labels as sums of integers, whose sensitivity holds without rounding.

A row of norm at most 1 becomes integers of norm at most C = 2^16, record by record, and this is
checked in integers. All sums are exact, so the sensitivity of a sum is that of one pair of records.
Neighboring data sets differ in one record that is replaced.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from fedaux_pl.errors import check_setting
from fedaux_pl.functional.class_statistics import (
    statistics_row_length,
    statistics_sensitivity,
    triangle,
)
from fedaux_pl.functional.discriminant import LinearClassifier
from fedaux_pl.functional.newton_step import CONSTANT, RESIDUAL_BOUND, residual_factors

STEPS = 2**16  # C, the norm 1 in steps

INTEGER_RESIDUAL_SENSITIVITY = 4 * STEPS**4
"""D^2 of ``sum_integer_residuals``: a record adds the outer product of two vectors of norm at most
C, of norm at most C^2, and two of these differ by at most 2 C^2."""

_CHUNK = 2**16  # rows; products of up to 2^21 rows have entries below 2^53, exact in float64


class IntegerWeights(NamedTuple):
    """w, the factor of class sums and counts; tau, the entry after a row; D^2 of the vector."""

    sums: int
    constant: int
    squared_sensitivity: int


def encode_rows(rows: Tensor) -> Tensor:
    """Round rows of length k to integers: q = rint((C - sqrt(k) / 2) x), of norm at most C.

    Rounding moves a row by at most sqrt(k) / 2. That q has at most the norm C is checked in
    integers, row by row, so that no rounding of floats is part of a proof of privacy.

    Examples:
        >>> encode_rows(torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
        tensor([[39321, 52428],
                [    0,     0]])
    """
    rounded = (_scale(rows.shape[1]) * rows.double()).round()
    encoded = rounded.long()
    # bounded entries first: others, or NaN, could overflow in integers
    are_bounded = bool((rounded.abs() <= STEPS).all())
    squares = encoded.square().sum(dim=1)
    if not are_bounded or not bool((squares <= STEPS**2).all()):
        raise ValueError("got a row with NaN, infinity or a norm above 1: clip rows first")
    return encoded


def integer_weights(rho: float) -> IntegerWeights:
    """Choose w and tau, and bound by how much replacing one record moves ``sum_integers``.

    A record with the row q adds w (q, tau) to the block of its class, 5 q_a^2 to the diagonal and
    7 q_a q_b to the upper triangle; w = floor(5 C / sqrt(rho)). Proof of D^2, for rows with
    s = |q|^2 <= C^2, s' = |q'|^2 <= C^2 and c = <q, q'>: since 7^2 <= 2 * 5^2, the matrices differ
    by at most 25 |q q^T - q' q'^T|^2 = 25 (s^2 + s'^2 - 2 c^2). If the label stays, tau cancels:

        w^2 (s + s' - 2 c) + 25 (s^2 + s'^2 - 2 c^2),

    which rises in s and s', and larger s and s' only widen the range of c: so s = s' = C^2 is the
    worst case. There it is a parabola in c with its maximum at c = -w^2 / 50. If w^2 >= 50 C^2
    (rho <= 1/2), this is not above -C^2, and the maximum is at c = -C^2: 4 w^2 C^2. Else it is
    2 w^2 C^2 + 50 C^4 + w^4 / 50. If the label changes, the blocks are orthogonal:

        w^2 (s + s' + 2 tau^2) + 25 (s^2 + s'^2 - 2 c^2) <= 2 w^2 (C^2 + tau^2) + 50 C^4,

    and tau >= 1 is the largest integer for which this does not exceed the other case.

    Examples:
        >>> integer_weights(rho=1.0) == (5 * 2**16, 2**15, 225 * 2**64 // 2)
        True
    """
    check_setting("rho", rho, 0 < rho < math.inf, "be positive and finite")
    w = max(math.isqrt(math.floor(25 * STEPS**2 / Fraction(rho))), 1)
    common = 2 * w**2 * STEPS**2 + 50 * STEPS**4
    same_label = common - (-(w**4) // 50)
    if w**2 >= 50 * STEPS**2:
        same_label = 4 * w**2 * STEPS**2
    tau = max(math.isqrt((same_label - common) // (2 * w**2)), 1)
    other_label = common + 2 * w**2 * tau**2
    return IntegerWeights(w, tau, max(same_label, other_label))


def most_records(rho: float) -> int:
    """Return how many records all clients together may have, so that no sum exceeds 2^62.

    A record adds at most w C, w tau or 5 C^2 to an entry, as |q_a q_b| <= C^2 / 2. A record of
    ``sum_integer_residuals`` adds at most C^2.
    """
    w, tau, _ = integer_weights(rho)
    return int(2**62 // max(w * STEPS, w * tau, 5 * STEPS**2))


def sum_integers(rows: Tensor, labels: Tensor, rho: float) -> Tensor:
    """Sum the integers of records as int64, exactly; arguments and order of ``sum_statistics``.

    Examples:
        >>> vector = sum_integers(torch.tensor([[1.0]]), torch.tensor([[0, 1]]), rho=1.0)
        >>> decode_statistics(vector, num_classes=2, rho=1.0)
        tensor([0.0000, 0.0000, 1.0000, 0.5000, 1.0000], dtype=torch.float64)
    """
    w, tau, _ = integer_weights(rho)
    most = most_records(rho)
    expected = f"be at most {most} of all clients at rho = {rho} (sums leave 64 bits)"
    check_setting("the number of records", len(rows), len(rows) <= most, expected)
    one_hot = labels.double()
    are_bits = (one_hot == 0) | (one_hot == 1)
    if not bool(are_bits.all() & (one_hot.sum(dim=1) == 1).all()):
        raise ValueError("got labels that are not one-hot; expected one 1 in each row, zeros else")
    encoded = encode_rows(rows).double()
    counts = tau * one_hot.sum(dim=0).long()[:, None]
    sums = w * torch.cat([_exact_product(one_hot, encoded), counts], dim=1)
    above, factors = _integer_triangle(rows.shape[1], rows.device)
    entries = _exact_product(encoded, encoded)[above] * factors
    return torch.cat([sums.flatten(), entries])


def decode_statistics(vector: Tensor, num_classes: int, rho: float) -> Tensor:
    """Bring a vector of ``sum_integers`` to the units of ``sum_statistics``, in float64.

    ``split_statistics`` reads it. Noise of sigma steps has the standard deviation
    ``statistics_unit`` x sigma in the class sums, and within a factor of 1.02 the same in the
    others (rho <= 10^4): those off the diagonal of the second moment have 5 sqrt(2) / 7 = 1.0102.
    """
    k = statistics_row_length(len(vector), num_classes)
    w, tau, _ = integer_weights(rho)
    constant, _ = statistics_sensitivity(rho)
    scale = _scale(k)
    units = torch.full((num_classes, k + 1), 1 / (w * scale), dtype=torch.float64)
    units[:, -1] = constant / (w * tau)
    _, factors = triangle(k)
    _, integer_factors = _integer_triangle(k, torch.device("cpu"))
    moment_units = math.sqrt(rho) / scale**2 * (factors / integer_factors)
    units = torch.cat([units.flatten(), moment_units])
    return vector.double() * units.to(vector.device)


def statistics_unit(row_length: int, rho: float) -> float:
    """Return what one step of ``sum_integers`` is in the class sums: 1 / (w (C - sqrt(k) / 2))."""
    return 1 / (integer_weights(rho).sums * _scale(row_length))


def sum_integer_residuals(rows: Tensor, labels: Tensor, classifier: LinearClassifier) -> Tensor:
    """Sum the outer products of encoded residuals and rows: ``sum_residuals`` in integers.

    A record adds u q^T with u from clip(e_y - p) / 0.7 and q from [row, 1/2] / sqrt(1.25), both
    by ``encode_rows``. D^2 is ``INTEGER_RESIDUAL_SENSITIVITY``; the vector has length C (k + 1).

    Examples:
        >>> classifier = LinearClassifier(torch.zeros(2, 1), torch.zeros(2))
        >>> vector = sum_integer_residuals(torch.ones(1, 1), torch.tensor([[1, 0]]), classifier)
        >>> decode_residuals(vector, num_classes=2)
        tensor([[ 0.4950,  0.2475],
                [-0.4950, -0.2475]], dtype=torch.float64)
    """
    residuals, extended = residual_factors(rows.double(), labels, classifier)
    left = encode_rows(residuals / RESIDUAL_BOUND)
    right = encode_rows(extended / math.sqrt(1 + CONSTANT**2))
    return _exact_product(left.double(), right.double()).flatten()


def decode_residuals(vector: Tensor, num_classes: int) -> Tensor:
    """Bring a vector of ``sum_integer_residuals`` to the units of ``sum_residuals``, (C, k + 1)."""
    table = vector.double().view(num_classes, -1)
    return table * residuals_unit(table.shape[1] - 1, num_classes)


def residuals_unit(row_length: int, num_classes: int) -> float:
    """Return what one step of ``sum_integer_residuals`` is in ``sum_residuals``."""
    bound = RESIDUAL_BOUND * math.sqrt(1 + CONSTANT**2)
    return bound / (_scale(row_length + 1) * _scale(num_classes))


def _scale(length: int) -> float:
    return STEPS - math.sqrt(length) / 2


def _integer_triangle(k: int, device: torch.device) -> tuple[tuple[Tensor, ...], Tensor]:
    """The indices of the upper triangle and the integers by which its entries are multiplied."""
    above = torch.triu_indices(k, k, device=device).unbind()
    return above, torch.where(above[0] == above[1], 5, 7)


def _exact_product(left: Tensor, right: Tensor) -> Tensor:
    """left^T right of integers in float64, in int64."""
    total = torch.zeros(left.shape[1], right.shape[1], dtype=torch.int64, device=left.device)
    chunks = zip(torch.split(left, _CHUNK), torch.split(right, _CHUNK), strict=True)
    for left_rows, right_rows in chunks:
        total += (left_rows.T @ right_rows).long()
    return total
