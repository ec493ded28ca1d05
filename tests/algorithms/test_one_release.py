"""Methods whose clients send private releases once, and nothing else."""

from dataclasses import dataclass, replace

import pytest
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint

from fedaux_pl.algorithms import FedAUX, FedAUXfdp, FedClassMeans, FedCOF, Released
from fedaux_pl.callbacks.hooks import FederationCallback
from fedaux_pl.data import Examples, FederatedDataModule
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.functional import classifier_of_means, soft_labels
from fedaux_pl.scoring import (
    Centered,
    Collected,
    Guarantee,
    MeanScoring,
    PaperScoring,
    Privacy,
    PublicNumbers,
    Residuals,
    ScoresAndHead,
    SecureSums,
    StatisticsScoring,
    Step,
    spent,
)
from tests.federations import FewDigits, assert_same, create, fit, measured, run, split, weights
from tests.paper import Parts


def ridge(**options):
    return FedClassMeans(classifier="ridge", **options)


METHODS = [FedClassMeans, ridge, FedAUXfdp, FedCOF]
MEAN = MeanScoring(dimensions=8, sharpness=1.0)
ONE = StatisticsScoring(dimensions=8)
TWO = StatisticsScoring(dimensions=8, releases=2)


def method(kind, epsilon=5.0, secret=False, **options):
    rows = {FedCOF: {"dimensions": 8}, FedAUXfdp: {"scoring": MEAN}}.get(kind, {"scoring": ONE})
    return kind(privacy=Privacy(epsilon, secret=secret), **(rows | options))


@dataclass(frozen=True)
class CenteredStatistics(StatisticsScoring):
    """Class statistics of features that are not whitened."""

    def create(self, privacy):
        return replace(super().create(privacy), feature_map=Centered())


