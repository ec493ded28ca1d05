"""The accuracies on a model card: of which data they are, and what chose the round."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch

from fedaux_pl.cli.card_accuracy import accuracy_rows, find_monitor
from fedaux_pl.cli.model_verbs import export
from fedaux_pl.cli.verbs import fit
from tests.command_line import command, without_figures
from tests.federation.test_given_clients import NamedWards
from tests.federations import FewDigits

VALIDATED = {"round": 3, "val/accuracy": 0.5357, "val/client_accuracy/west": 0.5952}
TESTED = {"round": 3, "accuracy": 0.496, "client_accuracy/west": 0.488}
WEST = SimpleNamespace(name="west", statistics="own")


class FewWards(NamedWards):
    """Enough data for every client to hold some out."""

    def __init__(self):
        FewDigits.__init__(self, train=120)


@pytest.fixture(scope="module")
def validated(tmp_path_factory):
    """The folder of a run whose round was chosen by validation data."""
    root = tmp_path_factory.mktemp("validated")
    options = [
        "--model.algorithm=FedAvg",
        "--model.participation=1",
        "--model.clients={resnet8: 3}",
        "--model.model_options={width: 0.125}",
        "--model.batchnorm_statistics=own",
        f"--data.private={__name__}.FewWards",
        "--data.validation_fraction=0.3",
    ]
    _, *args = command("fit", root, *options)
    with without_figures():
        fit(args)
    [folder] = (root / "runs").iterdir()
    return folder


def card(tmp_path, run, *options):
    return (export([str(run), f"--output={tmp_path / 'out'}", *options]) / "README.md").read_text()


def test_the_card_leads_with_what_fit_measured_on_test_data(validated, tmp_path):
    test = json.loads((validated / "summary.json").read_text())["test"]
    text = card(tmp_path, validated)
    checkpoint = torch.load(validated / "checkpoints" / "best.ckpt", weights_only=True)
    measured = checkpoint["federation"]["metrics"]["val/accuracy"]
    rows = [line for line in text.splitlines() if "accuracy |" in line]
    assert rows == [
        f"| test accuracy | {test['accuracy']:.2%} on the test data of FewWards |",
        f"| validation accuracy | {measured:.2%} on the validation data of FewWards; the round was "
        "chosen by it: this figure is the best of all rounds, and optimistic |",
    ]


def test_so_does_the_card_of_a_client(validated, tmp_path):
    test = json.loads((validated / "summary.json").read_text())["test"]
    text = card(tmp_path, validated, "--client=west")
    measured = test["client_accuracy/west"]
    assert f"| test accuracy | {measured:.2%} on the test data of west |" in text
    assert "on the validation data of west; the round was chosen by val/accuracy" in text


def test_the_last_round_was_not_chosen(validated, tmp_path):
    test = json.loads((validated / "summary.json").read_text())["last_test"]
    text = card(tmp_path, validated / "checkpoints" / "last.ckpt")
    assert f"| test accuracy | {test['accuracy']:.2%} on the test data of FewWards |" in text
    assert "the round was chosen" not in text


def test_figures_of_another_run_are_not_used(validated, tmp_path):
    moved = tmp_path / "moved"
    (moved / "checkpoints").mkdir(parents=True)
    shutil.copy(validated / "checkpoints" / "best.ckpt", moved / "checkpoints")
    assert "| test accuracy | not measured |" in card(tmp_path, moved / "checkpoints" / "best.ckpt")
    summary = json.loads((validated / "summary.json").read_text())
    for changed in (
        {"settings": {**summary["settings"], "seed": 17}},
        {"settings": {**summary["settings"], "data": {}}},
        {"test": {**summary["test"], "round": 9}, "last_test": {}},
        {"test": 3},
    ):
        (moved / "summary.json").write_text(json.dumps(summary | changed))
        options = [str(moved / "checkpoints" / "best.ckpt"), "--overwrite"]
        assert "| test accuracy | not measured |" in card(tmp_path, *options)


def settings(**changes):
    shared = {"data": {"private": "Digits"}, "clients": {"resnet8": 4}}
    return {"settings": {**shared, "batchnorm_statistics": "own", "distillation": {}, **changes}}


def test_a_round_that_was_chosen_by_test_data_is_marked():
    [row] = accuracy_rows(settings(), TESTED, {}, "accuracy", None)
    assert row[1].startswith("49.60% on the test data of Digits; the round was chosen by accuracy")
    assert row[1].endswith("optimistic")


def test_votes_by_the_same_data_are_mentioned():
    voted = settings(distillation={"blend": "vote"})
    _, row = accuracy_rows(voted, VALIDATED, TESTED, "", None)
    assert row[1].endswith("the clients voted on the models by the same data")


def test_other_statistics_than_those_of_the_run_were_not_measured():
    other = SimpleNamespace(name="west", statistics="running")
    assert accuracy_rows(settings(), VALIDATED, TESTED, "", other) == [
        ("test accuracy", "not measured")
    ]
    [test, validation] = accuracy_rows(settings(), VALIDATED, TESTED, "val/accuracy", WEST)
    assert test == ("test accuracy", "48.80% on the test data of west")
    assert validation[1].startswith("59.52% on the validation data of west")


def test_the_monitor_is_that_of_the_callback_that_wrote_the_file(tmp_path):
    states = {
        "last": {"monitor": None, "best_model_path": ""},
        "other": {"monitor": "val/f1", "best_model_path": "logs/f1.ckpt"},
        "best": {"monitor": "val/accuracy", "best_model_path": "elsewhere/best.ckpt"},
        "foreign": 3,
    }
    assert find_monitor(tmp_path / "best.ckpt", states) == "val/accuracy"
    assert find_monitor(tmp_path / "last.ckpt", states) == ""
