"""The sentences of the log about privacy."""

from dataclasses import replace

import pytest
import torch

from fedaux_pl import FedAUXfdp
from fedaux_pl.scoring import (
    Logistic,
    Mean,
    Privacy,
    Step,
    describe_all,
    describe_privacy,
)
from tests.paper import Parts, paper_scoring


def release(client, scoring, size=20, seed=None):
    own = torch.rand(size, 4, generator=torch.Generator().manual_seed(client))
    return Step(scoring).release(client, own, own, scoring.fit_map(own, own), seed)


def test_the_release_and_the_largest_noise_with_its_sensitivity():
    mean = paper_scoring(scorer=Mean(), epsilon=0.5)
    [line] = describe_privacy([release(0, mean), release(1, mean, 10)])
    guarantee = "is (epsilon 0.5, delta 1e-05)-private: analytic Gaussian mechanism"
    assert line.startswith(f"each client's release (the mean of its feature rows) {guarantee}")
    sigma = release(1, mean, 10).release.sigma
    assert line.endswith(f" {sigma:.4g} at sensitivity 0.2 (the largest of all clients)")


def test_seeded_noise_is_never_called_private():
    [line] = describe_privacy([release(0, paper_scoring(), seed=3)])
    assert line.startswith(
        "simulated: with secret noise, each client's release (its scoring head) would be (epsilon "
        "0.1, delta 1e-05)-private"
    )
    assert "protects nothing" in line


def test_what_guarantees_nothing_says_so_first():
    [exact] = describe_privacy([release(0, paper_scoring(epsilon=None))])
    assert exact == "NOT private: each client's release (its scoring head) has NO noise"
    flawed = paper_scoring(scorer=Logistic(normalized=False))
    for seed in (None, 3):
        [line] = describe_privacy([release(0, flawed, seed=seed)])
        assert line.startswith("NOT private: ")
        assert line.endswith(
            "but is not: the sensitivity is that of another objective (unnormalized lambda)"
        )


SUM = "0.361 for the scores + 0.361 for the head = 0.721 at the same delta)"


@pytest.mark.parametrize(
    ("options", "seed", "says"),
    [
        ({"privacy": Privacy(0.5)}, 3, ["which with secret noise would be (epsilon 0.5, ", SUM]),
        ({"privacy": Privacy(0.5)}, None, ["is (epsilon 0.5, delta 1e-05)-private in total", SUM]),
        ({"privacy": Privacy(None)}, None, [", WITHOUT any guarantee; and"]),
        ({"scoring": Parts(Logistic(normalized=False))}, None, ["WITHOUT any guarantee"]),
    ],
)
def test_all_that_leaves_a_client(options, seed, says):
    scoring = FedAUXfdp(**options).release.scoring
    own = torch.rand(20, 4, generator=torch.Generator().manual_seed(0))
    public, labels = scoring.fit_map(own, own), torch.eye(3)[torch.arange(20) % 3]
    [first, last] = describe_all(
        [Step(scoring).release(0, own, own, public, seed, labels)], scoring
    )
    assert first.startswith("NOT private") is any("WITHOUT" in text for text in says)
    what = "one release of its certainty scores and its classification head"
    assert last.startswith(f"all that leaves a client: {what}, ")
    assert all(text in last for text in says)
    assert last.endswith("which counts as public. No model update and no loss is sent")


def test_the_cost_of_several_releases_is_claimed_only_if_all_hold():
    scoring = paper_scoring(epsilon=0.5)
    for flaw, seed, claim in (
        ("", None, "the releases of each client together cost (epsilon 0.5, delta 1e-05)"),
        ("", 3, "with secret noise, the releases of each client would together cost (epsilon 0.5"),
        ("a flaw", None, None),
    ):
        first = release(0, scoring, seed=seed)
        changed = replace(first.release, what="something else", flaw=flaw)
        heads = [first, replace(first, release=changed)]
        found = [line for line in describe_privacy(heads, scoring.privacy) if "cost" in line]
        assert [line.startswith(claim or "-") for line in found] == ([True] if claim else [])