class LockPrivateData(FederationCallback):
    """Once the clients have made their releases, nobody may read their data."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.monkeypatch = monkeypatch

    def on_federation_prepared(self, trainer, federation):
        def refuse(*args, **options):
            raise AssertionError("private data were read after the release")

        for name in ("client", "client_batches", "class_counts"):
            self.monkeypatch.setattr(FederatedDataModule, name, refuse)


@pytest.mark.parametrize("kind", METHODS)
def test_private_data_are_read_for_the_release_only_and_only_it_is_sent(
    kind, tmp_path, monkeypatch
):
    federation = create(method(kind, secret=True))
    fit(tmp_path, federation, 2, callbacks=[LockPrivateData(monkeypatch)])
    assert len(federation.history) == 2
    sizes = {FedClassMeans: 10 * 9 + 36, FedAUXfdp: 8 + 10 * 9}  # k = 8, 10 classes, float64
    sizes |= {ridge: sizes[FedClassMeans], FedCOF: 10 * 9}
    for entry in federation.history:
        assert (entry["bytes/up"], entry["bytes/down"]) == (0, 0)
        assert entry["bytes/up_total"] == 3 * 8 * sizes[kind]
        assert not [name for name in entry if name.startswith("client_loss")]


@pytest.mark.parametrize("kind", METHODS)
def test_all_that_leaves_a_client_is_said(kind, tmp_path, capsys):
    simulated = run(tmp_path, method(kind, epsilon=0.5), 0).privacy()
    assert "with secret noise would be (epsilon 0.5, delta 1e-05)-private" in simulated[-1]
    [*_, last, again] = run(tmp_path, method(kind, epsilon=0.5, secret=True), 0).privacy()
    assert again.startswith("every run costs (epsilon 0.5, delta 1e-05) again")
    assert last.startswith("all that leaves a client: one release of ")
    assert "which is (epsilon 0.5, delta 1e-05)-private" in last
    assert "the number of its records, which counts as public" in last
    assert not any("model updates" in line for line in simulated)
    held = create(method(kind))
    fit(tmp_path, held, 0, split(3, validation_fraction=0.2))
    assert held.privacy()[-1].startswith("NOT private: the accuracies on the validation data")
    assert "and what the lines below say" in held.privacy()[-2]
    rows = held.guarantees()
    number = "once: the number of its records"
    assert rows[-2] == Guarantee(number, "none, it counts as public", "-")
    assert rows[-1] == Guarantee("every round: its accuracy on data that it holds out")
    assert number in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks")
@pytest.mark.parametrize(("kind", "options"), [(FedClassMeans, {"scoring": TWO}), (FedAUXfdp, {})])
def test_a_resumed_run_ends_with_the_same_weights(kind, options, tmp_path):
    whole, first, resumed = (create(method(kind, **options)) for _ in range(3))
    fit(tmp_path, whole, 3)
    saving = ModelCheckpoint(tmp_path / "saved", every_n_epochs=1, save_top_k=-1)
    fit(tmp_path, first, 1, callbacks=[saving], enable_checkpointing=True)
    [path] = (tmp_path / "saved").glob("*.ckpt")
    fit(tmp_path, resumed, 3, ckpt_path=path)
    names = ["statistics", "gradient/resnet8"] if options else ["scores"]
    assert list(resumed.state.releases) == names
    assert_same(weights(resumed), weights(whole))
    assert measured(resumed) == measured(whole)


class HeadAtStart(Callback):
    def on_train_start(self, trainer, federation):
        self.state = weights(federation)


@pytest.mark.parametrize("kind", METHODS)
def test_the_student_starts_from_the_teacher(kind, tmp_path):
    federation, start = create(method(kind, epsilon=None)), HeadAtStart()
    fit(tmp_path, federation, 1, split(3, auxiliary=FewDigits(auxiliary=400)), callbacks=[start])
    first = federation.history[0]
    assert first["averaged_accuracy/resnet8"] == pytest.approx(first["teachers/accuracy"], abs=0.15)
    assert first["teachers/accuracy"] > 0.3
    assert first["distillation_loss/resnet8"] < 1.5  # log 10 = 2.3 for a head without knowledge


def test_labels_do_not_depend_on_the_test_data(tmp_path):
    one, other = create(method(FedClassMeans)), create(method(FedClassMeans))
    fit(tmp_path, one, 1)
    fit(tmp_path, other, 1, split(3, private=FewDigits(test=7)))
    assert torch.equal(
        one.evidence.class_probabilities["distill"], other.evidence.class_probabilities["distill"]
    )
    assert_same(weights(one), weights(other))


def test_other_labels_are_another_release(tmp_path, counted_releases):
    run(tmp_path, method(FedClassMeans), 0)
    run(tmp_path, method(FedClassMeans), 0)
    assert counted_releases() == 1

    class Relabeled(FewDigits):
        def train(self):
            examples = super().train()
            return Examples(examples.inputs, (examples.targets + 1) % 10, examples.classes)

    fit(tmp_path, create(method(FedClassMeans)), 0, split(3, private=Relabeled()))
    assert counted_releases() == 1


@pytest.fixture
def counted_releases(monkeypatch):
    count, prepare = [0], LocalClients.prepare

    def counted(*args, **options):
        count[0] += 1
        return prepare(*args, **options)

    monkeypatch.setattr(LocalClients, "prepare", counted)

    def since():
        found, count[0] = count[0], 0
        return found

    return since


def released(algorithm, rows, labels, public, sizes=(30, 30)):
    """The releases of clients with these features and labels, and public data to label."""
    scoring = algorithm.release.scoring
    public_map = scoring.fit_map(public, public)
    one_hot = torch.eye(10)[labels]
    step = Step(scoring)
    heads = [
        step.release(i, rows[own], public, public_map, i, one_hot[own])
        for i, own in enumerate(torch.arange(len(rows)).split(list(sizes)))
    ]
    parts = {"distill": {"resnet8": public}, "evaluation": {"resnet8": public[:5]}}
    collected = {"scores": Collected(step, range(len(heads)), heads)}
    names = ["resnet8"] * len(sizes)
    return Released({"scores": step}, collected, names, sizes, len(public), 10, parts)


def blobs(count=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 10
    centers = 4 * torch.randn(10, 12, generator=generator)
    return centers[labels] + torch.randn(count, 12, generator=generator), labels


@pytest.mark.parametrize("kind", METHODS)
def test_teachers_of_exact_releases_know_the_classes(kind):
    rows, labels = blobs()
    algorithm = method(kind, epsilon=None)
    found = algorithm.release.evidence(released(algorithm, rows, labels, rows)).class_probabilities[
        "distill"
    ]
    torch.testing.assert_close(found.sum(dim=1), torch.ones(60).to(found))
    assert (found.argmax(dim=1) == labels).float().mean() > 0.9


def test_fedauxfdp_is_a_score_weighted_mean_of_heads():
    """A_s (eq. 3 of FedAUX) with the clients' heads, computed naively."""
    algorithm = method(FedAUXfdp, epsilon=None)
    rows, labels = blobs()
    sent = released(algorithm, rows, labels, rows)
    public = sent.heads[0].public_map.rows(rows)
    scores, logits = [], []
    for head in sent.heads:
        weight, matrix = algorithm.release.scorer.split(head.weight, 10, 30, 60)
        scores.append(
            algorithm.release.scoring.calibration.scores(public @ weight, public @ weight)
        )
        constant = torch.cat([public, torch.ones(60, 1)], dim=1) / 2**0.5
        logits.append(constant @ matrix.T)
    expected = soft_labels(torch.stack(logits), torch.stack(scores))
    found = algorithm.release._teach(sent, sent.reference).softmax(dim=1)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("sizes", [(60,), (30, 30), (1, 2, 50, 7)])
