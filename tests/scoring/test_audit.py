"""An attack on every private scoring by an attacker who knows everything but the noise.

The attacker chooses two neighboring data sets, sees releases on each, and decides by the
likelihood ratio, which for Gaussian noise is the projection on the difference of the means. For an
(epsilon, delta)-private release and every event S, P(S) <= e^epsilon P'(S) + delta; so log((P(S) -
delta) / P'(S)) bounds epsilon from below. The probabilities are bounded by Clopper-Pearson
intervals on releases that had no part in the choice of S.

Sound scorings must survive the attack; the same function must catch broken ones.
"""

import dataclasses
import math

import pytest
import torch
from scipy import stats

from fedaux_pl import scoring as package
from fedaux_pl.functional import gaussian_sigma
from fedaux_pl.scoring import (
    Centered,
    ClassCounts,
    ClassStatistics,
    ClassSums,
    Logistic,
    Mean,
    Privacy,
    Residuals,
    Scorer,
    ScoresAndHead,
    Step,
    SummableScorer,
    Whitened,
    spent,
)
from tests.paper import paper_scoring

EPSILON, DELTA = 1.0, 0.05
ALL = 10_000  # releases on each data set
FEW = 4_000  # enough to catch what is broken: a bound of more than twice epsilon
ERROR = 1e-3  # of each of the two intervals

PUBLIC = torch.randn(300, 2, generator=torch.Generator().manual_seed(0)).double()
PUBLIC = PUBLIC @ torch.tensor([[3.0, 1.0], [0.0, 0.5]]).double() + torch.tensor([5.0, 7.0])


def epsilon_lower_bound(ones, others, delta=DELTA):
    """A lower bound on epsilon of confidence 1 - 2 ERROR, from equally many values of a statistic.

    ``ones`` come from the data set on which the statistic is larger.
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


def neighbors():
    """Rows (D_i, D_i', D^-) whose first record differs, each a worst case of some scoring."""
    axis, n = torch.eye(2).double(), 400
    quiet = torch.zeros(n, 2).double()
    turned = quiet.clone()
    quiet[0], turned[0] = axis[0], -axis[0]
    yield quiet, turned, axis[:1].repeat(n, 1)
    # one record that is a hundred times as long as every other
    same = axis[1:].repeat(n, 1)
    long = same.clone()
    long[0] *= 100
    yield same, long, axis[:1].repeat(n, 1)
    # a record on the wrong side of all others, turned where nothing but lambda resists it
    one = -axis[:1].repeat(n, 1)
    one[0] = torch.tensor([0.45, math.sqrt(1 - 0.45**2)])
    other = one.clone()
    other[0, 1] *= -1
    yield one, other, axis[:1].repeat(n, 1)


def in_features(rows, public):
    """Features that the public map takes to these rows."""
    x = rows if public.directions is None else rows @ torch.linalg.pinv(public.directions)
    return x if public.center is None else x + public.center


def worst_case(scoring):
    """The pair of data sets that moves the vector most, D^-, the public map and both vectors."""
    exact = dataclasses.replace(scoring, privacy=Privacy(epsilon=None))
    cases = []
    for pair in neighbors():
        *own, negatives = (in_features(rows, scoring.feature_map.fit(PUBLIC)) for rows in pair)
        public = scoring.fit_map(PUBLIC, negatives)
        vectors = [Step(exact).release(0, rows, negatives, public, None).weight for rows in own]
        cases.append((own, negatives, public, vectors))
    return max(cases, key=lambda case: (case[3][0] - case[3][1]).norm())


def audit(scoring, full=5, count=FEW):
    """A lower bound on the epsilon of a scoring, from ``count`` releases on each of the worst pair.

    Only the first ``full`` releases on each data set run map, scorer and noise. The vector before
    noise is always the same, so the others run the noise only: the first ones show that the results
    are equal bit for bit.
    """
    own, negatives, public, vectors = worst_case(scoring)
    direction = vectors[0] - vectors[1]
    budget, samples = scoring.privacy, []
    for side, (rows, vector) in enumerate(zip(own, vectors, strict=True)):
        seeds = range(side * count, (side + 1) * count)
        heads = [Step(scoring).release(0, rows, negatives, public, seed) for seed in seeds[:full]]
        sensitivity = heads[0].release.sensitivity
        weights = [budget.release(vector, sensitivity, seed)[0] for seed in seeds]
        assert all(torch.equal(h.weight, w) for h, w in zip(heads, weights[:full], strict=True))
        samples.append(torch.stack(weights) @ direction)
    return epsilon_lower_bound(*samples)


def scoring(scorer, **options):
    return paper_scoring(scorer=scorer, **({"epsilon": EPSILON, "delta": DELTA} | options))


LOGISTIC = Logistic(regularization=0.01, tolerance=1e-8)
WHITENED = {"feature_map": Whitened(dimensions=2, whitening=1.0), "norm_bound": "unit"}
CLASSICAL = {"feature_map": Centered(), "norm_bound": 0.5, "mechanism": "classical"}
NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("scorer", "options", "tight"),
    [
        (Mean(), {}, 0.5),
        (LOGISTIC, {}, 0.2),
        pytest.param(Mean(), WHITENED, 0.5, marks=NIGHTLY),
        pytest.param(Mean(), CLASSICAL, 0.0, marks=NIGHTLY),
        pytest.param(LOGISTIC, WHITENED, 0.2, marks=NIGHTLY),
    ],
)
def test_sound_scorings_survive(scorer, options, tight):
    """The attack is not blind: its lower bound is a good part of epsilon."""
    sound = scoring(scorer, **options)
    assert sound.flaw == ""
    assert tight < audit(sound, full=20, count=ALL) <= EPSILON


