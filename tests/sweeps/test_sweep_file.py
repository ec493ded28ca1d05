from dataclasses import replace
from pathlib import Path

import pytest

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.sweeps import sweep_file
from fedaux_pl.sweeps.sweep_file import check_metrics, read_sweep

FULL = """
title: Accuracy
note: digits only
base: [quickstart, {trainer.max_epochs: 2}]
seeds: [0, 3]
metric: last
axes:
  method:
    FedAVG: methods/fedavg
    FedPROX: [methods/fedprox, {model.algorithm.mu: 0.01}]
  alpha: {0.01: heterogeneity/alpha_0.01, 1.0e+2: {data.alpha: 100.0}}
where:
  - {method: FedPROX, alpha: [1.0e+2], add: [{model.algorithm.mu: 0.001}, {model.clients: {a: 1}}]}
tables:
  - {name: accuracy, rows: method, columns: [alpha], caption: All}
figures:
  - {name: fig, kind: lines, x: alpha, series: method, reference: FedAVG}
published:
  source: Tab. 1
  axes: [method, alpha]
  values: {FedAVG: {0.01: 19.9, 1.0e+2: 78.0 ± 0.3}}
"""


def read(tmp_path, text, **options):
    file = tmp_path / "mini.yaml"
    file.write_text(text)
    return read_sweep(file, **options)


def test_cells_are_the_product_of_axes_and_seeds(tmp_path):
    sweep = read(tmp_path, FULL, extra=["--config", "bf16"])
    assert (sweep.name, sweep.title, sweep.note) == ("mini", "Accuracy", "digits only")
    assert sweep.metric == "last"
    assert sweep.axes == {"method": ("FedAVG", "FedPROX"), "alpha": ("0.01", "1.0e+2")}
    assert len(sweep.cells) == 8
    assert [cell.seed for cell in sweep.cells[:2]] == [0, 3]
    last = sweep.cells[-1]
    assert last.coordinates == {"method": "FedPROX", "alpha": "1.0e+2"}
    assert last.name == "method=FedPROX alpha=1.0e+2 seed=3"
    assert " ".join(last.args) == (
        "--config quickstart --trainer.max_epochs 2 --config methods/fedprox "
        "--model.algorithm.mu 0.01 --data.alpha 100.0 --model.algorithm.mu 0.001 "
        "--model.clients {a: 1} --seed_everything 3 --config bf16"
    )
    assert sweep.published_value(last.coordinates) == ""
    assert sweep.published_value(sweep.cells[2].coordinates) == "78.0 ± 0.3"
    assert sweep.figures[0]["reference"] == "FedAVG"


def test_lists_are_values_of_an_option_and_keep_their_spelling(tmp_path):
    text = "title: a\naxes: {model.local.lr: [0.10, 1e-2], model.clients: [{resnet8: 2}]}"
    sweep = read(tmp_path, text)
    assert sweep.axes == {"model.local.lr": ("0.10", "1e-2"), "model.clients": ("{resnet8: 2}",)}
    assert sweep.cells[1].args[:4] == (
        "--model.local.lr",
        "1e-2",
        "--model.clients",
        "{resnet8: 2}",
    )
    (table,) = sweep.tables
    assert (table["rows"], table["columns"]) == (["model.local.lr"], ["model.clients"])


def test_seeds_and_select_of_the_command_line(tmp_path):
    sweep = read(tmp_path, FULL, seeds=[7], select={"alpha": ["0.01"]})
    assert [cell.name for cell in sweep.cells] == [
        "method=FedAVG alpha=0.01 seed=7",
        "method=FedPROX alpha=0.01 seed=7",
    ]
    assert sweep.axes["alpha"] == ("0.01",)


GRIDS = """
title: a
base: quickstart
grids:
  - axes: {method: {FedAVG: methods/fedavg}, data.alpha: [1, 2]}
  - {base: {data.alpha: 9}, axes: {method: {Centralized: {}}}}
  - axes: {method: {FedAVG: methods/fedavg}, data.alpha: [2, 3]}
figures: [{name: f, kind: lines, x: data.alpha, series: method, reference: Centralized}]
"""


def test_grids_are_united(tmp_path):
    sweep = read(tmp_path, GRIDS)
    assert [cell.name for cell in sweep.cells] == [
        "method=FedAVG data.alpha=1 seed=0",
        "method=FedAVG data.alpha=2 seed=0",
        "method=Centralized seed=0",
        "method=FedAVG data.alpha=3 seed=0",
    ]
    assert "--data.alpha 9" in " ".join(sweep.cells[2].args)
    # the reference lacks the axis, and stays
    chosen = read(tmp_path, GRIDS, select={"data.alpha": ["2"]})
    assert len(chosen.cells) == 2


