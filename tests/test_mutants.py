"""The mutants of tools/mutants.py, in a small package with small tests."""

import json

import pytest

from tools import mutants

CODE = '''"""Sums — of two."""


def total(first, second, *, bound=10):
    """Return at most 10."""
    found = "é", first + (
        second
    )
    return min(found[1], bound)


def unused():
    return 2
'''
TESTS = """from fedaux_pl.room.sums import total


def test_total():
    assert total(1, 2) == 3
    assert total(9, 9) == 10
"""


@pytest.fixture
def clone(tmp_path, monkeypatch):
    for path, text in {
        "fedaux_pl/__init__.py": "",
        "fedaux_pl/room/__init__.py": "",
        "fedaux_pl/room/sums.py": CODE,
        "tests/room/test_sums.py": TESTS,
        "tests/test_all.py": "from fedaux_pl.room.sums import unused\n\n\n"
        "def test_unused():\n    assert unused() == 2\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setenv("PYTHONPATH", "")  # main sets it
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_mutant_changes_one_expression(clone):
    found = mutants.mutants_of(mutants.Path("fedaux_pl/room/sums.py"))
    changed = [mutant.apply(CODE) for mutant in found]
    assert [(mutant.line, mutant.new) for mutant in found] == [
        (4, "def total(first, second, *, bound=(11)):\n"),
        (6, '    found = "é", (first - second)\n'),
        (9, "    return (min(bound, found[1]))\n"),
        (9, "    return min(found[(2)], bound)\n"),
        (13, "    return (3)\n"),
    ]
    for text in changed:
        compile(text, "sums.py", "exec")


def test_lines_that_moved_are_found_if_they_occur_once(clone):
    mutant = mutants.Mutant("fedaux_pl/room/sums.py", 12, "    return 2\n", "    return 3\n")
    moved = CODE.replace("def unused", "X = 1\n\n\ndef unused")
    assert mutant.apply(moved) == moved.replace("return 2", "return 3")
    deeper = moved.replace("    return 2\n", "    if True:\n        return 2\n")
    assert mutant.apply(deeper) is None
    assert mutant.apply(moved + moved) is None


def test_mutants_are_drawn_written_and_read(clone, capsys):
    mutants.main(["room", "--count", "3", "--seed", "1", "--write", "mutants.json"])
    assert capsys.readouterr().out == "mutants.json: 3 mutants\n"
    entries = json.loads((clone / "mutants.json").read_text())
    assert [set(entry) for entry in entries] == [{"path", "line", "old", "new"}] * 3
    assert mutants.read(clone / "mutants.json") == mutants.draw(["room"], 3, seed=1)
    assert mutants.draw(["room"], 3, seed=2) != mutants.draw(["room"], 3, seed=1)


def test_the_suite_finds_what_the_room_does_not(clone, capsys):
    file = "fedaux_pl/room/sums.py"
    found = {mutant.new.strip(): mutant for mutant in mutants.draw(["room"], 100, seed=0)}
    chosen = [found['found = "é", (first - second)'], found["return (3)"]]
    mutants.write(chosen, clone / "two.json")
    mutants.main(["--read", "two.json", "--suite", "--jobs", "0"])
    text = capsys.readouterr().out
    assert "1/2 found by tests/room/test_sums.py::test_total\nfedaux_pl/room/sums.py:6\n" in text
    assert "2/2 found by tests/test_all.py::test_unused\n" in text
    assert text.endswith("2 mutants: 2 found, 0 survive; 0 skipped\n")
    assert (clone / file).read_text() == CODE


def test_mutants_of_lines_that_are_gone_are_skipped(clone, capsys):
    mutant = mutants.Mutant("fedaux_pl/room/sums.py", 13, "    return 5\n", "    return 6\n")
    gone = [mutant, mutant._replace(path="fedaux_pl/room/gone.py")]
    mutants.write(gone, clone / "gone.json")
    mutants.main(["--read", "gone.json"])
    text = capsys.readouterr().out
    assert text.count("SKIPPED, the lines are gone") == 2
    assert text.endswith("0 mutants: 0 found, 0 survive; 2 skipped\n")


def test_tests_of_another_folder(clone, capsys):
    (clone / "mutants.json").write_text(
        json.dumps(
            [
                {
                    "path": "fedaux_pl/room/sums.py",
                    "line": 4,
                    "old": "def total(first, second, *, bound=10):\n",
                    "new": "def total(first, second, *, bound=(11)):\n",
                }
            ]
        )
    )
    (clone / "other/room").mkdir(parents=True)
    (clone / "other/room/test_sums.py").write_text(
        TESTS.replace("    assert total(9, 9) == 10\n", "")
    )
    mutants.main(["--read", str(clone / "mutants.json"), "--tests", str(clone / "other")])
    assert "1/1 SURVIVES\n" in capsys.readouterr().out


def test_tests_must_pass_without_a_mutant(clone):
    (clone / "tests/room/test_sums.py").write_text(TESTS.replace("== 3", "== 4"))
    with pytest.raises(SystemExit, match=r"without a mutant: tests/room/test_sums\.py::test_total"):
        mutants.main(["room", "--count", "1"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name rooms"),
        (["room", "--read", "x.json"], "name rooms"),
        (["--read", "x.json", "--write", "y.json"], "exclude each other"),
    ],
)
def test_options_that_make_no_sense(options, message, capsys):
    with pytest.raises(SystemExit):
        mutants.main(options)
    assert message in capsys.readouterr().err
