import math
import random

import pytest

pytest.importorskip("dp_accounting")

import dp_accounting
import mpmath
import torch
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedaux_pl.functional import gaussian_epsilon, gaussian_sigma
from fedaux_pl.scoring import Privacy, Release, SecureSums, spent
from fedaux_pl.scoring.release import standard_normal

VECTOR = torch.tensor([1.0, -2.0, 3.0])


def test_the_noise_is_gaussian_with_the_sigma_of_the_guarantee():
    draws = []
    for _ in range(700):
        released, record = Privacy(0.5, 1e-5).release(VECTOR, 0.25)
        draws.append(released - VECTOR)
    sigma = gaussian_sigma(0.5, 1e-5, 0.25)
    assert (record.sigma, record.sensitivity, record.mechanism) == (sigma, 0.25, "analytic")
    assert (record.epsilon, record.delta, record.flaw) == (0.5, 1e-5, "")
    noise = torch.cat(draws) / sigma
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-4
    assert len(noise.unique()) > 0.7 * len(noise)  # of about 6,000 multiples of sigma / 1,024


@pytest.mark.parametrize("delta", [1e-100, 1e-5, 0.5])
@pytest.mark.parametrize("epsilon", [1e-5, 0.04, 0.1, 1.0, 3.0, 100.0])
def test_halves_of_the_budget_cost_together_no_more_than_it(epsilon, delta):
    """Otherwise a site whose limit is the epsilon of the method would refuse the second one."""
    halves = [Privacy(epsilon, delta).cost(d, share=0.5) for d in (2.0, 1.4 * 1.25**0.5)]
    assert 0.99 * epsilon < spent(halves, delta)[0] <= epsilon
    assert Privacy(epsilon, delta).cost(0.0, share=0.5).epsilon == halves[0].epsilon


def test_low_order_bits_do_not_tell_the_vector():
    """Of noise alone they are random; of 0.1 plus noise near -0.1 they are 0."""
    for vector in (torch.zeros(400), torch.full((400,), 0.1)):
        released, record = Privacy(1.0, 1e-5).release(vector, 0.01)
        step = 2.0 ** math.floor(math.log2(record.sigma)) / 1024
        assert record.sigma / 2048 < step <= record.sigma / 1024
        assert torch.equal(released / step, (released / step).round())
    simulated, _ = Privacy(1.0, 1e-5).release(vector, 0.01, noise_seed=0)
    assert not torch.equal(simulated / step, (simulated / step).round())  # those of earlier runs


def test_noise_depends_on_its_seed_and_not_on_the_global_one():
    def draw(seed):
        torch.manual_seed(0)
        return Privacy(0.5, 1e-5).release(VECTOR, 1.0, noise_seed=seed)[0]

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))
    assert not torch.equal(draw(None), draw(None))


def test_two_seeded_releases_do_not_cancel():
    """If their noise were equal up to its scale, two releases would reveal the vector."""

    def solve(one, other):
        (first, a), (second, b) = one, other
        return (first * b.sigma - second * a.sigma) / (b.sigma - a.sigma)

    def release(epsilon, sensitivity=1.0, vector=VECTOR, share=1.0, **options):
        return Privacy(epsilon, **options).release(vector, sensitivity, noise_seed=7, share=share)

    pairs = [
        (release(0.1), release(0.04)),
        (release(0.1), release(0.1, sensitivity=0.5)),
        (release(0.1), release(0.1, delta=1e-6)),
        (release(0.1), release(0.1, mechanism="classical")),
        (release(0.1), release(0.1, 0.5, VECTOR.flip(0))),
        (release(0.1), release(0.1, share=0.5)),
    ]
    for one, other in pairs:
        assert (solve(one, other) - VECTOR).norm() > VECTOR.norm()
    near, same = release(0.1, vector=VECTOR.double() + 1e-9), release(0.1)
    assert (near[0] - same[0]).norm() > 1  # the difference of the vectors does not show


def test_a_seeded_release_is_simulated_and_guarantees_nothing():
    _, seeded = Privacy(0.5).release(VECTOR, 1.0, noise_seed=7)
    _, secret = Privacy(0.5).release(VECTOR, 1.0)
    assert (seeded.simulated, seeded.is_private) == (True, False)
    assert (secret.simulated, secret.is_private) == (False, True)
    assert spent([seeded])[0] == spent([secret, seeded], 1e-5)[0] == math.inf
    assert spent([secret])[0] <= 0.5


