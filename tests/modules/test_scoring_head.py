import copy
import functools
import io
import math
import pickle

import pytest
import torch
from scipy import stats
from torch.utils.data import DataLoader
from torchmetrics.functional.classification import binary_auroc

from fedaux_pl.errors import PrivacyError
from fedaux_pl.functional import fit_scoring_head, gaussian_sigma, scoring_sensitivity
from fedaux_pl.models import create_model
from fedaux_pl.modules import ScoringHead
from fedaux_pl.scoring import (
    Logistic,
    MeanScoring,
    PaperScoring,
    Privacy,
    Sigmoid,
    StatisticsScoring,
    Step,
)
from tests import texts
from tests.modules.conftest import SMALL, loader
from tests.paper import Parts

PAPER = PaperScoring()


def features(n=60, m=90, d=5):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, d, generator=generator) + 0.4, torch.rand(m, d, generator=generator)


def fitted(scoring=PAPER):
    head = ScoringHead(scoring=scoring)
    head.fit_features(*features())
    return head


def membership(positives, negatives):
    flags = torch.cat([torch.ones(len(positives)), torch.zeros(len(negatives))])
    return torch.cat([positives, negatives]), flags


def test_a_fit_under_a_trainer_solves_the_papers_problem(trainer):
    positives, negatives = features()
    head = ScoringHead(scoring=PaperScoring(0.05))
    fit = trainer(max_epochs=5)
    fit.fit(head, loader(*membership(positives, negatives), shuffle=True))
    assert fit.current_epoch == 1  # it stops by itself
    bound = negatives.double().norm(dim=1).max()
    rows = [x.double() / x.double().norm(dim=1, keepdim=True).clamp(min=bound) for x in features()]
    expected, _ = fit_scoring_head(rows[0], rows[1], 0.05)
    torch.testing.assert_close(head.release_without_privacy(), expected, rtol=0, atol=1e-8)
    assert 0.5 < fit.callback_metrics["train/auroc"] <= 1
    assert all(f"``{name}``" in str(ScoringHead.__doc__) for name in fit.callback_metrics)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_it_tells_a_clients_images_from_the_negatives(trainer, digits, precision):
    train = digits.train()
    own = train.inputs[train.labels == 0]
    torch.manual_seed(0)
    model = create_model("resnet8", 10, **SMALL)
    head = ScoringHead(model, PaperScoring(1e-4))
    trainer(precision=precision).fit(head, loader(*membership(own, digits.auxiliary())))
    head.release_without_privacy()
    test = digits.test()
    scores = torch.cat(trainer(precision=precision).predict(head, loader(test.inputs)))
    assert binary_auroc(scores, (test.labels == 0).long()) > 0.8
    assert all(p.requires_grad for p in model.parameters())


def test_images_beyond_the_unit_range_are_refused(trainer, digits):
    images = digits.train().inputs[:8].float()
    message = r"images: got 0 to 255; expected \[0, 1\]"
    with pytest.raises(ValueError, match=message):
        trainer().fit(
            ScoringHead("resnet8", model_options=SMALL), loader(images, torch.arange(8) % 2)
        )
    head = ScoringHead("resnet8", model_options=SMALL)
    trainer().fit(head, loader(images / 255, torch.arange(8) % 2))
    head.release(1.0, 1e-5)
    with pytest.raises(ValueError, match=message):
        head(images)


def test_h0_is_unchanged(trainer, digits):
    model = create_model("resnet8", 10, **SMALL)
    before = copy.deepcopy(model.state_dict())
    data = membership(digits.train().inputs[:50], digits.auxiliary()[:50])
    trainer().fit(ScoringHead(model), loader(*data))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_noise_is_gaussian_with_the_sigma_of_the_guarantee():
    """600 releases of 5 coordinates: Kolmogorov-Smirnov against the normal distribution."""
    head = fitted()
    exact = head.release_without_privacy()
    sigma = gaussian_sigma(0.5, 1e-5, scoring_sensitivity(0.1, 150, 1e-10))
    draws = torch.stack([head.release(0.5, 1e-5, compose=True) - exact for _ in range(600)])
    assert stats.kstest((draws / sigma).flatten().numpy(), "norm").pvalue > 1e-4
    assert len(draws.unique(dim=0)) == len(draws)
    assert head.ledger[-1].sigma == sigma


