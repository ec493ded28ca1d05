"""After the test of a chosen round, all files of a run are about that round and the test data."""

import csv
import json
import re
from pathlib import Path

import pytest
import torch
from matplotlib.text import Text

from fedaux_pl.algorithms import FedAvg, FedDF
from fedaux_pl.callbacks import FederationReport, run_figures
from fedaux_pl.callbacks.best_checkpoint import BestCheckpoint
from fedaux_pl.callbacks.client_results import describe_clients
from fedaux_pl.callbacks.figures.counts import client_bars_figure
from fedaux_pl.federation import Distillation
from tests.federation.test_given_clients import NamedWards
from tests.federations import FewDigits, create, fit, split

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")


class FewWards(NamedWards):
    """Enough data for every client to hold some out."""

    def __init__(self):
        FewDigits.__init__(self, train=120)


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text)]


def read(folder):
    with (folder / "clients.csv").open(newline="") as file:
        rows = {row["client"]: row for row in csv.DictReader(file)}
    return json.loads((folder / "summary.json").read_text()), rows


@pytest.fixture
def validated(tmp_path, monkeypatch):
    """A run of two rounds with validation data, of which the first is kept, and its figures."""
    drawn = {}
    for name in ("result_figures", "test_figures"):
        draw = getattr(run_figures, name)

        def kept(*args, draw=draw, **options):
            for title, figure in draw(*args, **options):
                drawn[title] = figure
                yield title, figure

        monkeypatch.setattr(run_figures, name, kept)
    federation = create(FedAvg(), metrics=["f1"])
    data = split(private=FewWards(), validation_fraction=0.3)
    best = BestCheckpoint(dirpath=tmp_path / "best")
    report = FederationReport()
    options = {"callbacks": [best, report], "enable_checkpointing": True}
    trainer = fit(tmp_path, federation, 2, data, **options)
    return trainer, federation, data, best, drawn


def test_until_a_test_the_result_is_that_of_the_last_round(validated, tmp_path):
    _, federation, _, _, drawn = validated
    summary, rows = read(tmp_path)
    last = federation.history[-1]
    assert (summary["accuracy"], summary["accuracy_of"], summary["accuracy_round"]) == (
        last["val/accuracy"],
        "validation",
        2,
    )
    assert summary["best_accuracy"] is None
    assert float(rows["west"]["val/accuracy"]) == last["val/client_accuracy/west"]
    assert any(
        "validation data after round 2" in text for text in texts(drawn["evaluation/confusion"])
    )
    assert "clients/test" not in drawn


def test_after_a_test_everything_is_of_its_round_and_of_test_data(validated, tmp_path):
    trainer, federation, data, best, drawn = validated
    options = {"datamodule": data, "verbose": False}
    trainer.test(federation, **options)  # of the last round, which is not the result
    summary, rows = read(tmp_path)
    assert summary["last_test"]["round"] == 2
    assert summary["accuracy_of"] == "validation"
    assert "val/accuracy" in rows["west"]

    [measured] = trainer.test(federation, ckpt_path=best.best_model_path, **options)
    round_ = torch.load(best.best_model_path, weights_only=True)["epoch"] + 1
    summary, rows = read(tmp_path)
    assert summary["accuracy"] == summary["test"]["accuracy"] == measured["accuracy"]
    assert (summary["accuracy_of"], summary["accuracy_round"]) == ("test", round_)
    assert float(rows["west"]["accuracy"]) == measured["client_accuracy/west"]
    after = f"test data after round {round_}"
    assert any(after in text for text in texts(drawn["evaluation/confusion"]))
    west = texts(drawn["evaluation/confusion/west"])
    assert any(f"test data of west after round {round_}" in text for text in west)
    bars = texts(drawn["clients/test"])
    assert any(f"each on its own test data, after round {round_}" in text for text in bars)
    for name in ("north", "west"):
        percent = f"{100 * measured[f'client_accuracy/{name}']:.1f}"
        assert {name, percent} <= set(bars)
        assert percent in describe_clients(measured)
    assert (tmp_path / "figures" / "clients_test.png").stat().st_size > 1000

    trainer.test(federation, **options)  # again of the last round
    assert read(tmp_path)[0]["accuracy_round"] == round_


def named_on_the_page():
    """The names in the second column of the table of docs/silos.md, by the file in the first."""
    page = Path("docs/silos.md").read_text()
    table = page[page.index("| file in the folder of the run |") :].split("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    found = {}
    for files, content in rows:
        for file in re.findall("`(.*?)`", files):
            found[file] = re.findall("`(.*?)`", content)
    return found


def test_the_page_about_silos_names_the_columns_of_the_files(tmp_path):
    """Of a run that holds nothing out."""
    federation = create(FedDF(), metrics=["f1"], distillation=Distillation(blend="vote"))
    report = FederationReport()
    fit(tmp_path, federation, 1, split(private=FewWards()), callbacks=[report])
    summary, rows = read(tmp_path)
    with (tmp_path / "curve.csv").open(newline="") as file:
        columns = next(csv.reader(file))
    known = {
        "clients.csv": list(rows["west"]),
        "summary.json": list(summary),
        "curve.csv": columns,
    }
    named = named_on_the_page()
    assert known.keys() <= named.keys()
    for file, names in named.items():
        assert (tmp_path / file.replace("SILO", "west")).is_file(), file
        for name in names:
            assert name.replace("SILO", "west") in known[file], (file, name)


def test_without_validation_data_the_last_round_is_the_result(tmp_path):
    federation = create(FedAvg())
    data = split(private=FewWards())
    trainer = fit(tmp_path, federation, 2, data, callbacks=[FederationReport(images=False)])
    before, _ = read(tmp_path)
    assert (before["accuracy_of"], before["accuracy_round"]) == ("test", 2)
    trainer.test(federation, datamodule=data, verbose=False)
    after, rows = read(tmp_path)
    assert after["accuracy"] == pytest.approx(before["accuracy"])
    assert float(rows["west"]["accuracy"]) == pytest.approx(
        after["last_test"]["client_accuracy/west"]
    )


def test_of_many_clients_the_first_are_shown():
    names = [f"ward {number}" for number in range(150)]
    figure = client_bars_figure(names, [0.5] * 150, "150 clients")
    assert len(figure.axes[0].patches) == 100
    assert any("the first 100 of 150 clients shown" in text for text in texts(figure))
