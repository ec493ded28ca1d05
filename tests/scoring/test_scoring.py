import dataclasses
import math

import pytest
import torch

from fedaux_pl import FedAUX
from fedaux_pl.errors import PrivacyError
from fedaux_pl.functional import gaussian_sigma, scoring_sensitivity
from fedaux_pl.modules import ScoringHead
from fedaux_pl.scoring import (
    Calibration,
    Centered,
    FeatureMap,
    Logistic,
    Mean,
    MeanScoring,
    PaperScoring,
    Privacy,
    PublicMap,
    Scorer,
    Scoring,
    ScoringRecipe,
    Standardized,
    Step,
    Whitened,
)
from fedaux_pl.scoring.scorers.checks import check_converged
from tests.paper import Parts, paper_scoring

SCORERS = [Mean(), Logistic()]


def data(n=30, m=50, d=5):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, d, generator=generator) + 0.4, torch.rand(m, d, generator=generator)


def released(scoring, own=None, seed=1):
    default, negatives = data()
    public = scoring.fit_map(negatives, negatives)
    return Step(scoring).release(3, default if own is None else own, negatives, public, seed)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_bound": 0.7},
        {"norm_bound": "private", "mechanism": "classical"},
        {"norm_bound": "unit"},
        {"scorer": Logistic(normalized=False, regularization=0.01)},
    ],
)
def test_the_papers_head_is_that_of_scoring_head(options):
    """As ScoringHead releases it, to the last bit."""
    scoring = paper_scoring(epsilon=0.5, **options)
    head = released(scoring)
    module = ScoringHead(scoring=Parts(scoring.scorer, norm_bound=scoring.norm_bound))
    module.fit_features(*data())
    weight = module.release(0.5, 1e-5, scoring.privacy.mechanism, noise_seed=1)
    assert torch.equal(head.weight, weight)
    assert head.release == module.ledger[0]
    assert head.public_map.bound == module.public_map.bound
    x = torch.rand(9, 5)
    logits = head.logits(x)
    torch.testing.assert_close(scoring.calibration.scores(logits, logits), module(x))


def test_the_mean_of_whitened_rows_written_out():
    own, negatives = data()
    options = {"feature_map": Whitened(dimensions=3), "norm_bound": "unit"}
    scoring = paper_scoring(scorer=Mean(), epsilon=None, **options)
    public = scoring.fit_map(torch.cat([own, negatives]), negatives)
    head = Step(scoring).release(0, own, negatives, public, None)
    rows = (own.double() - public.center) @ public.directions
    rows = rows / rows.norm(dim=1, keepdim=True)
    torch.testing.assert_close(head.weight, rows.mean(dim=0))
    x = torch.rand(4, 5).double()
    mapped = (x - public.center) @ public.directions
    expected = torch.stack([row @ head.weight / row.norm() for row in mapped])
    torch.testing.assert_close(head.logits(x), expected)


@pytest.mark.cuda
@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize("options", [{}, {"feature_map": Whitened(), "norm_bound": "unit"}])
def test_a_gpu_releases_the_same(scorer, options):
    """What leaves lies on the CPU; scores are where the features are.

    Without noise: seeded noise depends on the last digits of the vector, which devices round.
    """
    scoring = paper_scoring(scorer=scorer, epsilon=None, calibration=Standardized(5.0), **options)
    own, negatives = data()
    results = []
    for device in ("cpu", "cuda"):
        on = [x.to(device) for x in (own, negatives)]
        public = scoring.fit_map(torch.cat(on), on[1])
        head = Step(scoring).release(0, on[0], on[1], public, 1)
        logits = head.logits(on[0])
        scores = scoring.calibration.scores(logits, head.logits(on[1]))
        assert head.weight.device.type == "cpu"
        assert scores.device.type == device
        results.append((head.weight, scores.cpu()))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


def test_every_release_has_a_record_of_its_guarantee():
    mean = released(paper_scoring(scorer=Mean(), epsilon=0.3, delta=1e-6)).release
    assert (mean.epsilon, mean.delta, mean.mechanism) == (0.3, 1e-6, "analytic")
    assert mean.sensitivity == 2 / 30
    assert mean.sigma == gaussian_sigma(0.3, 1e-6, 2 / 30)
    assert (mean.flaw, mean.what) == ("", "the mean of its feature rows")
    logistic = released(paper_scoring()).release
    assert logistic.sensitivity == scoring_sensitivity(0.1, 80, 1e-10)
    assert logistic.what == "its scoring head"
    nothing = released(paper_scoring(scorer=Mean(), epsilon=None)).release
    assert (nothing.epsilon, nothing.mechanism) == (math.inf, "none")
    unnormalized = Logistic(normalized=False)
    flawed = released(paper_scoring(norm_bound="private", scorer=unnormalized)).release
    assert "largest of private data; the sensitivity is that of another" in flawed.flaw
    assert released(paper_scoring(scorer=Mean(), norm_bound="private")).release.flaw


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize("bound", ["negatives", "unit", 0.5])
def test_only_the_vector_depends_on_the_clients_data(scorer, bound):
    """All else that is sent is the same for two clients with as many samples."""
    scoring = paper_scoring(scorer=scorer, norm_bound=bound, feature_map=Centered())
    one, other = released(scoring), released(scoring, own=100 * torch.rand(30, 5))
    assert not torch.equal(one.weight, other.weight)
    assert one.release == other.release
    one_map, other_map = one.public_map, other.public_map
    assert (one_map.bound, one_map.unit) == (other_map.bound, other_map.unit)
    assert torch.equal(one_map.center, other_map.center)


