"""The files and pages that a run leaves behind."""

import csv
import json

import pytest
from pytorch_lightning.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedaux_pl.algorithms import FedAvg, FedDF
from fedaux_pl.callbacks.report import FederationReport, write_curve, write_summary
from fedaux_pl.federation.settings import LocalTraining
from fedaux_pl.scoring import Logistic
from tests.federations import create, fit
from tests.paper import paper_fedaux


def refuse(name):
    raise AssertionError(f"{name} is no JSON")


def read_json(path):
    return json.loads(path.read_text(), parse_constant=refuse)


def reported(root, federation, rounds=3, report=None, **options):
    """Runs with a report and gives the folder of what it wrote."""
    logger = TensorBoardLogger(root, name="runs")
    report = report or FederationReport()
    fit(root, federation, rounds, logger=logger, callbacks=[report], **options)
    logger.experiment.flush()
    return root / "runs" / "version_0"


def events(folder):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def test_curve_summary_and_tensorboard(tmp_path, capsys):
    federation = create(paper_fedaux())
    folder = reported(tmp_path, federation)
    with (folder / "curve.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    for row, entry in zip(rows, federation.history, strict=True):
        assert {key: float(value) for key, value in row.items()} == entry

    summary = read_json(folder / "summary.json")
    accuracies = [entry["accuracy"] for entry in federation.history]
    assert summary["method"] == "FedAUX"
    assert summary["rounds"] == 3
    assert summary["accuracy"] == accuracies[-1]
    assert summary["best_accuracy"] == max(accuracies)
    assert summary["bytes_up"] == federation.history[-1]["bytes/up_total"]
    assert summary["bytes_down"] == federation.history[-1]["bytes/down_total"]
    assert summary["privacy"] == federation.privacy()
    assert summary["settings"] == federation.settings()
    assert not list(folder.glob("*.part"))

    pages = events(folder)
    for tag in ("accuracy", "accuracy/resnet8", "bytes/up_total", "client_loss/mean"):
        scalars = pages.Scalars(tag)
        assert [event.step for event in scalars] == [1, 2, 3]
        expected = [entry[tag] for entry in federation.history]
        assert [event.value for event in scalars] == pytest.approx(expected, rel=1e-6)
    images = set(pages.Tags()["images"])
    assert images == {
        "data/split",
        "certainty/clients",
        "certainty/weight_by_class",
        "certainty/top_images",
    }
    text = pages.Tensors("privacy/text_summary")[0].tensor_proto.string_val[0].decode()
    printed = capsys.readouterr().out
    for line in federation.privacy():
        assert line in text
        assert f"privacy: {line}" in printed


def test_a_method_without_scores_has_no_pages_of_them(tmp_path):
    folder = reported(tmp_path, create(FedAvg()), 1)
    assert events(folder).Tags()["images"] == ["data/split"]
    assert read_json(folder / "summary.json")["privacy"] == [
        "the model updates that clients send in every round are NOT private"
    ]


def test_images_can_be_left_out(tmp_path):
    folder = reported(tmp_path, create(FedDF()), 1, FederationReport(images=False))
    assert events(folder).Tags()["images"] == []


def test_rounds_without_validation_have_no_accuracy(tmp_path):
    federation = create(FedAvg())
    folder = reported(tmp_path, federation, 3, check_val_every_n_epoch=2)
    assert ["accuracy" in entry for entry in federation.history] == [False, True, False]
    with (folder / "curve.csv").open(newline="") as file:
        column = [row["accuracy"] for row in csv.DictReader(file)]
    assert column == ["", str(federation.history[1]["accuracy"]), ""]
    summary = read_json(folder / "summary.json")
    assert summary["accuracy"] == summary["best_accuracy"] == federation.history[1]["accuracy"]
    assert [event.step for event in events(folder).Scalars("accuracy")] == [2]


def test_without_a_logger_the_files_are_below_the_root(tmp_path):
    fit(tmp_path, create(FedAvg()), 1, callbacks=[FederationReport()])
    assert (tmp_path / "curve.csv").is_file()
    assert read_json(tmp_path / "summary.json")["rounds"] == 1


def test_numbers_that_json_does_not_have(tmp_path):
    """Clients that train for no epoch have no loss, and an infinite setting is still a setting."""
    federation = create(FedAvg(), local=LocalTraining(epochs=0, weight_decay=float("inf")))
    fit(tmp_path, federation, 1)
    write_summary(tmp_path / "summary.json", federation)
    assert read_json(tmp_path / "summary.json")["settings"]["local"]["weight_decay"] == "inf"
    write_curve(tmp_path / "curve.csv", federation.history)
    with (tmp_path / "curve.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["client_loss/mean"] == "nan"


PRIVATE = "each client released its scoring head once: epsilon 0.5, delta 1e-05, analytic Gaussian"


@pytest.mark.parametrize(
    ("options", "says", "fits"),
    [
        ({"epsilon": 0.5}, PRIVATE, True),
        ({"epsilon": 0.5, "mechanism": "classical"}, "classical Gaussian mechanism", True),
        ({"epsilon": None}, "WITHOUT noise: not private", True),
        (
            {"norm_bound": "private"},
            "does NOT hold: the norm bound is the largest of private data",
            False,
        ),
        (
            {"scorer": Logistic(normalized=False)},
            "does NOT hold: the sensitivity is that of another",
            False,
        ),
    ],
)
def test_what_is_private_and_what_is_not(tmp_path_factory, options, says, fits):
    root = tmp_path_factory.getbasetemp() / "privacy"  # h_0 is the same for all
    federation = create(paper_fedaux(**options))
    fit(root, federation, 0)
    lines = federation.privacy()
    assert any(says in line for line in lines)
    assert any("this guarantee does NOT hold" in line for line in lines) is not fits
    assert lines[-1] == "the model updates that clients send in every round are NOT private"
    sigma = federation.heads[0].release.sigma
    assert any(f"{sigma:.4g}" in line for line in lines) is (options.get("epsilon", 1) is not None)


@pytest.mark.parametrize("secret", [True, False])
def test_noise_that_can_be_repeated_is_said_to_be(tmp_path, secret):
    federation = create(paper_fedaux(epsilon=10.0, secret_noise=secret))
    fit(tmp_path, federation, 0)
    from_seed = any("comes from the seed of the run" in line for line in federation.privacy())
    assert from_seed is not secret