def test_a_ridge_regression_is_that_of_all_records(sizes):
    """Least squares on the rows of all clients, however they are split."""
    algorithm = method(ridge, epsilon=None, regularization=0.5)
    features, labels = blobs()
    sent = released(algorithm, features, labels, features, sizes)
    rows = sent.heads[0].public_map.rows(features)
    targets = torch.eye(10).double()[labels]
    inverse = (rows.T @ rows + 0.5 * torch.eye(8)).inverse()
    outputs = rows @ inverse @ rows.T @ targets
    found = algorithm.release.evidence(sent).class_probabilities["distill"]
    torch.testing.assert_close(found, (outputs / 0.1).softmax(dim=1).float())


def test_a_ridge_regression_has_the_results_of_fed3r_in_version_1_0():
    """Numbers of the class Fed3R, with noise that raises lambda."""
    algorithm = method(ridge, scoring=CenteredStatistics())
    features, labels = blobs()
    sent = released(algorithm, features, labels, features)
    first, second = (head.weight for head in sent.heads)
    assert first.tolist()[:3] == pytest.approx([-0.93387964286, 0.10393043302, -4.06189209071])
    assert second.tolist()[-2:] == pytest.approx([1.88220839352, -1.10877829721])
    weights = torch.arange(208).double().cos()
    assert float(first @ weights) == pytest.approx(17.65332011614)
    assert float(second @ weights) == pytest.approx(-8.93371558677)
    found = algorithm.release.evidence(sent).class_probabilities["distill"].double()
    assert found[1].tolist()[:4] == pytest.approx(
        [0.115955, 0.305402, 0.049301, 0.087041], rel=1e-4
    )
    weights = torch.arange(600).double().cos()
    assert float(found.flatten() @ weights) == pytest.approx(0.939958, rel=1e-4)


SETTINGS = (  # of a release in the keys of ledgers, by the class Fed3R of version 1.0
    "{'scorer': {'class': 'ClassStatistics', 'second_moment': 0.15, 'releases': 1}, 'feature_map': "
    "{'class': 'Whitened', 'dimensions': 64, 'whitening': 0.5}, 'norm_bound': 'unit', 'epsilon': "
    "0.1, 'delta': 1e-05, 'mechanism': 'analytic', 'version': 1}"
)


def test_a_ridge_regression_uses_releases_that_fed3r_made_with_version_1_0():
    """A key of a ledger has the settings of the release, and of the method nothing else."""
    numbers = PublicNumbers({"resnet8": [2500] * 20}, classes=10)
    [step] = ridge().release.plan(numbers).values()
    assert str(step.settings()) == SETTINGS
    one = FedClassMeans(scoring=StatisticsScoring(releases=1))
    assert [str(step.settings()) for step in one.release.plan(numbers).values()] == [SETTINGS]


def test_a_ridge_regression_has_one_release():
    assert ridge().release.scoring.scorer.releases == 1
    with pytest.raises(ValueError, match=r"scoring\.releases: got 2; .* ridge needs no second"):
        ridge(scoring=TWO)
    with pytest.raises(ValueError, match="classifier: got 'Ridge'; expected to be 'discriminant' "):
        FedClassMeans(classifier="Ridge")
    with pytest.raises(ValueError, match="regularization: got 0; expected to be a positive number"):
        ridge(regularization=0)


