"""The nightly command: which packages it installs, and when it fails."""

import sys
from pathlib import Path

import pytest

from tools import nightly
from tools.nightly import NotTriedError


def test_pip_is_kept_at_the_lower_bounds():
    project = {
        "dependencies": ["torch>=2.10", "pytorch-lightning>=2.6.1,!=2.6.2", "numpy>=2"],
        "optional-dependencies": {
            "test": ["fedaux-pl[sites]", "triton>=3.6; sys_platform == 'linux'"],
            "sites": ["jsonargparse[signatures]>=4.53"],
        },
    }
    assert nightly.lower_bounds(project) == [
        "torch==2.10.*",
        "pytorch-lightning==2.6.*",
        "numpy==2.0.*",
        "triton==3.6.*",
        "jsonargparse==4.53.*",
    ]


def test_every_dependency_has_a_lower_bound():
    project = nightly.read_project()
    requirements = sum(project["optional-dependencies"].values(), project["dependencies"])
    others = [name for name in requirements if not name.startswith("fedaux-pl[")]
    assert len(nightly.lower_bounds(project)) == len(others)
    assert nightly.oldest_python(project) == "3.11"


@pytest.fixture
def made(monkeypatch):
    """The environments that are made, none of them really."""
    made = []

    def create(folder, python, *, is_oldest):
        made.append((folder.name, python, is_oldest))
        return Path("python")

    monkeypatch.setattr(nightly, "create_environment", create)
    monkeypatch.setattr(nightly, "compile_kernels", lambda python, folder: (True, "triton 3.9"))
    return made


def test_parts_that_pass(made, monkeypatch, capsys, tmp_path):
    ran = []
    monkeypatch.setattr(nightly, "run_tests", lambda *run: ran.append(run) or (True, "5 passed"))
    args = [f"--folder={tmp_path}", "--tests", "tests/functional", "tests/models", "--", "-x"]
    assert nightly.main(args) == 0
    assert ran == [(Path("python"), ["tests/functional", "tests/models"], ["-x"])] * 3
    assert [(name, is_oldest) for name, _, is_oldest in made] == [
        ("oldest", True),
        ("newest", False),
        ("python3.14", False),
        ("kernels", False),
    ]
    assert (made[0][1], made[2][1]) == ("3.11", "3.14")
    rows = capsys.readouterr().out.splitlines()[-4:]
    assert [row.split(" | ")[:2] for row in rows] == [
        [f"| {part}", "passed"] for part in nightly.PARTS
    ]


def test_tests_that_fail_and_environments_that_cannot_be_made(monkeypatch, capsys):
    """A missing Python 3.14 is no failure."""

    def refuse(folder, python, *, is_oldest):
        raise NotTriedError(f"there is no python{python}")

    monkeypatch.setattr(nightly, "create_environment", refuse)
    assert nightly.main(["--only", "python3.14"]) == 0
    assert "| python3.14 | not tried | 0.0 | there is no python3.14 |" in capsys.readouterr().out
    assert nightly.main(["--only", "oldest"]) == 1


def test_one_part_that_fails_is_a_failure(made, monkeypatch, capsys):
    outcomes = iter([(False, "1 failed, 4 passed"), (True, "5 passed")])
    monkeypatch.setattr(nightly, "run_tests", lambda *run: next(outcomes))
    assert nightly.main(["--only", "oldest", "newest"]) == 1
    printed = capsys.readouterr().out
    assert "| oldest | failed | 0.0 | 1 failed, 4 passed |" in printed
    assert "| newest | passed | 0.0 | 5 passed |" in printed


def test_the_counts_of_pytest_stand_in_the_table(tmp_path, capsys):
    (tmp_path / "test_two.py").write_text("def test_a(): pass\ndef test_b(): assert False\n")
    options = ["-n", "0", "-q", "--rootdir", str(tmp_path), "-c", "/dev/null"]
    has_passed, remark = nightly.run_tests(sys.executable, [str(tmp_path)], options)
    assert not has_passed
    assert remark.startswith("1 failed, 1 passed in ")
    assert "test_two.py" in capsys.readouterr().out