def test_a_seed_repeats_the_noise_and_none_does_not():
    assert torch.equal(
        fitted().release(1, 1e-5, noise_seed=3), fitted().release(1, 1e-5, noise_seed=3)
    )
    torch.manual_seed(0)
    one = fitted().release(1, 1e-5)
    torch.manual_seed(0)
    assert not torch.equal(one, fitted().release(1, 1e-5))


def test_a_second_release_is_refused_unless_it_is_accounted_for():
    head = fitted()
    head.release(0.1, 1e-5)
    with pytest.raises(PrivacyError, match=r"already, at \(0.1, 1e-05\).*compose=True"):
        head.release(0.1, 1e-5)
    with pytest.raises(PrivacyError, match="already"):
        head.release_without_privacy()
    head.release(0.2, 1e-6, compose=True)
    epsilon, delta = head.spent
    assert 0.2 < epsilon < 0.3  # less than the sum: Gaussian noise composes better
    assert delta == pytest.approx(1.1e-5)


def test_a_second_fit_does_not_change_the_scores_of_the_release():
    """The released weight keeps the bound with which it was fitted, and its cost."""
    head = fitted()
    head.release(0.1, 1e-5)
    x = torch.rand(4, 5) * 3
    before = head(x)
    positives, negatives = features()
    head.fit_features(positives, negatives * 7)
    assert torch.equal(head(x), before)
    with pytest.raises(PrivacyError, match="already"):
        head.release(0.1, 1e-5)


def test_a_second_fit_that_fails_leaves_nothing_to_release():
    """The first fit must not go out with the smaller sensitivity of the second one."""
    head = fitted(Parts(norm_bound="unit"))
    positives, negatives = features(n=6000)
    negatives[0] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        head.fit_features(positives, negatives)
    with pytest.raises(PrivacyError, match="no fit to release"):
        head.release(0.1, 1e-5)


def test_seeded_releases_cost_everything_and_do_not_cancel():
    head = fitted()
    exact = head._fitted
    one = head.release(0.1, 1e-5, noise_seed=7)
    other = head.release(0.04, 1e-5, noise_seed=7, compose=True)
    assert head.spent[0] == math.inf
    a, b = (release.sigma for release in head.ledger)
    assert ((one * b - other * a) / (b - a) - exact).norm() > exact.norm()


def test_a_state_without_the_source_of_its_noise_guarantees_nothing():
    """As states of version 0.2.0."""
    head = fitted()
    head.release(0.1, 1e-5)
    state = head.state_dict()
    for release in state["_extra_state"]["ledger"]:
        del release["simulated"]
    again = ScoringHead()
    again.load_state_dict(state)
    assert again.spent[0] == math.inf


def test_a_refused_release_costs_nothing_and_one_without_noise_everything():
    head = fitted()
    with pytest.raises(ValueError, match=r"epsilon: got .*; expected to be positive"):
        head.release(0, 1e-5)
    assert head.spent == (0, 0)
    assert head.weight is None
    head.release_without_privacy()
    assert head.spent[0] == math.inf
    assert head.ledger[0].mechanism == "none"


def test_a_fit_short_of_its_tolerance_is_not_released():
    head = ScoringHead(scoring=Parts(Logistic(tolerance=1e-30)))
    with pytest.raises(PrivacyError, match=r"above the tolerance of 1e-30"):
        head.fit_features(*features())
    with pytest.raises(PrivacyError, match="no fit to release"):
        head.release_without_privacy()


def test_the_bound_comes_from_the_negatives_alone():
    """A client's outlier, however long, changes neither the bound nor the rows beyond clipping."""
    positives, negatives = features()
    positives[0] = 1e6
    head = ScoringHead()
    head.fit_features(positives, negatives)
    assert head._fitted_map.bound == pytest.approx(negatives.norm(dim=1).max().item())
    assert head._fitted_map.rows(positives).norm(dim=1).max() <= 1
    fixed = ScoringHead(scoring=Parts(norm_bound=3.0))
    fixed.fit_features(positives, negatives)
    assert fixed._fitted_map.bound == 3.0


def test_a_private_norm_bound_is_marked_as_a_flaw():
    positives, negatives = features()
    positives[0] = 100.0
    head = ScoringHead(scoring=PaperScoring(variant="literal"))
    head.fit_features(positives, negatives)
    assert head._fitted_map.bound == pytest.approx(positives[0].norm().item())
    head.release(0.1, 1e-5)
    assert "largest of private data" in head.ledger[0].flaw
    assert head.spent[0] == math.inf


