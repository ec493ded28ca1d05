"""The files and pages that a run leaves behind."""

import csv
import json
import re

import pytest
from pytorch_lightning.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedaux_pl.algorithms import FedAvg, FedDF
from fedaux_pl.callbacks import report as report_module
from fedaux_pl.callbacks.report import FederationReport, write_curve, write_summary
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
        "NOT private: the model updates and training losses that clients send in every round"
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
    """A loss that is missing, and an infinite setting, which is still a setting."""
    federation = create(FedAvg(), model_options={"width": 0.125})
    fit(tmp_path, federation, 1)
    federation.history[0]["client_loss/mean"] = float("nan")
    federation.model_options["width"] = float("inf")
    write_summary(tmp_path / "summary.json", federation)
    assert read_json(tmp_path / "summary.json")["settings"]["model_options"]["width"] == "inf"
    write_curve(tmp_path / "curve.csv", federation.history)
    with (tmp_path / "curve.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["client_loss/mean"] == "nan"


WOULD_BE = "simulated: the release of its scoring head by each client would be (epsilon 0.5, delta"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epsilon": 0.5}, WOULD_BE),
        ({"epsilon": 0.5, "secret_noise": True}, "each client is (epsilon 0.5, delta 1e-05)-priv"),
        ({"epsilon": 0.5, "secret_noise": True}, "has at most 1 release about a record of these"),
        ({"epsilon": 0.5, "mechanism": "classical"}, "classical Gaussian mechanism"),
        ({"epsilon": None}, "NOT private: each client released its scoring head WITHOUT noise"),
        ({"norm_bound": "private"}, "but is not: the norm bound is the largest of private data"),
        ({"scorer": Logistic(normalized=False)}, "but is not: the sensitivity is that of another"),
    ],
)
def test_what_is_private_and_what_is_not(tmp_path_factory, monkeypatch, options, says):
    root = tmp_path_factory.getbasetemp() / "privacy"  # h_0 is the same for all
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    federation = create(paper_fedaux(**options))
    fit(root, federation, 0)
    lines = federation.privacy()
    assert any(says in line for line in lines)
    assert lines[-1].startswith("NOT private: the model updates and training losses that clients")
    private = any(re.search(r"is \(epsilon .*\)-private", line) for line in lines)
    assert private is options.get("secret_noise", False)


def test_carried_optimizer_states_are_not_private(tmp_path):
    for state, said in (("reset", False), ("carry", True)):
        federation = create(FedAvg(), optimizer_state=state)
        fit(tmp_path, federation, 0)
        line = federation.privacy()[-1]
        assert ("NOT private: the optimizer states of the clients" in line) is said


def test_with_secret_noise_no_page_shows_the_classes_of_a_client(tmp_path, monkeypatch):
    """Counts of classes are private; images of public data with the highest scores are not."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shown = {}
    figures = report_module.figures
    top = figures.top_images_figure

    def drawn(inputs, scores, names):
        shown[secret] = names
        return top(inputs, scores, names)

    monkeypatch.setattr(figures, "top_images_figure", drawn)
    for secret in (True, False):
        folder = reported(tmp_path / str(secret), create(paper_fedaux(secret_noise=secret)), 0)
        images = events(folder).Tags()["images"]
        assert ("data/split" in images) is not secret
        assert "certainty/top_images" in images
    assert shown[True] == ["client 0", "client 1", "client 2"]
    assert shown[False][0].startswith("client 0 (")
