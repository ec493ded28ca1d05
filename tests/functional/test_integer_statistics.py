"""Integer statistics: Python integers, an attack on their sensitivity, and units."""

import math

import pytest
import torch
from torch.testing import assert_close

from fedaux_pl.functional import (
    LinearClassifier,
    decode_residuals,
    decode_statistics,
    encode_rows,
    integer_statistics,
    integer_weights,
    most_records,
    residuals_unit,
    split_statistics,
    statistics_unit,
    sum_integer_residuals,
    sum_integers,
    sum_residuals,
    sum_statistics,
)
from tests.functional.rows import drawn, unit

C = 2**16
RHOS = [0.01, 0.15, 0.5, 0.5000001, 0.7, 1.0, 4.0]


def records(n=200, k=5, classes=3):
    rows = unit(drawn(n, k)) * torch.linspace(0, 1, n, dtype=torch.float64)[:, None]
    return rows, torch.eye(classes)[torch.arange(n) % classes]


@pytest.mark.parametrize("k", [1, 2, 4, 100, 1000])
def test_encoded_rows_have_at_most_the_norm_that_is_checked(k):
    """Random ones, and those whose entries are all moved up by one half."""
    rows = unit(drawn(500, k))
    rows[0] = 1 / math.sqrt(k)
    encoded = encode_rows(rows)
    assert int(encoded.square().sum(dim=1).max()) <= C**2
    assert float((encoded / (C - math.sqrt(k) / 2) - rows).abs().max()) <= 0.51 / C
    assert encode_rows(torch.full((1, 4), 0.5)).square().sum() == C**2  # the bound is attained


@pytest.mark.parametrize(("rho", "chunk"), [(0.15, 7), (0.5, 2**16), (1.0, 2**16), (4.0, 7)])
def test_sums_are_those_of_python_integers(monkeypatch, rho, chunk):
    monkeypatch.setattr(integer_statistics, "_CHUNK", chunk)
    rows, labels = records(40, 4, 3)
    w, tau, _ = integer_weights(rho)
    expected = [0] * (3 * 5 + 10)
    for q, label in zip(encode_rows(rows).tolist(), labels.argmax(dim=1).tolist(), strict=True):
        for a, entry in enumerate([*q, tau]):
            expected[5 * label + a] += w * entry
        products = [(5 if a == b else 7) * q[a] * q[b] for a in range(4) for b in range(a, 4)]
        expected[15:] = [x + y for x, y in zip(expected[15:], products, strict=True)]
    vector = sum_integers(rows, labels, rho)
    assert vector.dtype == torch.int64
    assert vector.tolist() == expected


