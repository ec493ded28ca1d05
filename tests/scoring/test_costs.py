"""What several releases cost together."""

import math

import pytest

pytest.importorskip("dp_accounting")

import dp_accounting
import mpmath
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaux_pl.functional import gaussian_epsilon, gaussian_sigma
from fedaux_pl.scoring import Release, spent


def record(epsilon=0.1, delta=1e-5, sensitivity=1.0, mechanism="analytic", flaw=""):
    sigma = gaussian_sigma(epsilon, delta, sensitivity, mechanism)
    return Release(epsilon, delta, sigma, sensitivity, mechanism, flaw)


UNNOISED = Release(math.inf, 0.0, 0.0, 0.0, "none")


def test_one_release_costs_its_epsilon():
    assert spent([record()]) == (pytest.approx(0.1, rel=1e-9), 1e-5)
    assert spent([record()])[0] <= 0.1
    assert spent([]) == (0, 0)
    assert spent([], 1e-5) == (0, 1e-5)


def test_a_classical_release_costs_less_than_its_epsilon():
    epsilon, delta = spent([record(mechanism="classical")])
    assert delta == 1e-5
    assert 0.05 < epsilon < 0.07  # 1.58 times the noise that 0.1 needs


def test_two_equal_releases_are_one_with_the_noise_over_root_2():
    """Their mean is all that matters, and has half the variance."""
    twice = spent([record(0.5, 1e-5)] * 2, 1e-5)
    assert twice == (pytest.approx(gaussian_epsilon(1e-5, 1 / (math.sqrt(2) * mu(0.5)))), 1e-5)
    assert spent([record(0.5, 1e-5)] * 2)[0] < 2 * 0.5  # basic composition


def mu(epsilon, delta=1e-5):
    return 1 / gaussian_sigma(epsilon, delta, 1.0)


@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_composition_agrees_with_dp_accounting(delta):
    """Its accountant composes privacy-loss distributions on a grid, and errs upwards."""
    records = [record(0.5), record(0.3, 1e-6, 0.02), record(1.0, 1e-4, 7.0, "classical")]
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for entry in records:
        accountant.compose(dp_accounting.GaussianDpEvent(entry.sigma / entry.sensitivity))
    theirs = accountant.get_epsilon(delta)
    assert theirs - 2e-3 < spent(records, delta)[0] <= theirs


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0.01, 5), st.floats(-9, -1)), min_size=1, max_size=6),
    st.floats(1e-3, 1e3),
)
def test_composition_never_costs_more_than_the_sum_nor_less_than_a_part(pairs, scale):
    records = [record(epsilon, 10**exponent, scale) for epsilon, exponent in pairs]
    epsilon, delta = spent(records)
    assert epsilon <= sum(entry.epsilon for entry in records)
    assert delta == pytest.approx(sum(entry.delta for entry in records))
    for entry in records:
        assert spent(records, entry.delta)[0] >= entry.epsilon * (1 - 1e-6)


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-2, 20), st.floats(-10, -0.5))
def test_epsilon_is_the_inverse_of_sigma(epsilon, exponent):
    delta = 10**exponent
    assert gaussian_epsilon(delta, gaussian_sigma(epsilon, delta, 1.0)) == pytest.approx(
        epsilon, rel=1e-6
    )


@pytest.mark.parametrize(
    ("delta", "multiplier"), [(1e-100, 5.6e14), (1e-20, 5.6e14), (1e-12, 3.2e11), (1e-12, 1.7e7)]
)
def test_with_very_much_noise_epsilon_is_not_too_small(delta, multiplier):
    """Where the two terms of delta are equal in double precision; here they have 200 digits."""
    epsilon = gaussian_epsilon(delta, multiplier)
    with mpmath.workdps(200):
        u, e = mpmath.mpf(multiplier), mpmath.mpf(epsilon)
        upper = mpmath.ncdf(1 / (2 * u) - e * u)
        assert upper - mpmath.exp(e) * mpmath.ncdf(-1 / (2 * u) - e * u) <= delta


def test_with_much_noise_epsilon_is_0():
    assert gaussian_epsilon(0.1, 100.0) == 0


@pytest.mark.parametrize("bad", [UNNOISED, record(flaw="the bound is private")])
def test_a_release_without_a_guarantee_costs_an_infinite_epsilon(bad):
    assert spent([record(), bad]) == (math.inf, pytest.approx(1e-5 + bad.delta))
    assert spent([bad], 1e-3) == (math.inf, 1e-3)


def test_a_release_of_sensitivity_0_costs_nothing():
    constant = record(sensitivity=0.0)
    assert spent([constant], 1e-5) == (0, 1e-5)
    assert spent([constant, record()], 1e-5)[0] == pytest.approx(0.1)


def test_totals_refuse():
    with pytest.raises(ValueError, match=r"got 1.0; expected to lie strictly between 0 and 1"):
        spent([record()], 1.0)
    with pytest.raises(ValueError, match="delta: got 0; expected to be at least 1e-300"):
        gaussian_epsilon(0, 1)
    with pytest.raises(ValueError, match="multiplier: got 0; expected to be positive and finite"):
        gaussian_epsilon(0.1, 0)
