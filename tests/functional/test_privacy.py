import math

import mpmath
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedaux_pl.functional import clip_rows, fit_scoring_head, gaussian_sigma, scoring_sensitivity


def test_sensitivity_is_theorem_1_plus_the_solvers_tolerance():
    assert scoring_sensitivity(0.1, 1000) == pytest.approx(0.02)
    assert scoring_sensitivity(0.1, 1000, tolerance=1e-4) == pytest.approx(0.022)


def unit_rows(n, d, generator):
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True)


def neighbors(seed):
    """Pairs of data sets (D_i, D_i', D^-) that differ in one record of D_i, rows of norm <= 1.

    Some are random; in the adversarial ones all other rows are small or cancel, so that the one
    record faces the regularizer alone, and it is turned to the opposite side.
    """
    generator = torch.Generator().manual_seed(seed)
    d = int(torch.randint(1, 6, (), generator=generator))
    n, m = (int(torch.randint(1, 30, (), generator=generator)) for _ in range(2))
    positives, negatives = unit_rows(n, d, generator), unit_rows(m, d, generator)
    kind = seed % 4
    if kind == 1:  # the others say nothing
        positives, negatives = positives * 1e-3, negatives * 1e-3
    elif kind == 2:  # the others cancel each other
        negatives = positives[torch.arange(m) % n]
    elif kind == 3:  # one direction only
        positives = torch.ones(n, 1, dtype=torch.float64) * torch.eye(d, dtype=torch.float64)[0]
        negatives = torch.zeros(m, d, dtype=torch.float64)
    record = unit_rows(1, d, generator)[0]
    positives[0] = record
    changed = positives.clone()
    changed[0] = -record
    return positives, changed, negatives


@pytest.mark.parametrize("regularization", [1.0, 1e-3])
def test_no_neighboring_pair_moves_the_head_beyond_the_bound(regularization):
    closest = 0.0
    for seed in range(40):
        positives, changed, negatives = neighbors(seed)
        fits = [fit_scoring_head(own, negatives, regularization) for own in (positives, changed)]
        weights, norms = zip(*fits, strict=True)
        tolerance = max(norms)
        bound = scoring_sensitivity(regularization, len(positives) + len(negatives), tolerance)
        moved = (weights[0] - weights[1]).norm().item()
        assert moved <= bound
        closest = max(closest, moved / bound)
    # |l'| = 1/2 at w = 0, where strong regularization holds w: half the bound is nearly attained.
    if regularization == 1.0:
        assert closest > 0.45


def test_the_bound_is_nearly_attained():
    """A claim a quarter smaller would be false.

    All other records lie on the first axis and pull w to about -5.2 on it, where lambda |w| =
    1/(1 + e^|w|). The one record, (0.45, 0.89) or (0.45, -0.89), is on the wrong side of that by
    far, so |l'| = 0.91, and nothing but the regularizer resists it on the second axis: it moves w
    there by 0.89 x 0.91 = 0.81 of 1/(lambda N), up or down.
    """
    positives = torch.tensor([[-1.0, 0.0]], dtype=torch.float64).repeat(2000, 1)
    c = 0.45
    positives[0] = torch.tensor([c, math.sqrt(1 - c**2)])
    changed = positives.clone()
    changed[0, 1] *= -1
    negatives = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(2000, 1)
    weights = [fit_scoring_head(own, negatives, 1e-3)[0] for own in (positives, changed)]
    moved = (weights[0] - weights[1]).norm().item()
    bound = scoring_sensitivity(1e-3, 4000)
    assert 0.75 * bound < moved <= bound


def test_the_tolerance_term_covers_a_solver_that_stops_early():
    positives, changed, negatives = neighbors(0)
    n = len(positives) + len(negatives)
    exact, _ = fit_scoring_head(positives, negatives, 0.01)
    for tolerance in (1e-1, 1e-2, 1e-3):
        early, norm = fit_scoring_head(changed, negatives, 0.01, tolerance=tolerance)
        assert norm <= tolerance
        assert (exact - early).norm() <= scoring_sensitivity(0.01, n, tolerance)


def test_the_published_value():
    assert gaussian_sigma(0.1, 1e-5, 1.0) == pytest.approx(30.7496, abs=5e-5)
    assert gaussian_sigma(0.1, 1e-5, 1.0, mechanism="classical") == pytest.approx(48.448, abs=5e-4)