def test_the_largest_entries_are_added_exactly():
    n = 140_001
    vector = sum_integers(torch.ones(n, 1), torch.ones(n, 1), rho=1.0)
    assert vector.tolist() == [5 * C * C * n, 5 * C * C // 2 * n, 5 * C * C * n]


def test_the_weights_are_those_of_the_proofs():
    assert integer_weights(1.0) == (5 * C, C // 2, 225 * C**4 // 2)
    w, tau, squared = integer_weights(0.5)
    assert (w, tau) == (math.isqrt(50 * C**2), math.isqrt(C**2 // 2))
    assert 0.99999 * 200 * C**4 < squared <= 200 * C**4
    w, tau, squared = integer_weights(0.15)
    assert squared == 4 * w**2 * C**2
    for rho in (1e-9, *RHOS, 100.0, 1e12):
        w, tau, squared = integer_weights(rho)
        assert min(w, tau) >= 1
        assert 2 * w**2 * (C**2 + tau**2) + 50 * C**4 <= squared
        if rho < 1e6:  # a larger tau would cost more
            assert w == pytest.approx(5 * C / math.sqrt(rho), abs=1)
            assert 2 * w**2 * (C**2 + (tau + 1) ** 2) + 50 * C**4 > squared


def record(row, label, rho):
    return sum_integers(row[None], torch.eye(2)[label][None], rho)


def squared_distance(one, other):
    """In Python integers: it exceeds 64 bits."""
    return sum(x * x for x in (one - other).tolist())


@pytest.mark.parametrize("rho", RHOS)
def test_no_pair_of_records_exceeds_the_sensitivity_and_one_attains_it(rho):
    """Long and short rows on a grid and at random, of the same and of another class."""
    bound = integer_weights(rho).squared_sensitivity
    angles = torch.linspace(0, 2 * math.pi, 73, dtype=torch.float64)
    circle = torch.stack([angles.cos(), angles.sin()], dim=1)
    for rows in (circle, unit(drawn(30, 3)), unit(drawn(30, 4)).round(decimals=1) / 1.2):
        rows = torch.cat([rows, 0.9 * rows[::3], 0 * rows[:1]])
        rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        own, others = (torch.stack([record(row, y, rho) for row in rows]) for y in (0, 1))
        for vectors in (own, others):
            distances = torch.cdist(
                own.double(), vectors.double(), compute_mode="donot_use_mm_for_euclid_dist"
            )
            i, j = divmod(int(distances.argmax()), len(rows))
            largest = squared_distance(own[i], vectors[j])
            assert largest <= bound
            assert rows.shape[1] > 2 or largest > 0.998 * bound  # a grid of 5 degrees


@pytest.mark.parametrize("rho", [0.15, 0.5, 1.0])
def test_no_pair_of_integers_exceeds_the_sensitivity(rho):
    """On the boundary of |q| <= C itself, which encoded rows hardly reach: the closest climb."""
    w, _, bound = integer_weights(rho)
    cosine = -min(w**2 / 50 / C**2, 1.0)
    half = math.acos(cosine) / 2
    angles = torch.tensor([-math.pi / 4 - half, -math.pi / 4 + half]).double()
    largest = 0
    for turn in torch.linspace(-0.01, 0.01, 41).tolist():
        q = (C * torch.stack([(angles + turn).cos(), (angles + turn).sin()], dim=1)).long()
        (a, b), (c, d) = q.tolist()
        sums = w**2 * ((a - c) ** 2 + (b - d) ** 2)
        moment = 25 * ((a * a - c * c) ** 2 + (b * b - d * d) ** 2) + 49 * (a * b - c * d) ** 2
        largest = max(largest, sums + moment)
    assert 0.9999 * bound < largest <= bound


@pytest.mark.parametrize("rho", RHOS)
def test_decoded_sums_are_the_real_ones_up_to_rounding(rho):
    rows, labels = records()
    decoded = decode_statistics(sum_integers(rows, labels, rho), 3, rho)
    expected = sum_statistics(rows, labels, rho)
    # an entry of a row is off by half a step at most, a product by one, and rounding averages out
    assert_close(decoded, expected, rtol=0, atol=5 * math.sqrt(len(rows)) / C)
    counts = split_statistics(decoded, 3, rho)[1]
    assert_close(counts, labels.sum(dim=0).double())


@pytest.mark.parametrize("rho", [*RHOS, 1e-4, 1e4])
def test_a_step_has_the_unit_that_is_stated(rho):
    units = decode_statistics(torch.ones(3 * 6 + 15, dtype=torch.int64), 3, rho)
    unit_of_sums = statistics_unit(5, rho)
    assert units[0] == pytest.approx(unit_of_sums, rel=1e-12)
    assert units.max() < 1.02 * unit_of_sums
    assert units.min() > unit_of_sums / 1.02


def test_residuals_are_those_of_python_integers_and_decoded_again():
    rows, labels = records()
    classifier = LinearClassifier(3 * drawn(3, 5, seed=1), drawn(3, seed=2))
    vector = sum_integer_residuals(rows, labels, classifier)
    decoded, expected = decode_residuals(vector, 3), sum_residuals(rows, labels, classifier)
    assert_close(decoded, expected, rtol=0, atol=5 * math.sqrt(len(rows)) / C)
    parts = [
        sum_integer_residuals(rows[i : i + 1], labels[i : i + 1], classifier) for i in range(200)
    ]
    columns = [part.tolist() for part in parts]
    assert vector.tolist() == [sum(column) for column in zip(*columns, strict=True)]
    assert max(sum(x * x for x in part) for part in columns) <= C**4  # |q| |u| <= C^2
    scales = (C - math.sqrt(6) / 2) * (C - math.sqrt(3) / 2)
    assert residuals_unit(5, 3) * scales == pytest.approx(0.7 * math.sqrt(1.25), rel=1e-12)
    step = decode_residuals(torch.ones(18, dtype=torch.int64), 3)
    assert_close(step, torch.full((3, 6), residuals_unit(5, 3)).double())


def test_opposite_residuals_attain_their_sensitivity():
    classifier = LinearClassifier(torch.zeros(2, 3), torch.zeros(2))
    row = torch.tensor([[1.0, 0.0, 0.0]])
    one, other = (
        sum_integer_residuals(row, torch.eye(2)[label][None], classifier) for label in (0, 1)
    )
    bound = integer_statistics.INTEGER_RESIDUAL_SENSITIVITY
    assert 0.9999 * bound < squared_distance(one, other) <= bound


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[math.nan, 0.0]], "NaN"),
        ([[math.inf, 0.0]], "infinity"),
        ([[1e300, 0.0]], "a norm above 1"),
        ([[0.7123, 0.7123]], "a norm above 1"),
    ],
)
def test_rows_that_break_the_sensitivity_are_refused_without_their_values(rows, message):
    with pytest.raises(ValueError, match=message) as error:
        encode_rows(torch.tensor(rows, dtype=torch.float64))
    assert "7123" not in str(error.value)


def test_other_labels_weights_and_too_many_records_are_refused():
    rows = torch.zeros(2, 2)
    for labels in ([[1, 1], [0, 1]], [[0.5, 0.5], [0, 1]], [[2, -1], [0, 1]], [[0, 0], [0, 1]]):
        with pytest.raises(ValueError, match="not one-hot"):
            sum_integers(rows, torch.tensor(labels), rho=1.0)
    for rho in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"rho: got .*; expected to be positive and finite"):
            integer_weights(rho)
    most = most_records(1e-12)
    sum_integers(torch.zeros(most, 1), torch.ones(most, 1), rho=1e-12)
    with pytest.raises(ValueError, match=f"got {most + 1}; .*at most {most} of all clients"):
        sum_integers(torch.zeros(most + 1, 1), torch.ones(most + 1, 1), rho=1e-12)