def test_the_mean_does_not_use_the_negatives():
    scoring = paper_scoring(scorer=Mean(), norm_bound=1.0)
    own, negatives = data()
    public = scoring.fit_map(negatives, negatives)
    heads = [Step(scoring).release(0, own, x, public, 1) for x in (negatives, negatives * math.nan)]
    assert torch.equal(heads[0].weight, heads[1].weight)


def test_the_defaults_of_the_parts_are_those_of_fedaux():
    parts = FedAUX().release.scoring
    assert (parts.scorer, parts.feature_map) == (Mean(), Whitened())
    assert (parts.calibration, parts.privacy) == (Standardized(), Privacy())


def test_a_fit_that_did_not_converge_is_not_released():
    with pytest.raises(PrivacyError, match="above the tolerance of 1e-30"):
        released(paper_scoring(scorer=Logistic(tolerance=1e-30)), own=data(60)[0])
    with pytest.raises(PrivacyError, match="a gradient norm of nan"):
        check_converged(math.nan, tolerance=1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_record_without_finite_features_is_released_as_0(value):
    """That a release fails would tell the server about the record."""
    own, _ = data()
    own[4, 2] = value
    scoring = paper_scoring(scorer=Mean(), norm_bound="unit", epsilon=None)
    with pytest.warns(UserWarning, match="1 of 30 private records have features that are not fin"):
        head = released(scoring, own)
    others = torch.nn.functional.normalize(own[torch.arange(30) != 4].double(), dim=1)
    torch.testing.assert_close(head.weight, others.sum(dim=0) / 30)
    with pytest.raises(ValueError, match="NaN or infinity"):  # public ones are an error
        head.public_map.rows(own)


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: paper_scoring(norm_bound="largest"), "got 'largest'; .*a positive number"),
        (lambda: paper_scoring(norm_bound=-1.0), "got -1.0; expected to .*a positive number"),
        (lambda: Logistic(regularization=0.0), "lambda: got .*; expected to be positive"),
        (
            lambda: paper_scoring(norm_bound="private", calibration=Standardized()),
            "norm_bound is private, which needs .* a calibration that does not shrink, such as Sig",
        ),
    ],
)
def test_options_are_refused(create, message):
    with pytest.raises(ValueError, match=message):
        create()


def test_a_number_that_public_features_do_not_give():
    zeros = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"among the negatives: got 0\.0; expected to be positive"):
        paper_scoring().fit_map(zeros, zeros)


@dataclasses.dataclass(frozen=True)
class ScaledMean(Scorer):
    """A scorer of a user: the mean of the rows, scaled."""

    what = "a scaled mean"
    scale: float = 0.25

    def vector(self, rows, labels=None, negatives=None):
        return self.scale * Mean().vector(rows)

    def sensitivity(self, num_positives, num_negatives):
        return self.scale * Mean().sensitivity(num_positives, 0)


@dataclasses.dataclass(frozen=True)
class FirstFeatures(FeatureMap):
    """A feature map of a user: the first features."""

    uses_auxiliary = False
    count: int = 2

    def fit(self, features):
        return PublicMap(directions=torch.eye(features.shape[1], self.count).double())


@dataclasses.dataclass(frozen=True)
class Exponential(Calibration):
    """A calibration of a user."""

    base: float = 2.0

    def scores(self, logits, reference):
        return self.base**logits


@dataclasses.dataclass(frozen=True)
class OwnScoring(ScoringRecipe):
    """A recipe of a user."""

    scale: float = 0.25
    count: int = 2

    def create(self, privacy):
        parts = ScaledMean(self.scale), FirstFeatures(self.count), Exponential()
        return Scoring(*parts, privacy=privacy)


def test_user_defined_parts_need_no_registration():
    algorithm = FedAUX(scoring=OwnScoring(scale=0.5, count=3), privacy=Privacy(0.5))
    scoring = algorithm.release.scoring
    head = released(scoring)
    assert head.weight.shape == (3,)
    assert head.release.sensitivity == 2 / 30 / 2
    assert head.release.what == "a scaled mean"
    settings = algorithm.settings()
    assert settings["scorer"] == {"class": f"{__name__}.ScaledMean", "scale": 0.5}
    logits = head.logits(torch.rand(4, 5))
    assert torch.equal(scoring.calibration.scores(logits, logits), 2.0**logits)


def heads_of(scoring, count=4):
    own, negatives = data()
    public = scoring.fit_map(negatives, negatives)
    return [Step(scoring).release(i, own, negatives, public, noise_seed=i) for i in range(count)]


def test_shrinking_makes_heads_equal_that_differ_by_noise_only():
    scoring = MeanScoring(dimensions=5).create(Privacy())
    heads = heads_of(scoring)
    shrunk = scoring.shrink_heads(heads)
    assert [head.client for head in shrunk] == [0, 1, 2, 3]
    assert [head.release for head in shrunk] == [head.release for head in heads]
    before = torch.stack([head.weight for head in heads])
    after = torch.stack([head.weight for head in shrunk])
    assert after.var(dim=0).mean() < 0.5 * before.var(dim=0).mean()
    torch.testing.assert_close(after.mean(dim=0), before.mean(dim=0))


def test_without_shrinking_or_noise_heads_are_unchanged():
    for scoring in (PaperScoring().create(Privacy()), MeanScoring().create(Privacy(None))):
        heads = heads_of(scoring)
        for head, same in zip(heads, scoring.shrink_heads(heads), strict=True):
            torch.testing.assert_close(head.weight, same.weight)


@pytest.mark.parametrize("name", ["scorer", "feature_map", "calibration"])
def test_parts_must_be_objects(name):
    """null in YAML, or the class in place of an object of it."""
    with pytest.raises(ValueError, match=f"{name}: got None; expected to be a .* object"):
        paper_scoring(**{name: None})
    with pytest.raises(ValueError, match=f"{name}: got .*; expected to be a .* object"):
        paper_scoring(**{name: Mean})