def test_an_unnormalized_lambda_is_another_objective_and_marked_as_a_flaw():
    positives, negatives = features()
    head = ScoringHead(scoring=Parts(Logistic(0.5, normalized=False)))
    head.fit_features(positives, negatives)
    same = ScoringHead(scoring=PaperScoring(0.5 / 150))
    same.fit_features(positives, negatives)
    torch.testing.assert_close(head._fitted, same._fitted, rtol=0, atol=1e-6)
    head.release(0.1, 1e-5)
    assert head.ledger[0].sensitivity == pytest.approx(2 / (0.5 * 150))
    assert "another objective" in head.ledger[0].flaw
    assert head.spent[0] == math.inf


def test_scores_are_those_of_the_released_weight():
    head = fitted(Parts(calibration=Sigmoid(xi=0.125)))
    weight = head.release(1, 1e-5)
    bound = head.public_map.bound
    x = torch.rand(7, 5) * 3
    for row, score in zip(x.tolist(), head(x).tolist(), strict=True):
        norm = math.hypot(*row)
        z = sum(a * b for a, b in zip(row, weight.tolist(), strict=True)) / max(norm, bound)
        assert score == pytest.approx(1 / (1 + math.exp(-z)) + 0.125, rel=1e-6)


def test_nothing_is_scored_or_released_too_early():
    with pytest.raises(PrivacyError, match="fit first"):
        ScoringHead().release(1, 1e-5)
    with pytest.raises(PrivacyError, match=r"call release\(epsilon, delta\) first"):
        fitted()(torch.rand(2, 5))


def test_a_checkpoint_holds_the_release_and_its_cost_but_never_the_fit(trainer, tmp_path):
    head = ScoringHead()
    fit = trainer()
    fit.fit(head, loader(*membership(*features())))
    exact = head._fitted.clone()
    fit.save_checkpoint(tmp_path / "before.ckpt")
    head.release(0.5, 1e-5)
    fit.save_checkpoint(tmp_path / "after.ckpt")
    for name in ("before.ckpt", "after.ckpt"):
        content = torch.load(tmp_path / name, weights_only=True)
        assert not any(exact.equal(tensor) for tensor in tensors_in(content))
        assert "positives" not in str(content)
    again = ScoringHead.load_from_checkpoint(tmp_path / "after.ckpt", weights_only=True)
    x = torch.rand(4, 5)
    assert torch.equal(again(x), head(x))
    assert again.ledger == head.ledger
    with pytest.raises(PrivacyError, match="never the fit itself"):
        again.release(1, 1e-5, compose=True)


def test_copies_and_pickles_do_not_hold_the_fit(trainer):
    head, (positives, negatives) = ScoringHead(), features()
    trainer().fit(head, loader(*membership(positives, negatives)))
    exact = [head._fitted, head._fitted_map.rows(positives) @ head._fitted]
    head.release(0.5, 1e-5)
    saved = io.BytesIO()
    torch.save(head, saved)
    for content in (saved.getvalue(), pickle.dumps(head), pickle.dumps(vars(copy.deepcopy(head)))):
        assert head.weight.numpy().tobytes() in content
        assert not any(tensor.numpy().tobytes() in content for tensor in exact)
    again = copy.deepcopy(head)
    assert again.ledger == head.ledger
    with pytest.raises(PrivacyError, match="never the fit itself"):
        again.release(1, 1e-5, compose=True)
    head.release(1, 1e-5, compose=True)  # the object itself keeps its fit


def tensors_in(content):
    if isinstance(content, torch.Tensor):
        yield content
    elif isinstance(content, dict):
        for value in content.values():
            yield from tensors_in(value)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from tensors_in(value)


def test_validation_measures_the_released_scores(trainer):
    head = fitted(PaperScoring(1e-3))
    head.release_without_privacy()
    fit = trainer()
    x, flags = membership(*features())
    fit.validate(head, loader(x, flags), verbose=False)
    expected = binary_auroc(head(x), flags.long())
    assert expected > 0.55
    assert fit.callback_metrics["val/auroc"] == pytest.approx(expected.item())