def test_fedcof_has_the_class_means_of_each_client():
    """By their sums and counts over the records; client 1 lacks half of the classes."""
    algorithm = method(FedCOF, epsilon=None, shrinkage=0.3)
    features, labels = blobs()
    labels[30:] %= 5
    sent = released(algorithm, features, labels, features)
    rows = sent.heads[0].public_map.rows(features)
    sums = torch.zeros(2, 10, 8).double()
    counts = torch.zeros(2, 10).double()
    for record, label in enumerate(labels):
        sums[record // 30, label] += rows[record]
        counts[record // 30, label] += 1
    logits = classifier_of_means(sums, counts, 0.3).logits(rows)
    found = algorithm.release.evidence(sent).class_probabilities["distill"]
    torch.testing.assert_close(found, (logits / 0.1).softmax(dim=1).float())


def test_settings_are_those_of_the_constructor():
    plain = FedAUXfdp(share=0.3, regularization=0.2).settings()
    assert (plain["share"], plain["regularization"], plain["scorer"]) == (
        0.3,
        0.2,
        {"class": "Mean"},
    )
    assert (FedAUXfdp().name, FedClassMeans().name) == ("FedAUXfdp", "FedClassMeans")


def test_what_a_method_cannot_use_is_refused():
    with pytest.raises(ValueError, match="FedAUX needs a scorer without labels"):
        FedAUX(scoring=Parts(ScoresAndHead()))
    with pytest.raises(ValueError, match=r"scoring: got .*a public norm bound"):
        FedAUXfdp(scoring=Parts(norm_bound="private"))
    with pytest.raises(ValueError, match=r"scorer: got ClassStat.*expected to be a Scorer without"):
        FedAUXfdp(scoring=StatisticsScoring())
    for kind in (FedAUX, FedAUXfdp):
        with pytest.raises(ValueError, match=r"scoring: got .*; expected to be a ScoringRecipe"):
            kind(scoring=FedAUX().release.scoring)
    with pytest.raises(ConfigurationError, match="ClassSums needs the vector of each client"):
        FedCOF(privacy=Privacy(secure=SecureSums())).release.plan(None)


@pytest.mark.parametrize("kind", METHODS)
def test_architectures_are_mixed(kind, tmp_path):
    federation = run(tmp_path, method(kind), 1, clients={"resnet8": 2, "shufflenet": 1})
    assert {"accuracy/resnet8", "accuracy/shufflenet"} <= set(federation.history[0])


def test_a_second_release_is_the_gradient_of_the_first_classifier(tmp_path):
    algorithm = method(FedClassMeans, epsilon=1.0, secret=True, scoring=TWO)
    federation = create(algorithm)
    fit(tmp_path, federation, 0)
    second = federation.state.releases["gradient/resnet8"]
    assert isinstance(second.step.scorer, Residuals)
    assert second.heads[0].weight.shape == (10 * 9,)
    assert len(federation.state.all_heads) == 2 * len(federation.heads)
    own = [federation.heads[0].release, second.heads[0].release]
    epsilon, _ = spent(own, 1e-5)  # both together: the epsilon of the method
    assert 0.999999 <= epsilon <= 1.0
    text = " ".join(federation.privacy())
    assert "together cost (epsilon 1, delta 1e-05), by exact composition" in text
    assert "and one of the gradient of a classifier" in text
    sent = 10 * 9 * 8  # bytes of a classifier
    extra = federation.round_log.prepared[1] - 3 * sent
    one = run(tmp_path, method(FedClassMeans, epsilon=1.0), 0)
    assert extra == one.round_log.prepared[1]


def test_class_means_need_class_statistics():
    with pytest.raises(ValueError, match=r"scoring: got MeanScoring.*StatisticsScoring"):
        FedClassMeans(scoring=MeanScoring())


@pytest.mark.parametrize("variant", ["literal", "authors"])
def test_all_that_leaves_a_client_needs_a_private_scoring(variant):
    with pytest.raises(ValueError, match=r"scoring: got PaperScoring.*a public norm bound"):
        FedAUXfdp(scoring=PaperScoring(variant=variant))
