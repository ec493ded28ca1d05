"""The options of privacy, and the noise and the cost that follow from them."""

import math

import pytest
import torch

from fedaux_pl.scoring import Privacy, SecureSums, spent

VECTOR = torch.tensor([1.0, -2.0, 3.0])


@pytest.mark.parametrize("delta", [1e-100, 1e-5, 0.5])
@pytest.mark.parametrize("epsilon", [1e-5, 0.04, 0.1, 1.0, 3.0, 100.0])
def test_halves_of_the_budget_cost_together_no_more_than_it(epsilon, delta):
    """Otherwise a site whose limit is the epsilon of the method would refuse the second one."""
    halves = [Privacy(epsilon, delta).cost(d, share=0.5) for d in (2.0, 1.4 * 1.25**0.5)]
    assert 0.99 * epsilon < spent(halves, delta)[0] <= epsilon
    assert Privacy(epsilon, delta).cost(0.0, share=0.5).epsilon == halves[0].epsilon


def test_a_seeded_release_is_simulated_and_guarantees_nothing():
    _, seeded = Privacy(0.5).release(VECTOR, 1.0, noise_seed=7)
    _, secret = Privacy(0.5).release(VECTOR, 1.0)
    assert (seeded.simulated, seeded.is_private) == (True, False)
    assert (secret.simulated, secret.is_private) == (False, True)
    assert spent([seeded])[0] == spent([secret, seeded], 1e-5)[0] == math.inf
    assert spent([secret])[0] <= 0.5


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