def test_predict_takes_batches_without_labels(trainer):
    head = fitted()
    head.release(1, 1e-5)
    x = torch.rand(9, 5)
    assert torch.equal(torch.cat(trainer().predict(head, DataLoader(x, batch_size=4))), head(x))


def test_negatives_without_length_give_no_bound():
    with pytest.raises(ValueError, match=r"among the negatives: got 0\.0; expected to be positive"):
        ScoringHead().fit_features(torch.ones(2, 3), torch.zeros(2, 3))


def test_class_labels_are_not_membership(trainer):
    data = loader(torch.rand(8, 4), torch.arange(8) % 4)
    with pytest.raises(ValueError, match=r"membership: got 0 to 3; expected 1 .*: give no cla"):
        trainer().fit(ScoringHead(), data)


def test_a_head_needs_negatives(trainer):
    with pytest.raises(ValueError, match="there are no negatives"):
        trainer().fit(ScoringHead(), loader(torch.rand(8, 4), torch.ones(8)))
    with pytest.raises(ValueError, match="there are no negatives"):
        ScoringHead(scoring=Parts(norm_bound=1.0)).fit_features(torch.rand(4, 3), torch.rand(0, 3))


def test_a_record_without_finite_features_takes_part_as_zero(trainer):
    """An error would tell of one record."""
    positives, negatives = features()
    expected = ScoringHead()
    zeroed = positives.clone()
    zeroed[3] = 0.0
    expected.fit_features(zeroed, negatives)
    positives[3, 1] = math.nan
    head = ScoringHead()
    with pytest.warns(UserWarning, match="1 of .* private records have features that are not fini"):
        trainer().fit(head, loader(*membership(positives, negatives)))
    found, wanted = head.release_without_privacy(), expected.release_without_privacy()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


def test_a_batchnorm_without_running_statistics_is_refused():
    model = create_model("resnet8", 10, **SMALL)
    model.bn1 = torch.nn.BatchNorm2d(model.bn1.num_features, track_running_stats=False)
    with pytest.raises(PrivacyError, match="the features of a record depend on all others"):
        ScoringHead(model)


def test_texts_are_encoded_one_by_one(trainer, monkeypatch):
    """A longer text in a batch would round the features of the others in another way."""
    model, shapes = texts.encoder(), []
    encode = model._encode
    monkeypatch.setattr(model, "_encode", lambda x: shapes.append(tuple(x.shape)) or encode(x))
    ids = torch.cat([texts.ids(*[7] * 5, width=20), texts.ids(20, seed=1)])
    trainer().fit(ScoringHead(model), loader(ids, torch.tensor([1, 1, 1, 0, 0, 0])))
    assert sorted(shapes) == [(1, 7)] * 5 + [(1, 20)]


def test_it_runs_the_default_scorer_of_the_package(trainer, tmp_path):
    """As a federation releases it, to the last bit; scores have the negatives as reference."""
    positives, negatives = features()
    recipe = MeanScoring()
    scoring = recipe.create(Privacy(0.5))
    head = ScoringHead(scoring=recipe)
    fit = trainer()
    fit.fit(head, loader(*membership(positives, negatives)))
    weight = head.release(0.5, 1e-5, noise_seed=3)
    step = Step(scoring)
    public_map = scoring.fit_map(negatives, negatives)
    expected = step.release(0, positives, negatives, public_map, 3)
    assert torch.equal(weight, expected.weight)
    assert head.ledger == [expected.release]
    assert head.ledger[0].sensitivity == 2 / len(positives)
    x = torch.rand(4, 5)
    logits = [expected.logits(rows) for rows in (x, negatives)]
    torch.testing.assert_close(head(x), scoring.calibration.scores(*logits))
    torch.testing.assert_close(head(x[:1]), head(x)[:1])
    fit.save_checkpoint(tmp_path / "mean.ckpt")
    load = functools.partial(
        ScoringHead.load_from_checkpoint, tmp_path / "mean.ckpt", weights_only=True
    )
    assert torch.equal(load(scoring=recipe)(x), head(x))
    with pytest.raises(ValueError, match=r"got 'not saved: MeanScoring.*; expected to be a Sc"):
        load()


def test_a_scorer_that_needs_labels_is_refused():
    with pytest.raises(ValueError, match="expected to have a scorer that needs no labels"):
        ScoringHead(scoring=StatisticsScoring())