def test_grids_that_contradict_each_other_are_refused(tmp_path):
    text = GRIDS.replace("[2, 3]}", "[2, 3]}\n    base: {model.participation: 1.0}")
    with pytest.raises(ConfigurationError, match=r"two grids give .*alpha=2 .* different settings"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title: Accuracy\n", "", "title is missing"),
        ("metric: last", "metric: mean", "metric: got mean; expected best or last, followed by "),
        ("metric: last", "metrics: last", r"metrics \(did you mean metric\?\)"),
        ("seeds: [0, 3]", "seeds: [a]", r"seeds: got \[a\]; expected a list of integers"),
        ("seeds: [0, 3]", "seeds: 3", "seeds: got 3; expected a list such as"),
        (
            "method: FedPROX, alpha",
            "method: FedProx, alpha",
            "where: method: got FedProx .*; expected",
        ),
        (
            "method: FedPROX, alpha",
            "methods: FedPROX, alpha",
            "axis of where: got methods .*; expected",
        ),
        ("FedPROX: [methods", "FedAVG: [methods", "FedAVG twice"),
        ("FedAVG: methods/fedavg", "FedAVG:", "FedAVG is empty"),
        ("columns: [alpha]", "columns: [C]", "columns: got C; expected one of method, alpha"),
        ("columns: [alpha]", "columns: [[alpha]]", r"got \[alpha\] .*; expected one of method"),
        (", columns: [alpha]", "", "differ in alpha in the same place: add alpha to columns"),
        ("kind: lines", "kind: line", "kind: got line .*; expected one of lines, curves, heatmap"),
        ("x: alpha, series", "series", "fig needs x"),
        ("reference: FedAVG", "reference: FedAvg", "reference: got FedAvg .*; expected one of"),
        ("name: fig", "name: accuracy", "other than .*index, accuracy, but it is accuracy"),
        ("name: fig", "name: a/b", "needs a name of letters"),
        ("name: fig", "name: cells", "figures: each entry needs .* other than cells, report"),
        ("rows: method", "rows: method, best: alpha", "accuracy has best and columns: remove one"),
        ("values: {FedAVG: {", "values: {FedAWG: {", "FedAWG .did you mean FedAVG"),
        (
            "0.01: 19.9",
            "0.010: 19.9",
            "published: values: alpha: got 0.010 .*; expected one of 0.01",
        ),
        (
            "{0.01: 19.9, 1.0e+2: 78.0 ± 0.3}",
            "19.9",
            "values: alpha: got 19.9; expected a mapping such as",
        ),
        ("  source: Tab. 1\n", "", "published needs source, axes and values: add source"),
        ("axes:\n  method", "grids: []\naxes:\n  method", "either axes, or grids"),
        ("title: Accuracy", "title: [", "is not valid YAML: .* in line"),
    ],
)
def test_mistakes_are_named(tmp_path, old, new, message):
    assert old in FULL
    with pytest.raises(ConfigurationError, match=message):
        read(tmp_path, FULL.replace(old, new, 1))


def test_select_of_unknown_labels_is_refused(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"select: method: got .*; expected one of FedAVG, FedPROX"
    ):
        read(tmp_path, FULL, select={"method": ["FedDF"]})
    with pytest.raises(
        ConfigurationError, match=r"axis of select: got .*; expected one of method, alpha"
    ):
        read(tmp_path, FULL, select={"C": ["1"]})


def test_a_figure_without_a_sweep_names_its_script():
    with pytest.raises(ConfigurationError, match=r"run python paper/split_bubbles.py fig8 in a cl"):
        read_sweep("paper/fig8")
    root = Path(__file__).parents[2] / "paper"
    assert all((root / command.split()[0]).is_file() for command in sweep_file._SCRIPTS.values())


def _write(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(FULL)
    return file


def test_files_are_found_by_name_of_the_package(tmp_path, monkeypatch):
    folder = tmp_path / "configs"
    (folder / "paper").mkdir(parents=True)
    (folder / "paper" / "table1.yaml").write_text(FULL)
    monkeypatch.setattr("fedaux_pl.sweeps.sweep_file.FOLDER", folder)
    for name in ("paper/table1", "configs/paper/table1.yaml", "paper/table1.yaml"):
        assert read_sweep(name).name == "table1"
    with pytest.raises(ConfigurationError, match=r"no sweep file paper/tabel1: .*did you mean"):
        read_sweep("paper/tabel1")


def test_cells_must_measure_the_metrics_of_the_sweep(tmp_path):
    made = read(tmp_path, FULL.replace("metric: last", "metric: last worst_client/f1"))
    for metrics in (["auroc"], None):
        cells = [replace(made.cells[0], config={"model": {"metrics": metrics}})]
        with pytest.raises(
            ConfigurationError, match=r"does not measure worst_client/f1: add it to"
        ):
            check_metrics(made, cells)
    for metrics in (["f1"], {"own.module.f1": {"beta": 2}}):
        check_metrics(made, [replace(made.cells[0], config={"model": {"metrics": metrics}})])
