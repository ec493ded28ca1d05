import math

import pytest
import torch
from torch import nn

from fedaux_pl.functional import average_states


def network(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    for _ in range(seed + 1):
        net(torch.randn(8, 3, 4, 4))
    return net


def test_average_is_the_weighted_mean_of_parameters_and_running_statistics():
    states = [network(seed).state_dict() for seed in range(3)]
    average = average_states(states, torch.tensor([10, 20, 70]))
    for key in states[0]:
        expected = sum(w * s[key].double() for w, s in zip([0.1, 0.2, 0.7], states, strict=True))
        if key.endswith("num_batches_tracked"):
            expected = expected.round()  # 2.6 batches
        assert average[key].dtype == states[0][key].dtype
        torch.testing.assert_close(average[key].double(), expected, rtol=1e-6, atol=1e-7)
    assert not torch.equal(average["1.running_var"], states[0]["1.running_var"])


def test_large_counters_are_exact():
    big = 2**40 + 1
    states = [{"n": torch.tensor(big)}, {"n": torch.tensor(big)}]
    assert average_states(states, [1, 3])["n"].item() == big


def test_half_precision_is_accumulated_in_float32():
    # 1 + 2^-8 is not a bfloat16; a running sum in bfloat16 would lose the small terms altogether.
    states = [{"w": torch.tensor([1.0], dtype=torch.bfloat16)}] + [
        {"w": torch.tensor([1 / 256], dtype=torch.bfloat16)} for _ in range(255)
    ]
    exact = (1 + 255 / 256) / 256
    result = average_states(states, [1.0] * 256)["w"]
    assert result.dtype == torch.bfloat16
    assert abs(result.item() - exact) <= exact * 2**-8


def test_the_inputs_are_not_modified():
    state = {"w": torch.ones(3)}
    average_states([state, {"w": torch.zeros(3)}], [1, 1])["w"].fill_(9)
    assert torch.equal(state["w"], torch.ones(3))


@pytest.mark.parametrize(
    ("second", "weights", "message"),
    [
        ({"v": torch.zeros(2)}, [1, 1], "'v' is .* in state 1, but missing in state 0"),
        ({"w": torch.zeros(3)}, [1, 1], r"'w' is torch.float32 of shape \(3,\) in state 1"),
        ({"w": torch.zeros(2).double()}, [1, 1], "'w' is torch.float64"),
        ({"w": torch.tensor([0, math.nan])}, [1, 1], "'w' of state 1 holds NaN or infinity"),
        ({"w": torch.tensor([0, math.inf])}, [1, 1], "'w' of state 1 holds NaN or infinity"),
        ({"w": torch.zeros(2)}, [1, -1], r"got \[1.0, -1.0\]; expected to .*at least 0, finite"),
        ({"w": torch.zeros(2)}, [1, math.nan], r"got \[1.0, nan\]"),
        ({"w": torch.zeros(2)}, [math.inf, 1], r"got \[inf, 1.0\]"),
        ({"w": torch.zeros(2)}, [0, 0], "not all 0"),
        ({"w": torch.zeros(2)}, [1], "one for each of 2 states"),
    ],
)
def test_average_states_refuses(second, weights, message):
    with pytest.raises(ValueError, match=message):
        average_states([{"w": torch.zeros(2)}, second], weights)
    with pytest.raises(ValueError, match="one for each of 0 states"):
        average_states([], [])


def test_large_finite_weights_are_averaged():
    """Though the sum of their absolute values, by which NaN and infinity are found, is not."""
    states = [{"w": torch.full((3,), 3e38)}, {"w": torch.full((3,), -1e38)}]
    torch.testing.assert_close(average_states(states, [1, 1])["w"], torch.full((3,), 1e38))


def test_tensors_without_elements_are_kept():
    state = {"w": torch.ones(2), "nothing": torch.zeros(0, 3)}
    assert average_states([state, state], [1, 1])["nothing"].shape == (0, 3)