def test_every_scorer_is_attacked():
    parts = vars(package).values()
    kinds = [part for part in parts if isinstance(part, type) and issubclass(part, Scorer)]
    # these are attacked in scorers/test_labeled_scorers.py
    with_labels = {ClassStatistics, ClassSums, ClassCounts, Residuals, ScoresAndHead}
    assert set(kinds) == {Scorer, SummableScorer, Mean, Logistic} | with_labels


@pytest.mark.parametrize(
    ("scorer", "options"),
    [(dataclasses.replace(LOGISTIC, normalized=False), {}), (Mean(), {"norm_bound": "private"})],
)
def test_scorings_that_are_marked_as_flawed_are_caught(scorer, options):
    broken = scoring(scorer, **options)
    assert broken.flaw
    assert audit(broken) > EPSILON


@dataclasses.dataclass(frozen=True)
class HalfMean(Mean):
    """The sensitivity of a data set from which a record is removed, not replaced."""

    def sensitivity(self, num_positives, num_negatives):
        return 1 / num_positives


@dataclasses.dataclass(frozen=True)
class LooseLogistic(Logistic):
    """Theorem 1 with N = |D_i|^2 + |D^-|: a plausible mistake."""

    def sensitivity(self, num_positives, num_negatives):
        return super().sensitivity(num_positives**2, num_negatives)


@pytest.mark.parametrize("broken", [HalfMean(), LooseLogistic(0.01, tolerance=1e-8)])
def test_a_wrong_sensitivity_is_caught(broken):
    assert audit(scoring(broken)) > EPSILON


@pytest.mark.nightly
def test_three_releases_cost_what_their_composition_says():
    """The lower bound is at most the composed epsilon, and more than that of one release."""
    single = scoring(Mean())
    own, negatives, public, vectors = worst_case(single)
    records = [Step(single).release(0, own[0], negatives, public, None).release for _ in range(3)]
    epsilon, delta = spent(records, DELTA)
    assert delta == DELTA
    budget, samples = single.privacy, []
    for side, vector in enumerate(vectors):
        draws = [
            budget.release(vector, records[0].sensitivity, 3 * side * ALL + seed)[0]
            for seed in range(3 * ALL)
        ]
        samples.append(torch.stack(draws).view(ALL, 3, -1).sum(1) @ (vectors[0] - vectors[1]))
    assert EPSILON < epsilon_lower_bound(*samples) <= epsilon


def membership_game(scorer, count=5_000):
    """The lower bound of an attacker who sees 10,000 released heads, each from the whole path.

    It guesses whether the first record is a member by the likelihood ratio, up to a factor
    <w, row>: the released vector scores the record itself.
    """
    single = scoring(scorer, feature_map=Centered(), norm_bound="unit")
    generator = torch.Generator().manual_seed(1)
    record = PUBLIC[:1] + 1
    others = torch.randn(3, 2, generator=generator).double() + PUBLIC.mean(dim=0)
    opposite = 2 * PUBLIC.mean(dim=0) - record
    public = single.fit_map(PUBLIC, PUBLIC)
    samples = []
    for first in (record, opposite):
        own = torch.cat([first, others])
        heads = [Step(single).release(0, own, PUBLIC[:20], public, None) for _ in range(count)]
        samples.append(torch.stack([head.logits(record)[0] for head in heads]))
    return epsilon_lower_bound(*samples)


@pytest.mark.nightly
def test_a_membership_game_against_released_heads_stays_below_the_claim():
    assert 0.2 < membership_game(Mean()) <= EPSILON


@pytest.mark.nightly
def test_a_membership_game_is_won_when_the_noise_is_halved(monkeypatch):
    monkeypatch.setattr(
        "fedaux_pl.scoring.privacy.gaussian_sigma", lambda *options: gaussian_sigma(*options) / 2
    )
    assert membership_game(Mean()) > EPSILON


def test_without_noise_the_lower_bound_is_large():
    """Only the confidence intervals of 5000 correct decisions limit it."""
    ones, others = torch.ones(ALL), torch.zeros(ALL)
    assert epsilon_lower_bound(ones, others) > 5


def test_equal_data_sets_give_no_lower_bound():
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, ALL, generator=generator)
    assert epsilon_lower_bound(one, other) < 0.2
