"""An attack on every private scoring, with what an attacker may know: all but the noise.

The attacker chooses two neighbouring data sets, sees releases on each, and decides by the
likelihood ratio, which for Gaussian noise is the projection on the difference of the means. For an
(epsilon, delta)-private release and every event S, P(S) <= e^epsilon P'(S) + delta; so log((P(S) -
delta) / P'(S)) bounds epsilon from below. The probabilities are bounded by Clopper-Pearson
intervals on releases that had no part in the choice of S.

What holds must survive; what is broken must be caught by the same function.
"""

import dataclasses
import math

import pytest
import torch
from scipy import stats

from fedaux_pl.scoring import SCORERS, Logistic, Mean, Scoring, spent

EPSILON, DELTA = 1.0, 0.05
ALL = 6_000  # releases on each data set
ERROR = 1e-3  # of each of the two intervals

PUBLIC = torch.randn(300, 2, generator=torch.Generator().manual_seed(0)).double()
PUBLIC = PUBLIC @ torch.tensor([[3.0, 1.0], [0.0, 0.5]]).double() + torch.tensor([5.0, 7.0])


def epsilon_lower_bound(ones, others, delta=DELTA):
    """What epsilon is at least, with confidence 1 - 2 ERROR, by as many values of a statistic.

    ``ones`` come from the data set on which the statistic is the larger.
    """
    learn = [values[: len(values) // 2] for values in (ones, others)]
    judge = [values[len(values) // 2 :] for values in (ones, others)]

    def bound(samples, threshold, above):
        if above:  # S: the ones lie above
            hits, alarms = (int((values > threshold).sum()) for values in samples)
        else:  # S: the others lie below
            alarms, hits = (int((values <= threshold).sum()) for values in samples)
        n = len(samples[0])
        least = stats.beta.ppf(ERROR, hits, n - hits + 1) if hits else 0.0
        most = stats.beta.ppf(1 - ERROR, alarms + 1, n - alarms) if alarms < n else 1.0
        return math.log((least - delta) / most) if least > delta else -math.inf

    levels = torch.linspace(0.01, 0.99, 50).to(ones)
    thresholds = torch.cat([torch.quantile(values, levels) for values in learn]).tolist()
    choices = [(threshold, above) for threshold in thresholds for above in (True, False)]
    return bound(judge, *max(choices, key=lambda choice: bound(learn, *choice)))


def neighbours():
    """(D_i, D_i', D^-) in rows: pairs that differ in the first record, each bad for something."""
    axis, n = torch.eye(2).double(), 400
    quiet = torch.zeros(n, 2).double()
    turned = quiet.clone()
    quiet[0], turned[0] = axis[0], -axis[0]
    yield quiet, turned, axis[:1].repeat(n, 1)
    # one record that is a hundred times as long as every other
    alike = axis[1:].repeat(n, 1)
    long = alike.clone()
    long[0] *= 100
    yield alike, long, axis[:1].repeat(n, 1)
    # a record on the wrong side of all others, turned where nothing but lambda resists it
    one = -axis[:1].repeat(n, 1)
    one[0] = torch.tensor([0.45, math.sqrt(1 - 0.45**2)])
    other = one.clone()
    other[0, 1] *= -1
    yield one, other, axis[:1].repeat(n, 1)


def in_features(rows, public):
    """Features that the public map takes to these rows."""
    x = rows if public.directions is None else rows @ torch.linalg.pinv(public.directions)
    return x if public.centre is None else x + public.centre


def worst_case(scoring):
    """The pair, as features, that moves the vector most; the exact vectors; and the public map."""
    exact = dataclasses.replace(scoring, epsilon=None)
    cases = []
    for pair in neighbours():
        *own, negatives = (in_features(rows, scoring.map.fit(PUBLIC)) for rows in pair)
        public = scoring.fit_map(PUBLIC, negatives)
        vectors = [exact.release(0, rows, negatives, public, None).weight for rows in own]
        cases.append((own, negatives, public, vectors))
    return max(cases, key=lambda case: (case[3][0] - case[3][1]).norm())


def audit(scoring, full=5):
    """A lower bound on the epsilon of a scoring, by its own releases on the worst pair.

    The first ``full`` on each data set are whole: map, vector, noise. The vector is the same every
    time, so that the others repeat the last step alone, which gives the same to the last bit.
    """
    own, negatives, public, vectors = worst_case(scoring)
    direction = vectors[0] - vectors[1]
    budget, samples = scoring.budget, []
    for side, (rows, vector) in enumerate(zip(own, vectors, strict=True)):
        seeds = range(side * ALL, (side + 1) * ALL)
        heads = [scoring.release(0, rows, negatives, public, seed) for seed in seeds[:full]]
        sensitivity = heads[0].release.sensitivity
        weights = [budget.release(vector, sensitivity, seed)[0] for seed in seeds]
        assert all(torch.equal(h.weight, w) for h, w in zip(heads, weights[:full], strict=True))
        samples.append(torch.stack(weights) @ direction)
    return epsilon_lower_bound(*samples)


def scoring(name, **options):
    defaults = {"epsilon": EPSILON, "delta": DELTA, "regularization": 0.01, "tolerance": 1e-8}
    return Scoring(scoring=name, **(defaults | options))


WHITENED = {"feature_map": "whitened", "dimensions": 2, "norm_bound": "unit"}


@pytest.mark.parametrize(
    ("name", "options", "tight"),
    [
        ("mean", {}, 0.6),
        ("mean", WHITENED, 0.6),
        ("mean", {"feature_map": "centred", "norm_bound": 0.5, "mechanism": "classical"}, 0.0),
        ("logistic", {}, 0.3),
        ("logistic", WHITENED, 0.3),
    ],
)
def test_what_is_claimed_survives(name, options, tight):
    """And the attack is not blind: it finds a good part of the epsilon that is there."""
    sound = scoring(name, **options)
    assert sound.flaw == ""
    assert tight < audit(sound, full=100) <= EPSILON


def test_every_scoring_is_attacked():
    assert set(SCORERS) == {"mean", "logistic"}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("logistic", {"normalized": False}),
        ("mean", {"norm_bound": "private"}),
    ],
)
def test_what_the_records_call_flawed_is_caught(name, options):
    broken = scoring(name, **options)
    assert broken.flaw
    assert audit(broken) > EPSILON


@dataclasses.dataclass(frozen=True)
class HalfMean(Mean):
    """The sensitivity of a data set from which a record is removed, not replaced."""

    def sensitivity(self, num_positives, num_negatives):
        return 1 / num_positives


@dataclasses.dataclass(frozen=True)
class LooseLogistic(Logistic):
    """Theorem 1 with N = |D_i|^2: the kind of slip that a formula invites."""

    def sensitivity(self, num_positives, num_negatives):
        return super().sensitivity(num_positives**2, num_negatives)


@pytest.mark.parametrize("broken", [HalfMean, LooseLogistic])
def test_a_wrong_sensitivity_is_caught(broken, monkeypatch):
    monkeypatch.setitem(SCORERS, "broken", broken)
    assert audit(scoring("broken")) > EPSILON


def test_two_releases_cost_what_the_ledger_says():
    """Not more than composed, and more than either alone."""
    single = scoring("mean")
    own, negatives, public, vectors = worst_case(single)
    records = [single.release(0, own[0], negatives, public, seed).release for seed in range(2)]
    epsilon, delta = spent(records, DELTA)
    assert delta == DELTA
    budget, samples = single.budget, []
    for side, vector in enumerate(vectors):
        draws = [
            budget.release(vector, records[0].sensitivity, 2 * side * ALL + seed)[0]
            for seed in range(2 * ALL)
        ]
        samples.append(torch.stack(draws).view(ALL, 2, -1).sum(1) @ (vectors[0] - vectors[1]))
    assert EPSILON < epsilon_lower_bound(*samples) <= epsilon


def test_without_any_noise_the_two_are_told_apart():
    """The intervals alone limit what 3000 certain answers can show."""
    ones, others = torch.ones(ALL), torch.zeros(ALL)
    assert epsilon_lower_bound(ones, others) > 5


def test_the_same_data_show_nothing():
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, ALL, generator=generator)
    assert epsilon_lower_bound(one, other) < 0.2