class Bits(random.Random):
    """The same random bit forever."""

    def __init__(self, bit):
        self.bit = bit

    def getrandbits(self, count):
        return self.bit * (2**count - 1)


def test_the_tails_of_the_noise_reach_the_smallest_delta():
    assert abs(standard_normal(1, Bits(0)).item()) > 37
    assert standard_normal(1, Bits(1)).item() == 0
    least = -math.log10(stats.norm.sf(37))
    assert least > 100  # the smallest delta that a budget accepts


def test_far_tails_have_the_right_distribution():
    """Given that the first 60 bits are 0, a tail beyond 8.8 standard deviations."""

    class Tail(random.Random):
        def getrandbits(self, count):
            return super().getrandbits(count) >> (60 if count > 60 else 0)

    noise = standard_normal(3000, Tail(0)).abs()
    assert noise.min() > 8.8
    uniform = stats.norm.sf(noise.numpy()) * 2 * 2**60
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3


def test_without_noise_it_is_a_copy_without_a_guarantee():
    released, record = Privacy(epsilon=None).release(VECTOR, 1.0)
    assert released.tolist() == VECTOR.tolist()
    released.zero_()
    assert VECTOR[0] == 1
    assert (record.epsilon, record.sigma, record.mechanism) == (math.inf, 0, "none")


@pytest.mark.parametrize("options", [(0.0, 1e-5), (0.1, 1.0), (2.0, 1e-5, "classical")])
def test_invalid_options_are_refused(options):
    with pytest.raises(ValueError, match=r"to be positive|to lie|at most 1 with"):
        Privacy(*options)


# --- What several releases cost together -----------------------------------------------------


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


# --- Parts of a budget, and secure sums -------------------------------------------------------


@pytest.mark.parametrize("shares", [(1.0,), (0.5, 0.5), (0.49, 0.49, 0.02)])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-2])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 3.0, 30.0])
def test_parts_cost_together_what_the_whole_does(epsilon, delta, shares):
    """At most, and hardly less; with secret noise and for any sensitivities."""
    sensitivities = 2.0, 1.565, math.sqrt(2)
    records = [
        Privacy(epsilon, delta).cost(own, share=share)
        for own, share in zip(sensitivities, shares, strict=False)
    ]
    assert 0.999999 * epsilon <= spent(records, delta)[0] <= epsilon
    assert all(own.is_private and own.epsilon <= epsilon for own in records)
    assert all(spent([own], delta)[0] == pytest.approx(own.epsilon) for own in records)


def test_parts_of_the_classical_mechanism_cost_less():
    records = [Privacy(0.5, mechanism="classical").cost(1.0, share=0.5)] * 2
    assert spent(records, 1e-5)[0] < 0.4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colluders": 0}, "colluders: got 0; expected to be at least 1"),
        ({"count_share": 1.0}, "count_share: got 1.0; expected to lie strictly between 0 and 1"),
        ({"count_share": 0.0}, "count_share: got 0.0; expected to lie strictly between 0 and 1"),
    ],
)
def test_wrong_options_of_sums(options, message):
    with pytest.raises(ValueError, match=message):
        SecureSums(**options)


def test_secure_sums_have_an_object_of_options():
    with pytest.raises(ValueError, match="secure: got True; expected to be None or a SecureSums"):
        Privacy(secure=True)


def test_a_secure_sum_has_two_guarantees():
    """That of the sum without the colluders' noise, and that of one client's noise alone."""
    whole = Privacy(0.5).cost(2.0)
    record = Privacy(0.5, secure=SecureSums(colluders=4)).cost(2.0, summands=20)
    assert record.sigma == pytest.approx(whole.sigma / 4)
    assert (record.mu, record.mu_alone) == pytest.approx((whole.mu, 4 * whole.mu))
    assert record.total_sigma == pytest.approx(whole.sigma * math.sqrt(20 / 16))
    assert spent([record, record], 1e-5) == pytest.approx(spent([whole, whole], 1e-5))
    assert record.epsilon_alone == spent([record], 1e-5, alone=True)[0] > 2
    local = Privacy(0.5).cost(2.0)
    assert spent([local], 1e-5, alone=True)[0] == pytest.approx(0.5)
