import json
import math

import pytest

from fedaux_pl.reports.tables import cells_table, describe_metric, make_tables
from fedaux_pl.reports.values import ABSENT, collect, find, measure, places, shown
from fedaux_pl.sweeps.cells import Cell, CellState
from tests.reports.results import group, sweep

AXES = {"method": ["A", "B", "ref"], "alpha": ["0.01", "100"]}


def resolved(root, key, coordinates=AXES, seed=0):
    return Cell(coordinates, seed, ("--data.alpha", "1 2"), root, key=key, rounds=3)


def write_run(root, key, accuracies, metric="accuracy", **summary):
    cell = resolved(root, key)
    cell.create()
    run = cell.path / "runs" / "A"
    run.mkdir(parents=True)
    lines = [f"round,{metric}", *(f"{t},{a}" for t, a in enumerate(accuracies, 1))]
    (run / "curve.csv").write_text("\n".join(lines) + "\n")
    (run / "summary.json").write_text(json.dumps({"rounds": len(accuracies), **summary}))
    return cell


@pytest.mark.parametrize(("metric", "expected"), [("best", [40, 60]), ("last", [30, 60])])
def test_means_over_the_finished_seeds(tmp_path, metric, expected):
    made = write_run(tmp_path, "a0", [0.1, 0.4, 0.3])
    (made.path / "cell.json").write_text(json.dumps({"command": "x --y", "version": "0.9"}))
    write_run(tmp_path, "a1", [0.2, 0.5, 0.6])
    write_run(tmp_path, "a2", [0.9])  # unfinished: does not count
    place = {"method": "A", "alpha": "0.01"}
    cells = [resolved(tmp_path, f"a{seed}", place, seed) for seed in range(4)]
    made = sweep(AXES, published={"A": {"0.01": "74.6 ± 0.3"}}, metric=metric)
    [found] = collect(made, cells)
    assert found.coordinates == place
    assert list(found.accuracies) == pytest.approx(expected)
    assert found.mean == pytest.approx(sum(expected) / 2)
    assert found.std == pytest.approx((expected[1] - expected[0]) / 2**0.5)
    assert [r.state for r in found.results] == [
        CellState.DONE,
        CellState.DONE,
        CellState.UNFINISHED,
        CellState.MISSING,
    ]
    assert [r.rounds for r in found.results] == [3, 3, 1, 0]
    assert dict(found.results[2].curve) == {1: 90}
    rows = cells_table(made, [found]).rows
    assert rows[0][-2:] == ["0.9", "x --y"]
    assert rows[3][-2:] == ["", "fedaux-pl fit --data.alpha '1 2'"]
    assert (found.published, found.published_mean) == ("74.6 ± 0.3", 74.6)


def test_with_validation_data_the_test_accuracy_counts(tmp_path):
    best = {"accuracy": 0.5, "round": 2}
    last = {"accuracy": 0.4, "round": 3}
    write_run(tmp_path, "a", [0.8, 0.9, 0.7], "val/accuracy", test=best, last_test=last)
    cell = resolved(tmp_path, "a", {"method": "A"})
    groups = collect(sweep(AXES), [cell])
    [found] = groups[0].results
    assert found.accuracy == 50
    assert collect(sweep(AXES, metric="last"), [cell])[0].mean == 40
    assert dict(found.curve) == pytest.approx({1: 80, 2: 90, 3: 70})
    text = describe_metric(sweep(AXES), groups)
    assert text.startswith("Test accuracy in % of the round that is best on the validation data:")
    more = group("method=B", 1.0, curve=[1.0], published="2")
    mixed = describe_metric(sweep(AXES, published={}), [*groups, more])
    assert "validation data (best over the rounds where there are none): mean" in mixed
    assert mixed.endswith("(number of seeds); paper: Tab. 1.")
    text = describe_metric(sweep(AXES, published={}, metric="last"), [*groups, more])
    assert text.startswith("Test accuracy in %, of the last round: mean ±")


