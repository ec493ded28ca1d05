import dataclasses
import math

import pytest
import torch

from fedaux_pl.errors import PrivacyError
from fedaux_pl.functional import gaussian_sigma, scoring_sensitivity
from fedaux_pl.modules import ScoringHead
from fedaux_pl.scoring import SCORERS, Logistic, Mean, Scorer, Scoring


def data(n=30, m=50, d=5):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, d, generator=generator) + 0.4, torch.rand(m, d, generator=generator)


def released(scoring, own=None, seed=1):
    default, negatives = data()
    public = scoring.fit_map(negatives, negatives)
    return scoring.release(3, default if own is None else own, negatives, public, seed)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_bound": 0.7},
        {"norm_bound": "private", "mechanism": "classical"},
        {"normalized": False, "regularization": 0.01},
    ],
)
def test_the_default_is_the_papers_head(options):
    """As ScoringHead releases it, to the last bit."""
    scoring = Scoring(epsilon=0.5, **options)
    head = released(scoring)
    options = {k: v for k, v in options.items() if k != "mechanism"}
    module = ScoringHead(**options)
    module.fit_features(*data())
    weight = module.release(0.5, 1e-5, scoring.mechanism, noise_seed=1)
    assert torch.equal(head.weight, weight)
    assert head.release == module.ledger[0]
    assert head.public.bound == module.bound
    x = torch.rand(9, 5)
    logits = head.logits(x)
    torch.testing.assert_close(scoring.calibrator.scores(logits, logits), module(x))


def test_the_mean_of_whitened_rows_written_out():
    own, negatives = data()
    options = {"feature_map": "whitened", "dimensions": 3, "norm_bound": "unit"}
    scoring = Scoring(scoring="mean", epsilon=None, **options)
    public = scoring.fit_map(torch.cat([own, negatives]), negatives)
    head = scoring.release(0, own, negatives, public, None)
    rows = (own.double() - public.centre) @ public.directions
    rows = rows / rows.norm(dim=1, keepdim=True)
    torch.testing.assert_close(head.weight, rows.mean(dim=0))
    x = torch.rand(4, 5).double()
    mapped = (x - public.centre) @ public.directions
    expected = torch.stack([row @ head.weight / row.norm() for row in mapped])
    torch.testing.assert_close(head.logits(x), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize("options", [{}, {"feature_map": "whitened", "norm_bound": "unit"}])
def test_a_gpu_releases_the_same(name, options):
    """What leaves lies on the CPU; scores are where the features are."""
    scoring = Scoring(scoring=name, epsilon=1.0, calibration="standardise", **options)
    own, negatives = data()
    results = []
    for device in ("cpu", "cuda"):
        on = [x.to(device) for x in (own, negatives)]
        public = scoring.fit_map(torch.cat(on), on[1])
        head = scoring.release(0, on[0], on[1], public, 1)
        logits = head.logits(on[0])
        scores = scoring.calibrator.scores(logits, head.logits(on[1]))
        assert head.weight.device.type == "cpu"
        assert scores.device.type == device
        results.append((head.weight, scores.cpu()))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


def test_every_release_says_what_it_guarantees():
    mean = released(Scoring(scoring="mean", epsilon=0.3, delta=1e-6)).release
    assert (mean.epsilon, mean.delta, mean.mechanism) == (0.3, 1e-6, "analytic")
    assert mean.sensitivity == 2 / 30
    assert mean.sigma == gaussian_sigma(0.3, 1e-6, 2 / 30)
    assert (mean.flaw, mean.what) == ("", "the mean of its feature rows")
    logistic = released(Scoring()).release
    assert logistic.sensitivity == scoring_sensitivity(0.1, 80, 1e-10)
    assert logistic.what == "its scoring head"
    nothing = released(Scoring(scoring="mean", epsilon=None)).release
    assert (nothing.epsilon, nothing.mechanism) == (math.inf, "none")
    flawed = released(Scoring(norm_bound="private", normalized=False)).release
    assert "largest of private data; the sensitivity is that of another" in flawed.flaw
    assert released(Scoring(scoring="mean", norm_bound="private")).release.flaw
    # what has no effect is no flaw
    assert released(Scoring(scoring="mean", normalized=False)).release.flaw == ""


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize("bound", ["negatives", "unit", 0.5])
def test_nothing_but_the_vector_depends_on_the_clients_data(name, bound):
    """All else that is sent is the same for two clients with as many samples."""
    scoring = Scoring(scoring=name, norm_bound=bound, feature_map="centred")
    one, other = released(scoring), released(scoring, own=100 * torch.rand(30, 5))
    assert not torch.equal(one.weight, other.weight)
    assert one.release == other.release
    assert (one.public.bound, one.public.unit) == (other.public.bound, other.public.unit)
    assert torch.equal(one.public.centre, other.public.centre)


def test_the_mean_never_sees_the_negatives():
    scoring = Scoring(scoring="mean", norm_bound=1.0)
    own, negatives = data()
    public = scoring.fit_map(negatives, negatives)
    heads = [scoring.release(0, own, x, public, 1) for x in (negatives, negatives * math.nan)]
    assert torch.equal(heads[0].weight, heads[1].weight)


def test_what_determines_a_release_and_what_does_not():
    base = Scoring().release_settings()
    same = [{"calibration": "standardise"}, {"sharpness": 2.0}, {"xi": 1e-3}, {"dimensions": 3}]
    for options in same:
        assert Scoring(**options).release_settings() == base
    others = [
        *({"epsilon": None}, {"delta": 1e-6}, {"mechanism": "classical"}, {"norm_bound": "unit"}),
        *({"regularization": 0.2}, {"normalized": False}, {"tolerance": 1e-9}),
        *({"scoring": "mean"}, {"feature_map": "centred"}, {"feature_map": "whitened"}),
    ]
    for options in others:
        assert Scoring(**options).release_settings() != base
    mean = Scoring(scoring="mean")
    assert mean.release_settings() == dataclasses.replace(mean, tolerance=1).release_settings()
    whitened = Scoring(feature_map="whitened")
    assert whitened.release_settings()["dimensions"] == 64


def test_a_fit_that_did_not_converge_is_not_released():
    with pytest.raises(PrivacyError, match="above the tolerance of 1e-30"):
        released(Scoring(tolerance=1e-30), own=data(60)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scoring": "median"}, "scoring must be one of logistic, mean, but is 'median'"),
        ({"feature_map": "pca"}, "must be one of none, centred, whitened, but is 'pca'"),
        ({"calibration": "z"}, "calibration must be one of none, standardise, but is 'z'"),
        ({"norm_bound": "largest"}, "'unit', 'private' or a positive number, but is 'largest'"),
        ({"norm_bound": -1.0}, "a positive number, but is -1.0"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"delta": 1.0}, "delta must lie strictly between 0 and 1"),
        ({"regularization": 0.0}, "lambda must be positive"),
        ({"feature_map": "whitened", "dimensions": 0}, "dimensions must be at least 1, but is 0"),
        ({"calibration": "standardise", "sharpness": 0.0}, "sharpness must be above 0"),
    ],
)
def test_settings_refuse(options, message):
    with pytest.raises(ValueError, match=message):
        Scoring(**options)


