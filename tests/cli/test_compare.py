"""``fedaux-pl compare``."""

import csv
import json
import subprocess
import sys

import pytest
from PIL import Image

from fedaux_pl.cli import compare as compare_module
from fedaux_pl.cli.compare import compare
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.runs.finished_runs import group_by_settings, load_runs


def write_run(folder, accuracies, method="FedAUX", seed=0, alpha=0.01, metric="accuracy", **extra):
    """A run's folder; None for a round without a measurement."""
    folder.mkdir(parents=True)
    with (folder / "curve.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["round", metric, "bytes/up_total", "bytes/down_total"])
        for t, value in enumerate(accuracies, 1):
            table.writerow([t, "" if value is None else value, 1e6 * t, 2e6 * t])
    data = {"alpha": alpha, "seed": seed}
    settings = {"algorithm": {"method": method, **extra}, "seed": seed, "data": data}
    about = {"method": method, "data": "Digits + STL10", "settings": settings}
    (folder / "summary.json").write_text(json.dumps(about))
    return folder


def run(*args):
    return compare([str(arg) for arg in args])


def test_the_table(tmp_path, capsys):
    one = write_run(tmp_path / "runs" / "one", [0.3, 0.75, 0.5])
    write_run(tmp_path / "runs" / "two", [0.2, None], "FedDF+P", alpha=None, seed=4)
    rows = run(tmp_path / "runs", one / "curve.csv", "--output", tmp_path / "out")
    best = "best over rounds (test data)"
    assert rows.to_dict("records") == [
        {
            "run": "one", "method": "FedAUX", "data": "Digits + STL10", "alpha": 0.01, "seed": 0,
            "rounds": 3, "last accuracy": 0.5, best: 0.75, "bytes": 9_000_000,
        },
        {
            "run": "two", "method": "FedDF+P", "data": "Digits + STL10", "alpha": "given",
            "seed": 4, "rounds": 2, "last accuracy": 0.2, best: 0.2, "bytes": 6_000_000,
        },
    ]  # fmt: skip
    head, _, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["run", "method", "data"]
    assert " ".join(first.split()) == "one FedAUX Digits + STL10 0.01 0 3 50.0% 75.0% 9.0 MB"
    assert head.index("seed") + len("seed") == first.index(" 0 ") + 2  # numbers to the right
    with (tmp_path / "out" / "compare.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert rows.astype(str).to_dict("records") == written
    with Image.open(tmp_path / "out" / "compare.png") as picture:
        assert picture.width > 500


def test_runs_that_differ_in_the_seed_only_are_one_curve(tmp_path, capsys, monkeypatch):
    write_run(tmp_path / "a", [0.2, 0.4], seed=0)
    write_run(tmp_path / "b", [0.4, 0.8], seed=1)
    write_run(tmp_path / "short", [0.6], seed=2)  # still runs
    write_run(tmp_path / "c", [0.1, 0.1], "FedDF+P", seed=0)
    figures = []
    draw = compare_module._draw
    monkeypatch.setattr(
        compare_module, "_draw", lambda *args: figures.append(draw(*args)) or figures[0]
    )
    run(tmp_path, "--output", tmp_path)
    lines = {line.get_label(): line for line in figures[0].axes[0].lines}
    mean = lines["FedAUX, rounds 2 (mean and range of 2 runs)"]
    assert mean.get_xdata().tolist() == [1, 2]
    assert mean.get_ydata().tolist() == pytest.approx([30, 60])
    [band] = figures[0].axes[0].collections
    assert band.get_datalim(figures[0].axes[0].transData).get_points()[:, 1] == pytest.approx(
        [20, 80]
    )
    assert lines["FedDF+P"].get_ydata().tolist() == pytest.approx([10, 10])
    printed = capsys.readouterr().out
    assert "FedAUX, rounds 2: last accuracy 60.0%, the mean of 2 runs (40.0% to 80.0%)" in printed
    assert lines["FedAUX, rounds 1"].get_ydata().tolist() == pytest.approx([60])


def test_labels_name_what_differs(tmp_path):
    write_run(tmp_path / "a", [0.1])
    write_run(tmp_path / "b", [0.1], alpha=1.0)
    write_run(tmp_path / "c", [0.1], alpha=1.0, epsilon=0.5)
    write_run(tmp_path / "d", [0.1], "FedDF+P")
    write_run(tmp_path / "e", [0.1], "FedBN", epsilon=None)
    write_run(tmp_path / "f", [0.1], "FedBN", epsilon=1)
    groups = group_by_settings(load_runs([tmp_path]))
    assert list(groups) == [
        "FedAUX, alpha 0.01",
        "FedAUX, alpha 1.0, b",  # it has no setting that c lacks
        "FedAUX, alpha 1.0, epsilon 0.5",
        "FedDF+P, alpha 0.01",
        "FedBN, alpha 0.01, epsilon None",
        "FedBN, alpha 0.01, epsilon 1",
    ]


def test_test_and_validation_data_are_not_mixed(tmp_path, capsys):
    write_run(tmp_path / "tested", [0.5])
    validated = write_run(tmp_path / "validated", [0.6, 0.7], metric="val/accuracy")
    rows = run(tmp_path, "--output", tmp_path)
    assert list(rows["last accuracy"]) == [0.5, None]
    line = capsys.readouterr().out.splitlines()[-2]
    assert line.startswith("not in the curves: validated")
    assert "it has val/accuracy, measured on other data" in line
    assert "--metric val/accuracy" in line
    rows = run(validated, "--metric", "val/accuracy", "--output", tmp_path)
    assert list(rows["best over rounds (validation data)"]) == [0.7]
    with pytest.raises(ConfigurationError, match="add --metric val/accuracy"):
        run(validated, "--metric", "accuracy")


def test_runs_with_validation_data_need_no_option(tmp_path, capsys):
    """As with ``--config silos``: their rounds have val/accuracy alone, and a test follows."""
    one = write_run(tmp_path / "one", [0.6, 0.8, 0.7], metric="val/accuracy")
    write_run(tmp_path / "two", [0.5, 0.4], "FedAvg", metric="val/accuracy")  # still runs
    summary = json.loads((one / "summary.json").read_text())
    tested = {"test": {"accuracy": 0.55, "round": 2}, "last_test": {"accuracy": 0.5, "round": 3}}
    (one / "summary.json").write_text(json.dumps(summary | tested))
    rows = run(tmp_path, "--output", tmp_path / "out")
    assert list(rows["last val/accuracy"]) == [0.7, 0.4]
    assert list(rows["best over rounds (validation data)"]) == [0.8, 0.5]
    assert list(rows["test accuracy"]) == [0.55, None]
    assert list(rows["of round"]) == [2, None]
    printed = capsys.readouterr().out
    assert "55.0%" in printed
    assert "not in the curves" not in printed
    write_run(tmp_path / "three", [0.2, 0.3], "FedDF")
    rows = run(tmp_path, "--output", tmp_path / "out").set_index("run")
    assert rows["test accuracy"].to_dict() == {"one": 0.55, "three": 0.3, "two": None}
    assert rows["of round"].to_dict() == {"one": 2, "three": 2, "two": None}


def test_a_finished_run(finished_run, tmp_path):
    [row] = run(finished_run.root, "--output", tmp_path).to_dict("records")
    assert (row["run"], row["method"]) == (finished_run.folder.name, "FedAUX with memory")
    assert (row["data"], row["alpha"], row["rounds"]) == ("FewDigits + FewDigits", 0.01, 2)
    summary = json.loads((finished_run.folder / "summary.json").read_text())
    assert row["last accuracy"] == pytest.approx(summary["accuracy"])


def test_a_curve_alone(tmp_path):
    folder = write_run(tmp_path / "alone", [0.5])
    (folder / "summary.json").unlink()
    [row] = run(folder / "curve.csv", "--output", tmp_path).to_dict("records")
    assert (row["method"], row["alpha"], row["last accuracy"]) == (None, None, 0.5)


def test_names_are_as_short_as_they_are_unique(tmp_path):
    for name in ("x/runs/version_10", "x/runs/version_9", "y/runs/version_9"):
        write_run(tmp_path / name, [0.5])
    names = [r.name for r in load_runs([tmp_path])]
    assert names == ["x/runs/version_9", "version_10", "y/runs/version_9"]
    assert [r.name for r in load_runs([tmp_path / "x"])] == ["version_9", "version_10"]
    files = [tmp_path / "y/runs/version_9" / name for name in ("curve.csv", "kept.csv")]
    files[1].write_bytes(files[0].read_bytes())
    assert [r.name for r in load_runs(files)] == ["version_9", "version_9"]


def test_of_a_loss_the_smallest_is_the_best(tmp_path):
    write_run(tmp_path / "a", [3.0, 1.0, 2.0], metric="client_loss/mean")
    [row] = run(tmp_path, "--metric", "client_loss/mean", "--output", tmp_path).to_dict("records")
    assert row["best over rounds (test data)"] == 1.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "missing does not exist: give the folder of a run"),
        ("", "is not the curve.csv of a run"),
        ("step,loss\n1,2\n", "a column 'round', and numbers"),
        ("round,accuracy\n1,much\n", "could not convert string to float"),
        ("round,accuracy\n1,0.5,7\n", "is not the curve.csv of a run"),
    ],
)
def test_wrong_input_is_told_in_one_line(tmp_path, content, message):
    path = tmp_path / "missing"
    if content is not None:
        path = tmp_path / "curve.csv"
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=message) as caught:
        run(path)
    assert "\n" not in str(caught.value)


def test_an_empty_folder_a_damaged_summary_and_a_misspelled_metric(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match=r"has no curve\.csv below it"):
        run(tmp_path / "empty")
    folder = write_run(tmp_path / "run", [0.5])
    with pytest.raises(ConfigurationError, match="did you mean accuracy"):
        run(folder, "--metric", "acuracy")
    with pytest.raises(ConfigurationError, match=r"no 'loss' in curve\.csv; it has accuracy, "):
        run(folder, "--metric", "loss")
    (folder / "summary.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"its summary\.json is damaged"):
        run(folder)


def test_it_imports_no_torch(tmp_path):
    folder = write_run(tmp_path / "run", [0.5])
    code = (
        "import sys; from fedaux_pl.cli.compare import compare; compare(sys.argv[1:]); "
        "sys.exit('torch' in sys.modules or 'pytorch_lightning' in sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code, folder, "--output", tmp_path], check=True, timeout=60
    )
