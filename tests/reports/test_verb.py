"""``fedaux-pl report``."""

import csv
import json

import pandas as pd
import pytest

from fedaux_pl.cli import main
from fedaux_pl.cli.report import publish, report
from fedaux_pl.reports.formats import TableItem
from fedaux_pl.sweeps.cells import resolve
from fedaux_pl.sweeps.sweep_file import read_sweep

SWEEP = """
title: A small table
note: Digits.
base: quickstart
seeds: [0, 1]
axes:
  method: {FedAVG: methods/fedavg, FedAUX: {}}
  data.alpha: [0.01, 1.0e+2]
tables: [{name: small, rows: method, columns: data.alpha}]
figures: [{name: curves, kind: curves, series: method, panels: data.alpha}]
published: {source: a paper, axes: [method], values: {FedAUX: 74.6}}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A sweep of which five of eight cells are done."""
    root = tmp_path_factory.mktemp("sweep")
    (root / "small.yaml").write_text(SWEEP)
    options = ["--trainer.max_epochs", "2"]
    cells = resolve(read_sweep(root / "small.yaml", options).cells, root)
    for i, cell in enumerate(cells[:5]):
        run = cell.path / "runs" / "A"
        run.mkdir(parents=True)
        (cell.path / "cell.json").write_text(json.dumps({"command": f"c{i}", "version": "9"}))
        (run / "curve.csv").write_text(f"round,accuracy\n1,0.{i}\n2,0.{i}5\n")
        (run / "summary.json").write_text('{"rounds": 2}')
    return root


def test_a_sweep(root, capsys):
    file = str(root / "small.yaml")
    args = [file, "--root", str(root), "--trainer.max_epochs", "2"]
    assert main(["report", *args]) == 0
    printed = capsys.readouterr().out
    table = [" ".join(line.split()) for line in printed.splitlines() if line.startswith("Fed")]
    gap = "\N{EN DASH}"
    assert table == [
        f"FedAVG 10.0 ± 7.1 (2) {gap} 30.0 ± 7.1 (2) {gap}",
        f"FedAUX *45.0 (1) 74.6 {gap} 74.6",
    ]
    assert "5 of 8 cells done, 3 missing" in printed
    assert f"To run them: fedaux-pl sweep {' '.join(args)}\n" in printed
    assert f"Written to {root / 'reports' / 'small'}: cells.csv, curves.pdf" in printed
    with (root / "reports" / "small" / "cells.csv").open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [row["state"] for row in rows] == ["done"] * 5 + ["missing"] * 3
    assert rows[4]["command"] == "c4"
    assert rows[4]["published"] == "74.6"
    assert rows[7]["command"].startswith("fedaux-pl fit --config quickstart --data.alpha 1.0e+2")
    page = (root / "reports" / "small" / "index.html").read_text()
    changes = "All cells ran with these options, whatever else is said here"
    assert f"<p>Digits.</p>\n<p>{changes}: --trainer.max_epochs 2</p>" in page


def test_a_selection_in_a_folder_of_its_own(root, tmp_path, capsys):
    own = ["--select", "method=FedAVG", "--select", "data.alpha=0.01", "--seeds", "1"]
    args = [str(root / "small.yaml"), "--root", str(root), *own]
    files = report([*args, "--output", str(tmp_path / "out")])  # ten rounds: not the done cell
    assert {path.parent for path in files} == {tmp_path / "out"}
    printed = capsys.readouterr().out
    assert "0 of 1 cell done, 1 missing\n  FedAVG, alpha = 0.01: seed 1 missing\n" in printed
    assert f"fedaux-pl sweep {' '.join(args)}\n" in printed


def test_a_report_without_a_sweep(tmp_path, capsys):
    table = TableItem("costs", "What it costs.", pd.DataFrame({"method": ["FedAVG"], "MB": "24.6"}))
    publish(tmp_path / "costs", "Costs of 10 %", [table], note="A note.")
    assert "What it costs.\n\nmethod    MB\n" in capsys.readouterr().out
    page = (tmp_path / "costs" / "index.html").read_text()
    assert "<h1>Costs of 10 %</h1>\n<p>A note.</p>" in page
    assert "cells" not in page
    assert 'class="status"' not in page


def test_wrong_command_lines(tmp_path, capsys):
    assert main(["report", "--root", "x"]) == 2
    assert "give the sweep file first" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "no.yaml")]) == 1
    assert "there is no sweep file" in capsys.readouterr().err
    assert main(["report", "silos/offices"]) == 1
    assert "(did you mean silos/office?)" in capsys.readouterr().err