@settings(deadline=None, max_examples=60)
@given(
    epsilon=st.floats(-5, 2.5).map(lambda exponent: 10**exponent),
    exponent=st.floats(-100, -0.1),
    sensitivity=st.floats(1e-6, 1e3),
)
@example(epsilon=1e-5, exponent=-36.0, sensitivity=1.0)  # almost equal terms
def test_the_noise_attains_delta_and_less_would_not(epsilon, exponent, sensitivity):
    """Balle and Wang's Theorem 8, evaluated with 60 digits."""
    delta = 10**exponent
    sigma = gaussian_sigma(epsilon, delta, sensitivity)

    def attained(multiplier):
        with mpmath.workdps(60):
            u, e = mpmath.mpf(multiplier), mpmath.mpf(epsilon)
            return mpmath.ncdf(1 / (2 * u) - e * u) - mpmath.exp(e) * mpmath.ncdf(
                -1 / (2 * u) - e * u
            )

    assert attained(sigma / sensitivity) <= delta
    assert attained(sigma / sensitivity * (1 - 1e-4)) > delta


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1e-5, 1), "epsilon: got 0; expected to be positive and finite,"),
        ((-1, 1e-5, 1), "epsilon: got .*; expected to be positive"),
        ((math.nan, 1e-5, 1), "epsilon: got .*; expected to be positive"),
        ((1, 0, 1), "delta: got 0; expected to lie strictly between 0 and 1,"),
        ((1, 1, 1), "delta: got .*; expected to lie"),
        ((9e-6, 1e-5, 1), "epsilon: got 9e-06; expected to be .* at least 1e-05"),
        ((1, 1e-101, 1), "delta: got 1e-101; expected to .* at least 1e-100"),
        ((1, 1e-5, -1), "sensitivity: got .*; expected to be finite, at least 0"),
        ((1.01, 1e-5, 1, "classical"), "got 1.01; .*at most 1 with the classical mechanism"),
        ((1, 1e-5, 1, "laplace"), "got 'laplace'; expected to .*analytic or classical"),
    ],
)
def test_sigma_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        gaussian_sigma(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 10), "lambda: got .*; expected to be positive"),
        ((1, 0), "number of samples: got .*; expected to be at least 1"),
        ((1, 10, -1), "tolerance: got .*; expected to be at least 0"),
    ],
)
def test_sensitivity_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        scoring_sensitivity(*arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_clipped_rows_are_within_the_bound_to_the_last_digit(dtype):
    generator = torch.Generator().manual_seed(0)
    small = ((64, 1.01e-146),) if dtype == torch.float64 else ()
    for d, bound in ((1, 1.0), (3, 0.1), (512, 7.3), (4096, 1.0), *small):
        features = (torch.randn(500, d, generator=generator).double() * 5 * bound).to(dtype)
        clipped = clip_rows(features, bound)
        assert clipped.dtype == dtype
        assert clipped.double().norm(dim=1).max().item() <= bound
        assert clipped.double().norm(dim=1).max().item() > bound * 0.96


def test_short_rows_are_unchanged_and_long_ones_keep_their_direction():
    features = torch.tensor([[0.3, 0.4], [30.0, 40.0], [0.0, 0.0]])
    clipped = clip_rows(features, 1.0)
    assert torch.equal(clipped[0], features[0])
    assert torch.equal(clipped[2], features[2])
    torch.testing.assert_close(clipped[1], torch.tensor([0.6, 0.8]))


def test_clipping_huge_float32_features_does_not_overflow():
    clipped = clip_rows(torch.full((1, 100), 3e38), 1.0)
    assert clipped.norm().item() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("features", "bound", "message"),
    [
        (torch.zeros(2, 2), 0, "bound: got .*; expected to be finite and at least"),
        (torch.zeros(2, 2), math.inf, "bound: got .*; expected to be finite"),
        (torch.zeros(2), 1, "floats of shape"),
        (torch.zeros(2, 2, dtype=torch.int64), 1, "floats of shape"),
        (torch.zeros(2, 2), 1e-32, "got 1e-32; expected to .*at least 9.86e-32 for float32"),
        (torch.tensor([[0.6, 0.8]]).double(), 5e-324, "rounding lengthens rows"),
        # the squares of such a row are 0, so that its norm would look short
        (torch.full((1, 2), 1e-200).double(), 1e-147, "at least 1e-146 for float64"),
        (torch.tensor([[math.inf, 0]]), 1, "NaN or infinity"),
        (torch.tensor([[math.nan, 0]]), 1, "NaN or infinity"),
    ],
)
def test_clip_refuses(features, bound, message):
    with pytest.raises(ValueError, match=message):
        clip_rows(features, bound)
