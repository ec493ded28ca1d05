"""The results of whole runs are those that are stored in this folder.

On the machine of the stored results they are equal bit for bit. Elsewhere sums are rounded in other
ways. Runs from random weights then stay close for a round. With pre-training they do not: with the
vector instructions of another CPU, nine of these runs ended with accuracies that differed by up to
4.5 points.
"""

import pytest
import torch

from tests.golden import runs, stored

QUICK = (
    *("quickstart", "quickstart_private", "text_quickstart", "silos", "mixed", "methods/fedavg"),
    *("methods/feddf", "scoring/paper", "secure sums"),
)
TOLERANCE = 1e-4
"""How far a weight may be off after round 1 from random weights on another machine."""
ACCURACY = 0.1
"""How far the last round's accuracy may be off on another machine."""


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.nightly) for n in stored.ALL]
)
def test_runs_end_as_stored(name, tmp_path):
    result = stored.ALL[name](tmp_path)
    expected = stored.results()[name]
    if all(expected[key] == value for key, value in stored.machine().items()):
        assert result.weights == expected["weights"]
        assert result.vectors == expected["vectors"]
    if name in runs.FROM_RANDOM_WEIGHTS:
        torch.testing.assert_close(
            result.first_round, stored.first_rounds()[name], rtol=0, atol=TOLERANCE
        )
    assert result.accuracy == pytest.approx(expected["accuracy"], abs=ACCURACY)


def test_equal_runs_are_stored_as_equal():
    results = stored.results()
    for one, other in [("resumed", "quickstart"), ("over sites", "without sites")]:
        assert results[one]["weights"] == results[other]["weights"]
        assert results[one]["vectors"] == results[other]["vectors"]


def test_pictures_have_the_stored_pixels():
    assert runs.pixels() == stored.pixels()
