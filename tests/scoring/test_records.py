"""The sentences of the log about privacy."""

import dataclasses
import re

import torch

from fedaux_pl.scoring import Logistic, Mean, spent
from fedaux_pl.scoring.records import describe_privacy
from tests.paper import paper_scoring


def release(client, scoring, size=20):
    own = torch.rand(size, 4, generator=torch.Generator().manual_seed(client))
    return scoring.release(client, own, own, scoring.fit_map(own, own), 0)


def test_the_release_and_the_largest_noise_with_its_sensitivity():
    mean = paper_scoring(scorer=Mean(), epsilon=0.5)
    lines = describe_privacy([release(0, mean), release(1, mean, 10)], secret_noise=True)
    assert len(lines) == 2
    assert lines[0].startswith("each client released the mean of its feature rows once: epsilon")
    assert "epsilon 0.5, delta 1e-05, analytic Gaussian mechanism" in lines[0]
    sigma = release(1, mean, 10).release.sigma
    assert lines[0].endswith(f" {sigma:.4g} at sensitivity 0.2 (the largest of all clients)")


def test_noise_from_the_seed_is_mentioned():
    heads = [release(0, paper_scoring())]
    assert "comes from the seed of the run" in describe_privacy(heads, secret_noise=False)[1]
    assert not any("seed" in line for line in describe_privacy(heads, secret_noise=True))
    exact = [release(0, paper_scoring(epsilon=None))]
    lines = describe_privacy(exact, secret_noise=False)
    assert lines[0].endswith("once, WITHOUT noise: not private")
    assert not any("seed" in line for line in lines)


def test_several_releases_of_a_client_are_composed():
    logistic = paper_scoring(epsilon=0.3)
    mean = paper_scoring(scorer=Mean(), epsilon=0.4, delta=1e-6)
    heads = [release(client, scoring) for client in range(3) for scoring in (logistic, mean)]
    lines = describe_privacy(heads, secret_noise=True)
    assert "its scoring head" in lines[0]
    assert "the mean of its feature rows" in lines[1]
    epsilon, delta = spent([heads[0].release, heads[1].release])
    assert epsilon < 0.7
    assert lines[2] == (
        f"the 2 releases of a client together cost at most epsilon {epsilon:g} at delta {delta:g}"
    )
    flawed = [*heads, release(0, dataclasses.replace(logistic, scorer=Logistic(normalized=False)))]
    assert any("does NOT hold" in line for line in describe_privacy(flawed, True))
    (total,) = (line for line in describe_privacy(flawed, True) if "together" in line)
    assert re.search(r"the 3 releases .* epsilon inf", total)


def test_without_releases_only_the_updates_are_mentioned():
    (line,) = describe_privacy([], secret_noise=False)
    assert line == "the model updates that clients send in every round are NOT private"
