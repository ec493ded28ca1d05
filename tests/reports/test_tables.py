from fedaux_pl.reports.tables import cells_table, make_tables
from fedaux_pl.reports.values import ABSENT as GAP
from fedaux_pl.sweeps.cells import CellState
from tests.reports.results import group, sweep

AXES = {"method": ["A", "B", "C", "ref"], "C": ["0.2", "0.4"], "alpha": ["0.01"]}
LAYOUT = {"name": "t", "rows": "method", "columns": ["C", "alpha"], "caption": "About C."}


def make(groups, axes=AXES, layout=LAYOUT, **options):
    [table] = make_tables(sweep(axes, [layout], **options), groups)
    return table


def test_ours_beside_the_published():
    table = make(
        [
            group("method=A C=0.2 alpha=0.01", 61.0, 62.0, 63.0, published="74.6 ± 0.3"),
            group("method=B C=0.2 alpha=0.01", 60.1, 60.0, 60.1),
            group("method=C C=0.2 alpha=0.01", 57.0, 60.0, 63.0),  # 60.0 ± 3.0 reaches 61.0
            group("method=A C=0.4 alpha=0.01", None, None),
            group(
                "method=B C=0.4 alpha=0.01", None, curve=[1], state=CellState.UNFINISHED, total=100
            ),
        ],
        published={"A": {"0.2": {"0.01": "74.6 ± 0.3"}}},
    )
    assert list(table.frame) == [
        ("", "", "method"),
        ("C = 0.2", "alpha = 0.01", "ours"),
        ("C = 0.2", "alpha = 0.01", "paper"),
        ("C = 0.4", "alpha = 0.01", "ours"),
    ]
    assert table.rows == [
        ["A", "62.0 ± 1.0 (3)", "74.6 ± 0.3", GAP],
        ["B", "60.1 ± 0.1 (3)", GAP, "(1/100 rounds)"],
        ["C", "60.0 ± 3.0 (3)", GAP, GAP],
    ]
    assert table.bold == {(0, 1), (2, 1)}
    assert table.caption == (
        "About C. Test accuracy in %, best over the rounds: mean ± standard deviation (number of "
        "seeds); paper: Tab. 1. Bold: the best, and all whose standard deviation overlaps with its "
        "own."
    )


def test_without_published_values_there_is_no_paper():
    table = make([group("method=A C=0.2 alpha=0.01", 5.0), group("method=B C=0.2 alpha=0.01", 6.0)])
    assert list(table.frame) == [("", "method"), ("C = 0.2", "alpha = 0.01")]
    assert table.bold == {(1, 1)}
    assert "paper" not in table.caption


def test_a_single_value_and_a_reference_are_not_bold():
    figures = [{"kind": "lines", "reference": "ref"}]
    groups = [
        group("method=A C=0.2 alpha=0.01", 5.0),
        group("method=A C=0.4 alpha=0.01", 5.0),
        group("method=B C=0.4 alpha=0.01", 4.0),
        group("method=ref", 9.0),
    ]
    table = make(groups, figures=figures)
    assert table.rows[2] == ["ref", "9.0 (1)", "9.0 (1)"]
    assert table.bold == {(0, 2)}


def test_rows_of_several_axes_compete_within_the_first():
    groups = [
        group("method=A C=0.2 alpha=0.01", 1.0),
        group("method=B C=0.2 alpha=0.01", 2.0),
        group("method=A C=0.4 alpha=0.01", 9.0),
        group("method=B C=0.4 alpha=0.01", 8.0),
    ]
    table = make(groups, layout={"name": "t", "rows": ["C", "method"], "columns": "alpha"})
    assert [row[0] for row in table.rows] == [
        "C = 0.2, A",
        "C = 0.2, B",
        "C = 0.4, A",
        "C = 0.4, B",
    ]
    assert next(iter(table.frame)) == ("C, method",)
    assert table.bold == {(1, 1), (2, 1)}


def test_a_table_without_columns():
    table = make([group("method=A", 5.0)], {"method": ["A"]}, {"name": "t", "rows": "method"})
    assert table.frame.to_dict("list") == {("method",): ["A"], ("accuracy",): ["5.0 (1)"]}


def test_failed_cells_are_named():
    table = make([group("method=A C=0.2 alpha=0.01", None, state=CellState.FAILED)])
    assert table.rows == [["A", "failed"]]


def test_the_best_labels_of_each_row():
    axes = {"method": ["A", "B"], "local.lr": ["1", "2"], "server.lr": ["3", "4"]}
    groups = [
        group("method=A local.lr=1 server.lr=3", 5.0),
        group("method=A local.lr=2 server.lr=4", 7.0),
        group("method=A local.lr=2 server.lr=3", None, published="70.1"),
        group("method=B local.lr=1 server.lr=3", None, published="60"),
    ]
    layout = {"name": "t", "rows": "method", "best": ["local.lr", "server.lr"]}
    table = make(groups, axes, layout, published={})
    ours = ["local.lr", "server.lr", "accuracy"]
    sources = ["", *["ours"] * 3, *["paper"] * 3]
    assert list(table.frame) == list(zip(sources, ["method", *ours, *ours], strict=True))
    assert table.rows == [
        ["A", "2", "4", "7.0 (1)", "2", "3", "70.1"],
        ["B", GAP, GAP, GAP, "1", "3", "60"],
    ]
    points = ("method=A local.lr=1 server.lr=3", 5.0), ("method=A local.lr=2 server.lr=4", 7.0)
    errors = [group(*point, is_lower_better=True) for point in points]
    assert make(errors, axes, layout).rows == [["A", "1", "3", "5.0 (1)"]]


def test_all_cells():
    groups = [
        group("method=A C=0.2 alpha=0.01", 61.444, None, published="74.6", curve=[1, 2, 3]),
        group("method=ref", None),
    ]
    table = cells_table(sweep(AXES), groups)
    assert list(table.frame)[:6] == ["method", "C", "alpha", "seed", "state", "rounds"]
    assert table.rows[0] == [
        *("A", "0.2", "0.01", "0", "done", "3", "61.44", "74.6", "", "fedaux-pl fit")
    ]
    assert table.rows[1][3:7] == ["1", "missing", "3", ""]
    assert table.rows[2][:4] == ["ref", "", "", "0"]
