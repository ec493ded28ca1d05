"""What a run says about its privacy."""

import dataclasses
import re

import torch

from fedaux_pl.engine.released import describe_privacy
from fedaux_pl.scoring import Scoring, spent


def release(client, scoring, size=20):
    own = torch.rand(size, 4, generator=torch.Generator().manual_seed(client))
    return scoring.release(client, own, own, scoring.fit_map(own, own), 0)


def test_it_names_what_was_released_and_the_most_noise_with_its_sensitivity():
    mean = Scoring(scoring="mean", epsilon=0.5)
    lines = describe_privacy([release(0, mean), release(1, mean, 10)], secret_noise=True)
    assert len(lines) == 2
    assert lines[0].startswith("each client released the mean of its feature rows once: epsilon")
    assert "epsilon 0.5, delta 1e-05, analytic Gaussian mechanism" in lines[0]
    sigma = release(1, mean, 10).release.sigma
    assert lines[0].endswith(f" {sigma:.4g} at sensitivity 0.2 (with the fewest samples)")


def test_it_says_whether_the_noise_can_be_repeated():
    heads = [release(0, Scoring())]
    assert "comes from the seed of the run" in describe_privacy(heads, secret_noise=False)[1]
    assert not any("seed" in line for line in describe_privacy(heads, secret_noise=True))
    exact = [release(0, Scoring(epsilon=None))]
    lines = describe_privacy(exact, secret_noise=False)
    assert lines[0].endswith("once, WITHOUT noise: not private")
    assert not any("seed" in line for line in lines)


def test_several_releases_of_a_client_are_added_up():
    logistic, mean = Scoring(epsilon=0.3), Scoring(scoring="mean", epsilon=0.4, delta=1e-6)
    heads = [release(client, scoring) for client in range(3) for scoring in (logistic, mean)]
    lines = describe_privacy(heads, secret_noise=True)
    assert "its scoring head" in lines[0]
    assert "the mean of its feature rows" in lines[1]
    epsilon, delta = spent([heads[0].release, heads[1].release])
    assert epsilon < 0.7
    assert lines[2] == (
        f"the 2 releases of a client together cost at most epsilon {epsilon:g} at delta {delta:g}"
    )
    flawed = [*heads, release(0, dataclasses.replace(logistic, normalized=False))]
    assert any("does NOT hold" in line for line in describe_privacy(flawed, True))
    (total,) = (line for line in describe_privacy(flawed, True) if "together" in line)
    assert re.search(r"the 3 releases .* epsilon inf", total)


def test_without_scores_there_are_the_updates():
    (line,) = describe_privacy([], secret_noise=False)
    assert line == "the model updates that clients send in every round are NOT private"
