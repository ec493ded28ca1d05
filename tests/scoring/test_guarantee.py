"""The table of what leaves a client, its guarantee and its cost."""

from dataclasses import replace

import pytest
import torch

from fedaux_pl.scoring import (
    ClassStatistics,
    Guarantee,
    Identity,
    Logistic,
    Mean,
    Privacy,
    SecureSums,
    Step,
    Whitened,
    tabulate_releases,
)
from fedaux_pl.scoring.guarantee import SIMULATED
from tests.paper import paper_scoring


def release(scoring, seed=None):
    own = torch.rand(20, 4, generator=torch.Generator().manual_seed(0))
    return Step(scoring).release(0, own, own, scoring.fit_map(own, own), seed)


def tabulate(scoring, seed=None, **changes):
    head = release(scoring, seed)
    head = replace(head, release=replace(head.release, **changes))
    return tabulate_releases([head], scoring, scoring.feature_map)


def test_secret_noise_is_private_and_noise_from_a_seed_is_not():
    scoring = paper_scoring(scorer=Mean(), epsilon=0.5, feature_map=Whitened(3))
    sent = "once: the mean of its whitened features (3 dimensions)"
    assert tabulate(scoring) == [Guarantee(sent, "private", "(0.5, 1e-05)")]
    cost = "with secret noise (0.5, 1e-05)"
    assert tabulate(scoring, seed=3) == [Guarantee(sent, SIMULATED, cost)]
    assert SIMULATED.startswith("NOT private")


def test_no_noise_and_a_flaw_cost_everything():
    [exact] = tabulate(paper_scoring(epsilon=None))
    assert exact == Guarantee("once: its scoring head", "NOT private (no noise)", "unlimited")
    for seed in (None, 3):
        [flawed] = tabulate(paper_scoring(scorer=Logistic(normalized=False)), seed)
        assert flawed.guarantee.startswith("NOT private: the sensitivity is that of another")
        assert flawed.cost == "unlimited"


def test_features_that_are_not_mapped_have_no_adjective():
    scoring = paper_scoring(scorer=Mean(), feature_map=Identity())
    assert tabulate(scoring)[0].sent == "once: the mean of its features"


@pytest.mark.parametrize("simulated", [False, True])
def test_a_sum_states_both_guarantees_and_its_conditions(simulated):
    privacy = Privacy(1.0, secure=SecureSums(pins={"a": "key"}))
    scoring = replace(paper_scoring(scorer=Mean()), privacy=privacy)
    [row] = tabulate(scoring, summands=4, colluders=1, simulated=simulated)
    assert row.sent.endswith(", in a sum over 4 clients")
    assert "(1, 1e-05) if 3 of 4 clients are honest, (1, 1e-05) in any case" in row.cost
    assert row.cost.startswith("with secret noise") is simulated
    assert row.guarantee == (SIMULATED if simulated else "private")


def test_before_any_release():
    scoring = paper_scoring(scorer=ClassStatistics())
    [row] = tabulate_releases([], scoring, scoring.feature_map)
    assert row.guarantee == "nothing is released yet"
