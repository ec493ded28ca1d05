"""FedAvgM and FedAdam against a loop over numbers, and what a server step may rely on."""

import math

import pytest
import torch

from fedaux_pl.algorithms import Aggregate, FedAdam, FedAvg, FedAvgM, FedDF
from fedaux_pl.federation.server import Server
from tests.algorithms.test_equivalences import spy, start_of
from tests.federations import assert_same, run, weights

METHODS = {
    "FedAvgM": FedAvgM(server_lr=0.7, beta=0.6),
    "FedAdam": FedAdam(server_lr=0.02, beta1=0.8, beta2=0.9, tau=1e-2),
}


def by_hand(method, theta, averages):
    """The server's parameter after each of its steps towards the averages."""
    velocity = m = 0.0
    v = 1e-2**2
    steps = []
    for average in averages:
        delta = average - theta
        if method == "FedAvgM":
            velocity = 0.6 * velocity - delta
            theta = theta - 0.7 * velocity
        else:
            m = 0.8 * m + 0.2 * delta
            v = 0.9 * v + 0.1 * delta**2
            theta = theta + 0.02 * m / (math.sqrt(v) + 1e-2)
        steps.append(theta)
    return steps


@pytest.mark.parametrize("method", METHODS)
def test_steps_against_a_loop_over_numbers(method):
    start, *averages = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).double()
    theta = {"weight": start}
    state = {}
    found = []
    for average in averages:
        aggregate = Aggregate(theta=theta, average={"weight": average}, state=state)
        theta, state = METHODS[method].server_step(aggregate)
        found.append(theta["weight"])
    for number in range(5):
        expected = by_hand(method, float(start[number]), [float(a[number]) for a in averages])
        assert [float(step[number]) for step in found] == pytest.approx(expected)


def test_a_step_without_momentum_is_fedavg_bit_for_bit(tmp_path):
    plain = run(tmp_path, FedAvg(), 2)
    assert_same(weights(run(tmp_path, FedAvgM(server_lr=1.0, beta=0.0), 2)), weights(plain))
    with pytest.raises(AssertionError):
        assert_same(weights(run(tmp_path, FedAvgM(server_lr=1.0, beta=0.1), 2)), weights(plain))


class Still(FedDF):
    """A server that does not move its parameters, and counts its steps."""

    def server_step(self, aggregate):
        return aggregate.theta, {"steps": {"count": torch.ones(1)}}


def test_students_are_distilled_from_the_step(tmp_path, monkeypatch):
    """Parameters are the method's, BatchNorm's statistics the clients' averages."""
    calls = spy(monkeypatch, Server, "distill")
    federation = run(tmp_path, Still(), 1)
    [((_, _, _, starts, _), _)] = calls
    before = start_of(federation, None)
    for name, p in before.named_parameters():
        assert torch.equal(starts["resnet8"][name], p), name
    assert not torch.equal(starts["resnet8"]["bn1.running_mean"], before.bn1.running_mean)
    after = federation.students["resnet8"]
    assert not torch.equal(after.head.weight, before.head.weight)
    assert federation.state.server_states["resnet8"]["steps"]["count"] == 1


@pytest.mark.parametrize(
    ("create_method", "message"),
    [
        (lambda: FedAvgM(beta=1.0), r"beta: got 1.0; expected to lie in \[0, 1\)"),
        (lambda: FedAdam(server_lr=float("nan")), "server_lr: got .* to be a positive number"),
    ],
)
def test_wrong_options(create_method, message):
    with pytest.raises(ValueError, match=message):
        create_method()


def test_a_step_that_is_too_large_is_named(tmp_path, monkeypatch):
    """Whether only the predictions overflow or the weights themselves."""
    huge = FedAdam(server_lr=1e38)
    with pytest.raises(FloatingPointError, match=r"hold NaN .* or server_lr in one with a server"):
        run(tmp_path, huge, 1)
    with pytest.raises(FloatingPointError, match="FedAdam gave NaN or infinity: lower its server"):
        run(tmp_path, FedAdam(server_lr=1e300), 1)
