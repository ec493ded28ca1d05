"""Metrics of predictions beside accuracy, of all samples and of each client's."""

import csv
import json

import pytest
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torchmetrics import classification

from fedaux_pl import Federation
from fedaux_pl.callbacks import FederationReport
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.evaluation_metrics import EvaluationMetrics, read_metrics
from tests.federation.test_given_clients import NamedWards, Wards
from tests.federations import assert_same, create, fit, split, weights

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
BETA = "torchmetrics.classification.MulticlassFBetaScore"


def predictions(count=60, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator)
    return logits, torch.randint(classes, (count,), generator=generator)


@pytest.mark.parametrize(
    ("given", "reference"),
    [
        ("f1", classification.MulticlassF1Score(4)),
        ("auroc", classification.MulticlassAUROC(4)),
        ("balanced_accuracy", classification.MulticlassAccuracy(4, average="macro")),
        ("ece", classification.MulticlassCalibrationError(4)),
        ("MulticlassCohenKappa", classification.MulticlassCohenKappa(4)),
        ({"f1": {"average": "weighted"}}, classification.MulticlassF1Score(4, average="weighted")),
        ({"f2": {"class_path": BETA, "beta": 2.0}}, classification.MulticlassFBetaScore(2.0, 4)),
        ("torchmetrics.Recall", classification.MulticlassRecall(4, average="micro")),
    ],
)
def test_a_metric_is_that_of_torchmetrics(given, reference):
    logits, labels = predictions()
    measured = EvaluationMetrics(read_metrics(given), 4)(logits, labels)
    accuracy, value = measured.values()
    assert accuracy == pytest.approx((logits.argmax(dim=1) == labels).float().mean().item())
    assert value == pytest.approx(float(reference(logits.softmax(dim=1), labels)))


def test_each_client_is_measured_on_the_classes_that_it_has():
    logits, labels = predictions()
    clients = torch.arange(60) % 3
    labels[clients == 1] = labels[clients == 1] % 2  # two classes are missing
    labels[clients == 2] = 3
    metrics = EvaluationMetrics(read_metrics(["balanced_accuracy", "auroc", "ece"]), 4)
    found = metrics.by_client(logits, labels, clients, ["a", "b", "c", "absent"])
    own, answers = labels[clients == 1], logits[clients == 1]
    recalls = [(answers.argmax(dim=1)[own == k] == k).float().mean() for k in (0, 1)]
    assert found["client_balanced_accuracy/b"] == pytest.approx(float(sum(recalls) / 2))
    scores = answers.softmax(dim=1)
    areas = []
    for k in (0, 1):  # the share of pairs in the right order
        pairs = scores[own == k, k][:, None] - scores[own != k, k][None]
        areas.append((pairs > 0).float().mean())
    assert found["client_auroc/b"] == pytest.approx(float(sum(areas) / 2), abs=1e-6)
    assert "client_auroc/c" not in found  # there is nothing to compare one class with
    assert not any("absent" in name for name in found)
    errors = [found[f"client_ece/{name}"] for name in "abc"]
    assert found["worst_client/ece"] == max(errors)  # a lower one is better
    assert found["mean_client/ece"] == pytest.approx(sum(errors) / 3)
    assert found["worst_client/accuracy"] == min(found[f"client_accuracy/{n}"] for n in "abc")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["f2"], "there is no metric 'f2': give one of auroc"),
        (["balanced_acuracy"], r"'balanced_acuracy' \(did you mean balanced_accuracy\?\)"),
        (["no_module.Metric"], "there is no metric 'no_module.Metric'"),
        (["torchmetrics.functional.f1_score"], "is no class of a torchmetrics Metric"),
        (["MulticlassROC"], "does not map class probabilities .* to one number"),
        (["BinaryF1Score"], "does not map class probabilities of shape"),
        (["torchmetrics.MeanSquaredError"], "does not map .* the same shape"),
        ({"f1": {"averag": "micro"}}, "f1 cannot be created with .*averag"),
        (["accuracy"], "'accuracy' is measured anyway"),
        (["f1", "f1"], "'f1' is measured anyway, there twice"),
        ([3], r": got \[3\]; expected names such as \[f1, auroc\]"),
    ],
)
def test_unsuitable_metrics_are_refused(given, message):
    with pytest.raises(ValueError, match=f"^metrics.*{message}"):
        create(metrics=given)


def run(root, rounds=2, ckpt_path=None, metrics=("f1", "ece"), **options):
    federation = create(metrics=list(metrics) or None)
    defaults = {"enable_checkpointing": True, "limit_val_batches": 1.0}
    callbacks = [ModelCheckpoint(root, filename="last", enable_version_counter=False)]
    data = split(3, private=NamedWards(), **options)
    trainer = fit(root, federation, rounds, data, ckpt_path, callbacks=callbacks, **defaults)
    return federation, trainer, data


