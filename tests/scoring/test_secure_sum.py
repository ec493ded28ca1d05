"""The integers, the noise and the guarantee of secure sums; and an attack on them."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fedaux_pl.algorithms import FedClassMeans
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.scoring import (
    ClassStatistics,
    Identity,
    Privacy,
    PublicMap,
    ReleasedHead,
    Residuals,
    SecureSum,
    SecureSums,
    Step,
    Whitened,
    check_sums,
    plan,
    seeded_bytes,
)
from tests.scoring.test_audit import DELTA, EPSILON, FEW, epsilon_lower_bound

K, CLASSES = 2, 2
ROWS = torch.nn.functional.normalize(
    torch.randn(30, K, generator=torch.Generator().manual_seed(0)).double(), dim=1
)
LABELS = torch.eye(CLASSES)[torch.arange(30) % CLASSES]


def secure(summands=3, scorer=None, share=1.0, epsilon=EPSILON, **options):
    privacy = Privacy(epsilon, DELTA, secure=SecureSums(**options))
    scoring = FedClassMeans(privacy=privacy).release.scoring
    scoring = replace(scoring, scorer=scorer or ClassStatistics())
    return SecureSum(Step(scoring, share=share, summed=True), K, CLASSES, summands)


def parts(own, seed=0, rows=ROWS):
    """What each client adds to the sum; all have the same rows."""
    integers = own.step.summable.integer_vector(rows, LABELS)
    sources = (seeded_bytes(seed + i, own.step, integers) for i in range(own.summands))
    return [own.add_noise(integers, read) for read in sources]


@pytest.mark.parametrize(
    "scorer",
    [ClassStatistics(), Residuals(torch.ones(CLASSES, K).double(), torch.zeros(2).double())],
)
def test_a_sum_without_noise_is_that_of_the_vectors(scorer):
    own = secure(scorer=scorer, epsilon=None)
    head = own.head([4, 5, 6], sum(parts(own)), PublicMap(), simulated=True)
    exact = 3 * scorer.vector(ROWS, LABELS)
    torch.testing.assert_close(head.weight, exact, atol=2e-3, rtol=1e-3)
    assert (head.client, head.clients, head.release.sigma) == (4, (4, 5, 6), 0.0)


@pytest.mark.parametrize(("summands", "colluders"), [(3, 1), (20, 1), (20, 5)])
def test_the_noise_of_all_but_the_colluders_is_that_of_the_guarantee(summands, colluders):
    own = secure(summands, colluders=colluders)
    whole = own.step.scoring.privacy.cost(1.0).sigma * math.sqrt(own.squared_sensitivity)
    honest = own.client_sigma * math.sqrt(summands - colluders)
    assert whole < honest < whole * 1.0001
    record = own.cost(simulated=False)
    assert record.mu == pytest.approx(1 / own.step.scoring.privacy.cost(1.0).sigma, rel=1e-4)
    assert (record.summands, record.colluders, record.is_private) == (summands, colluders, True)


def test_seeded_noise_is_repeatable_and_fresh_in_every_release():
    own = secure()
    draw = [part - own.step.summable.integer_vector(ROWS, LABELS) for part in parts(own)]
    assert torch.equal(torch.stack(parts(own)), torch.stack(parts(own)))
    others = [
        parts(own, rows=-ROWS)[0] - own.step.summable.integer_vector(-ROWS, LABELS),
        parts(secure(epsilon=0.9))[0] - own.step.summable.integer_vector(ROWS, LABELS),
        draw[1],
    ]
    assert all(not torch.equal(draw[0], other) for other in others)
    correlations = [float(torch.corrcoef(torch.stack([draw[0], o]).double())[0, 1]) for o in others]
    assert max(map(abs, correlations)) < 0.9  # nine numbers each


@pytest.mark.parametrize(
    ("rho", "dimensions", "releases", "words"),
    [
        (1e6, 4, 1, "4 dimensions with second_moment 1e+06 .* above .* lower second_moment"),
        (0.15, 20_000, 1, "20000 dimensions .* above .* fewer dimensions"),
        (0.15, 17_000, 2, "17000 dimensions has .* above .* fewer dimensions"),
        (1e-12, 4, 1, "the noise of a client in steps: got .* to lie in 4 .* raise second_moment"),
    ],
)
def test_settings_that_no_site_accepts_later_are_refused(rho, dimensions, releases, words):
    scoring = secure(scorer=ClassStatistics(rho, releases)).step.scoring
    wide = replace(scoring, feature_map=Identity())
    models = {"wide": SimpleNamespace(feature_dim=dimensions)}
    with pytest.raises(ConfigurationError, match=words.replace("+", r"\+")):
        check_sums(plan(wide, None), models, CLASSES)
    local = replace(wide, privacy=Privacy())
    check_sums(plan(local, None), models, CLASSES)
    few = replace(scoring, scorer=ClassStatistics(releases=releases), feature_map=Whitened(8))
    check_sums(plan(few, None), models, CLASSES)


@pytest.mark.parametrize("rho", [1e-3, 0.15, 0.5, 1.0, 100.0])
@pytest.mark.parametrize("dimensions", [1, 64, 2048, 16_000])
def test_what_is_not_refused_at_the_start_is_not_refused_later(rho, dimensions):
    for count in (3, 20, 1000):
        own = replace(secure(count, ClassStatistics(rho)), row_length=dimensions)
        own.check()
        head = ReleasedHead(0, torch.zeros(1), PublicMap(), own.cost(simulated=False))
        own.step.check_release(head, 1, 0)


def games(summands, silent):
    """Projections of sums on neighboring data sets; one client colludes, ``silent`` add no noise.

    The attacker knows all integers but those of one record, and the noise of the colluding client.
    """
    own, results = secure(summands), []
    for sign in (1.0, -1.0):
        rows = ROWS.clone()
        rows[0] *= sign
        integers = own.step.summable.integer_vector(rows, LABELS)
        results.append(integers.double())
    difference = results[0] - results[1]
    read = seeded_bytes(1, own.step, torch.zeros(1, dtype=torch.int64))
    honest = summands - 1 - silent
    zeros = torch.zeros(2 * FEW * len(difference), dtype=torch.int64)
    noise = sum(own.add_noise(zeros, read).view(2, FEW, -1).double() for _ in range(honest))
    return [(noise[i] + results[i]) @ difference for i in range(2)]


def test_the_sum_survives_an_attack_and_the_attack_finds_missing_noise():
    assert epsilon_lower_bound(*games(3, silent=0)) <= EPSILON
    assert epsilon_lower_bound(*games(3, silent=1)) > EPSILON