def test_a_metric_of_the_test_that_is_nan_is_absent(tmp_path):
    tested = {"auroc": "nan"}
    write_run(tmp_path, "a", [0.8, 0.9, 0.7], "val/accuracy", test=tested, last_test=tested)
    [found] = collect(sweep(AXES, metric="last auroc"), [resolved(tmp_path, "a", {"method": "A"})])
    assert (found.results[0].state, len(found.accuracies)) == (CellState.DONE, 0)


def test_one_seed_has_no_standard_deviation():
    assert math.isnan(group("method=A", 50.0, None).std)
    assert math.isnan(group("method=A", None).mean)
    assert math.isnan(group("method=A", 50.0).published_mean)


def test_a_reference_without_an_axis_is_in_every_place():
    own = [group("method=A alpha=100", 1.0), group("method=B alpha=0.01", 2.0)]
    reference = group("method=ref", 9.0)
    groups = [*own, reference]
    assert places(groups, AXES, ["alpha"]) == [{"alpha": "0.01"}, {"alpha": "100"}]
    assert places([reference], AXES, ["alpha"]) == [{}]
    assert places(groups, AXES, ["method"])[-1] == {"method": "ref"}
    assert find(groups, {"method": "ref", "alpha": "100"}) is reference
    assert find(groups, {"method": "A", "alpha": "0.01"}).coordinates == {}
    assert find([group("method=A"), own[0]], {"method": "A", "alpha": "100"}) is own[0]


def test_a_grid_of_other_axes_is_not_shown():
    axes = {**AXES, "epsilon": ["1", "2"], "data": ["digits"]}
    by_alpha = group("method=A alpha=100 data=digits", 1.0)
    by_epsilon = group("method=A epsilon=1 data=digits", 2.0)
    reference = group("method=ref data=digits", 9.0)
    groups = [by_alpha, by_epsilon, reference]
    assert shown(groups, axes, ["method", "alpha"]) == [by_alpha, reference]
    assert shown(groups, axes, ["method", "epsilon"]) == [by_epsilon, reference]


def test_any_metric_of_the_runs_counts_and_the_lowest_may_be_the_best(tmp_path):
    """A table of several metrics; of ece the lowest is the best, also of a client's."""
    cells = []
    for method, errors in (("A", [0.3, 0.1, 0.2]), ("B", [0.4, 0.4, 0.4])):
        about = {"lower_is_better": ["ece"], "method": method}
        write_run(tmp_path, method, errors, "client_ece/north", **about)
        cells.append(resolved(tmp_path, method, {"method": method}))
    layout = {"name": "t", "rows": "method", "metrics": ["client_ece/north", "accuracy"]}
    made = sweep({"method": ["A", "B"]}, [layout], metric="best client_ece/north")
    groups = collect(made, cells)
    assert [group.mean for group in groups] == pytest.approx([10, 40])
    assert [group.mean for group in measure(groups, "last client_ece/north")] == [20, 40]
    [table] = make_tables(made, groups)
    assert list(table.frame) == [("method",), ("client_ece/north",), ("accuracy",)]
    assert table.rows == [["A", "10.0 (1)", ABSENT], ["B", "40.0 (1)", ABSENT]]
    assert table.bold == {(0, 1)}
    assert table.caption.startswith("Test metrics x 100, best over the rounds: mean")
    assert list(cells_table(made, groups).frame)[4] == "client_ece/north"
    tested = {"accuracy": 0.5, "round": 2, "worst_client/accuracy": 0.25}
    write_run(tmp_path, "C", [0.8, 0.9, 0.7], "val/accuracy", test=tested, last_test=tested)
    made = sweep({"method": ["C"]}, metric="last worst_client/accuracy")
    [found] = collect(made, [resolved(tmp_path, "C", {"method": "C"})])
    assert found.mean == 25