def test_a_run_measures_each_client_and_writes_it(tmp_path, capsys):
    federation, _, data = run(tmp_path)
    plain = create()
    fit(tmp_path / "plain", plain, 2, split(3, private=Wards()))
    assert_same(weights(federation), weights(plain))
    test = data.test_examples
    probabilities = federation.eval()(test.inputs)
    correct = (probabilities.argmax(dim=1) == test.targets).float()
    last = federation.history[-1]
    shares = {"north": correct[0::2].mean().item(), "west": correct[1::2].mean().item()}
    assert {n: last[f"client_accuracy/{n}"] for n in shares} == pytest.approx(shares)
    assert last["mean_client/accuracy"] == pytest.approx(sum(shares.values()) / 2)
    predicted = probabilities.argmax(dim=1)
    for client, name in enumerate(["north", "west"]):
        table = torch.zeros(10, 10, dtype=torch.int64)
        for label, answer in zip(test.targets[client::2], predicted[client::2], strict=True):
            table[label, answer] += 1
        assert torch.equal(federation.client_confusions[name], table)
    reference = classification.MulticlassF1Score(10)(probabilities, test.targets)
    assert last["f1"] == pytest.approx(float(reference), abs=1e-6)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["worst_client_accuracy"] == min(shares.values())
    assert summary["best_ece"] == min(entry["ece"] for entry in federation.history)
    assert "ece" in summary["lower_is_better"]
    with (tmp_path / "clients.csv").open() as file:
        rows = {row["client"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["north", "west", "(mean)", "(worst)"]
    assert float(rows["west"]["accuracy"]) == last["client_accuracy/west"]
    told = capsys.readouterr().out
    assert "note: no test data of south: not among the metrics by client" in told
    each = f"north {shares['north']:.1%}, west {shares['west']:.1%}"
    assert f"accuracy by client: mean {sum(shares.values()) / 2:.1%}, {each}\n" in told


def test_a_resumed_run_measures_the_same_and_may_measure_more(tmp_path):
    whole, *_ = run(tmp_path / "whole")
    run(tmp_path / "parts", 1)
    last = tmp_path / "parts" / "last.ckpt"
    more, *_ = run(tmp_path / "parts", 2, last, metrics=("f1", "ece", "kappa"))
    entry = more.history[-1]
    assert {
        k: v for k, v in whole.history[-1].items() if k[:8] != "seconds/"
    }.items() <= entry.items()
    assert "kappa" in entry
    assert "kappa" not in more.history[0]
    loaded = Federation.load_from_checkpoint(last)
    assert loaded.chosen_metrics == {"f1": {}, "ece": {}, "kappa": {}}


def test_a_checkpoint_does_not_choose_what_is_imported(tmp_path):
    """A metric of a module that nobody has imported."""
    run(tmp_path, 1)
    path = tmp_path / "last.ckpt"
    content = torch.load(path, weights_only=True)
    content["hyper_parameters"]["metrics"] = {"bad": {"class_path": "tests.models.broken_module.X"}}
    torch.save(content, path)
    with pytest.raises(ConfigurationError, match=r"tests\.models\.broken_module\.X, whose module"):
        Federation.load_from_checkpoint(path)


def test_validation_data_have_the_clients_that_hold_them_out(tmp_path):
    federation, trainer, data = run(tmp_path, 1, validation_fraction=0.25)
    entry = federation.history[-1]
    assert {n for n in data.client_names if f"val/client_f1/{n}" in entry} == {*data.client_names}
    assert not any(name.startswith("client_accuracy") for name in entry)
    tested = trainer.test(federation, datamodule=data, verbose=False)[0]
    assert {"f1", "client_accuracy/west", "worst_client/ece"} <= tested.keys()
    summary = json.loads((tmp_path / "summary.json").read_text())
    last = summary["last_test"]
    assert last["client_accuracy/west"] == pytest.approx(tested["client_accuracy/west"])


@pytest.mark.parametrize(
    ("monitor", "mode", "message"),
    [
        ("f1", "max", None),
        ("worst_client/ece", "min", None),
        ("f1", "min", "prefers a low f1, .* Lightning's default: set mode='max'"),
        ("ece", "max", "prefers a high ece, because its mode is 'max': set mode='min'"),
        (
            "auroc",
            "max",
            "got auroc; expected one of accuracy, accuracy/resnet8, f1, ece, mean_client/accuracy, "
            "mean_client/f1, .* client_loss/mean, ",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:EarlyStopping monitors")
def test_callbacks_monitor_metrics(tmp_path, monitor, mode, message):
    federation = create(metrics=["f1", "ece"])
    callbacks = [EarlyStopping(monitor, mode=mode), FederationReport(images=False)]
    data = split(3, private=NamedWards())
    if message is None:
        trainer = fit(tmp_path, federation, 1, data, callbacks=callbacks)
        assert float(trainer.callback_metrics[monitor]) == federation.history[-1][monitor]
    else:
        with pytest.raises(ValueError, match=message):
            fit(tmp_path, federation, 1, data, callbacks=callbacks)