def test_a_number_that_public_features_do_not_give():
    zeros = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"largest norm among the negatives is 0\.0"):
        Scoring().fit_map(zeros, zeros)


def test_a_further_scoring_is_a_class_and_a_line(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class FirstQuarter(Scorer):
        """The mean of rows, by a quarter; options are taken from those of Scoring by name."""

        uses_negatives = False
        what = "a quarter of the mean"
        regularization: float

        def vector(self, positives, negatives, bound):
            return Mean().vector(positives, negatives, bound) / 4

        def sensitivity(self, num_positives, num_negatives):
            return Mean().sensitivity(num_positives, 0) / 4 * self.regularization

    monkeypatch.setitem(SCORERS, "quarter", FirstQuarter)
    head = released(Scoring(scoring="quarter", regularization=2.0))
    assert head.release.sensitivity == 2 / 30 / 2
    assert head.release.what == "a quarter of the mean"
    assert isinstance(Scoring().scorer, Logistic)


def heads_of(scoring, count=4):
    own, negatives = data()
    public = scoring.fit_map(negatives, negatives)
    return [scoring.release(i, own, negatives, public, noise_seed=i) for i in range(count)]


def test_shrinking_makes_those_alike_who_differ_by_noise_alone():
    scoring = Scoring(scoring="mean", norm_bound="unit", shrink=True)
    heads = heads_of(scoring)
    denoised = scoring.denoised(heads)
    assert [head.client for head in denoised] == [0, 1, 2, 3]
    assert [head.release for head in denoised] == [head.release for head in heads]
    before = torch.stack([head.weight for head in heads])
    after = torch.stack([head.weight for head in denoised])
    assert after.var(dim=0).mean() < 0.5 * before.var(dim=0).mean()
    torch.testing.assert_close(after.mean(dim=0), before.mean(dim=0))


def test_without_shrinking_or_noise_heads_stay():
    for options in ({"shrink": False}, {"shrink": True, "epsilon": None}):
        scoring = Scoring(scoring="mean", norm_bound="unit", **options)
        heads = heads_of(scoring)
        for head, same in zip(heads, scoring.denoised(heads), strict=True):
            torch.testing.assert_close(head.weight, same.weight)


def test_shrinking_is_no_part_of_a_release():
    """Nobody is asked again to try it."""
    assert Scoring(shrink=True).release_settings() == Scoring().release_settings()


def test_shrinking_needs_rows_on_one_scale():
    with pytest.raises(ValueError, match="set shrink to false, or choose a public norm_bound"):
        Scoring(norm_bound="private", shrink=True)
