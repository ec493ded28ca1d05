"""Find out what the tests do not notice: change one expression at a time and run the tests.

A mutant is a copy of the package with one operator, constant or order of arguments changed. The
tests of the room find it if one of them fails. A mutant that survives shows code that no test
checks, or a change that changes no result. Run this file in the root of a clone:

    python tools/mutants.py functional scoring                 # 20 mutants of each room
    python tools/mutants.py functional --count 5 --suite       # survivors meet all tests, too

To compare two sets of tests, write the mutants once and try the same ones on both:

    python tools/mutants.py functional --write mutants.json    # draws them and runs nothing
    python tools/mutants.py --read mutants.json
    python tools/mutants.py --read mutants.json --tests ../other/tests
"""

import argparse
import ast
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

# Parts of the syntax tree that hold types and messages
UNREAD = {"annotation", "returns", "decorator_list", "bases", "exc", "cause", "msg"}
PAIRS = "Lt LtE,Gt GtE,Eq NotEq,Is IsNot,In NotIn,Add Sub,Mult Div,BitAnd BitOr,And Or,Pow Mult"
SWAPS = dict(pair.split() for pair in PAIRS.split(","))
SWAPS |= {new: old for old, new in SWAPS.items() if old != "Pow"}
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", "logs", ".*_cache")


class Mutant(NamedTuple):
    """A change of some lines of a file."""

    path: str
    line: int  # the number of the first changed line
    old: str  # all lines that the changed expression touches
    new: str

    @property
    def room(self) -> str:
        """The folder of the package that holds the file, and the folder of its tests."""
        return Path(self.path).parts[1]

    def apply(self, text: str) -> str | None:
        """Return the text of the file with the change; None if the lines are not there any more.

        Lines that have moved are found if they occur once.
        """
        before, after = split_before(text, self.line)
        if after.startswith(self.old):
            return before + self.new + after.removeprefix(self.old)
        before, *rest = f"\n{text}".split(f"\n{self.old}")
        return f"{before}\n{self.new}{rest[0]}"[1:] if len(rest) == 1 else None

    def __str__(self) -> str:
        removed = "".join(f"\n  - {line}" for line in self.old.splitlines())
        added = "".join(f"\n  + {line}" for line in self.new.splitlines())
        return f"{self.path}:{self.line}{removed}{added}"


def expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield all expressions except types, docstrings and messages."""
    if isinstance(node, ast.expr):
        yield node
    if isinstance(node, ast.JoinedStr):
        return
    for name, child in ast.iter_fields(node):
        for part in child if isinstance(child, list) else [child]:
            if isinstance(part, ast.AST) and name not in UNREAD:
                yield from expressions(part)


def change(node: ast.expr) -> str | None:
    """Return the expression that replaces another one, or None if this kind is left as it is."""
    fields = dict(ast.iter_fields(node))
    match node:
        case ast.Compare(ops=[old]):
            fields["ops"] = [getattr(ast, SWAPS[type(old).__name__])()]
        case ast.BinOp(op=old) | ast.BoolOp(op=old) if type(old).__name__ in SWAPS:
            fields["op"] = getattr(ast, SWAPS[type(old).__name__])()
        case ast.UnaryOp(operand=operand):
            return ast.unparse(operand)
        case ast.Constant(value=bool(value)):
            return str(not value)
        case ast.Constant(value=int(value) | float(value)):
            return str(value + 1)
        case ast.Call(args=[first, second, *rest]):
            fields["args"] = [second, first, *rest]
        case _:
            return None
    return ast.unparse(type(node)(**fields))


def split_before(text: str, line: int) -> tuple[str, str]:
    """Split a text into what stands before a line and what begins with it."""
    lines = text.splitlines(keepends=True)
    return "".join(lines[: line - 1]), "".join(lines[line - 1 :])


def mutants_of(path: Path) -> list[Mutant]:
    """Return all mutants of a file."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    found = []
    for node in expressions(ast.parse(text)):
        new = change(node)
        if new is None or new == ast.unparse(node):
            continue
        first, last = lines[node.lineno - 1], lines[node.end_lineno - 1]
        start = first.encode()[: node.col_offset].decode()  # the tree counts bytes
        end = last.encode()[node.end_col_offset :].decode()
        old = "".join(lines[node.lineno - 1 : node.end_lineno])
        found.append(Mutant(path.as_posix(), node.lineno, old, f"{start}({new}){end}"))
    return found


def draw(rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draw so many mutants of each room."""
    drawn = []
    for room in rooms:
        paths = sorted(Path("fedaux_pl", room).rglob("*.py"))
        mutants = [mutant for path in paths for mutant in mutants_of(path)]
        if not mutants:
            raise SystemExit(f"fedaux_pl/{room}: no expression to change: name a folder")
        drawn += random.Random(seed).sample(mutants, min(count, len(mutants)))  # noqa: S311
    return drawn


def write(mutants: Sequence[Mutant], path: Path) -> None:
    """Write mutants as a list of objects with path, line, old and new."""
    content = [mutant._asdict() for mutant in mutants]
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> list[Mutant]:
    """Read mutants that ``write`` has written."""
    return [Mutant(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


class Run:
    """Runs the same tests again and again; the first time nothing is changed, and all must pass.

    Args:
        tests: Files and folders of tests.
        options: Further options of pytest.
    """

    def __init__(self, tests: Sequence[str], options: Sequence[str] = ()) -> None:
        self.command = [sys.executable, "-m", "pytest", "-qx", *options, *tests]
        self.limits: tuple[float, float] | None = None
        start, cpu = time.monotonic(), cpu_seconds()
        failure = self.first_failure()
        if failure:
            raise SystemExit(f"{' '.join(tests)}: without a mutant: {failure}")
        # Far more than a run needs, so that only endless loops and deadlocks reach them
        self.limits = 60 + 5 * (cpu_seconds() - cpu), 600 + 10 * (time.monotonic() - start)

    def first_failure(self, first: Sequence[str] = ()) -> str:
        """Run the tests; return the first that fails, or an empty string.

        Args:
            first: Files of tests that run before the others.
        """
        command = self.command[:4] + list(first) + self.command[4:]
        cpu_limit, limit = self.limits or (None, None)

        def limit_cpu() -> None:
            if cpu_limit is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_limit), int(cpu_limit)))

        try:
            run = subprocess.run(  # noqa: S603
                command, capture_output=True, text=True, timeout=limit, preexec_fn=limit_cpu
            )
        except subprocess.TimeoutExpired:
            return f"the tests waited for more than {limit:.0f} s"
        if run.returncode < 0:
            return f"signal {-run.returncode}; the limit is {cpu_limit} s of CPU time"
        if run.returncode:
            named = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
            return named[1] if named else f"pytest ended with {run.returncode}"
        return ""


def cpu_seconds() -> float:
    """Return the CPU time of all processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def tests_named_after(path: str) -> list[str]:
    """Return the files of tests whose names begin with that of a file: they find most mutants."""
    room, stem = Path(path).parts[1], Path(path).stem
    return [file.as_posix() for file in sorted(Path("tests", room).rglob(f"test_{stem}*.py"))]


def try_one(path: Path, changed: str, run: Run, first: Sequence[str] = ()) -> str:
    """Return the first test that notices the changed file, or an empty string."""
    text = path.read_text(encoding="utf-8")
    path.write_text(changed, encoding="utf-8")
    failure = run.first_failure(first)
    path.write_text(text, encoding="utf-8")
    return failure


def try_all(mutants: Sequence[Mutant], *, with_suite: bool, jobs: str) -> None:
    """Try mutants one by one in the working directory, and print what becomes of each."""
    rooms: dict[str, Run] = {}
    suite = None
    survivors = skipped = 0
    for number, mutant in enumerate(mutants, start=1):
        path = Path(mutant.path)
        changed = mutant.apply(path.read_text(encoding="utf-8")) if path.exists() else None
        if changed is None:
            skipped += 1
            print(f"{number}/{len(mutants)} SKIPPED, the lines are gone\n{mutant}", flush=True)
            continue
        if mutant.room not in rooms:
            rooms[mutant.room] = Run([f"tests/{mutant.room}"], ["-n0"])
        failure = try_one(path, changed, rooms[mutant.room], tests_named_after(mutant.path))
        if with_suite and not failure:
            suite = suite or Run(["tests"], [f"-n{jobs}"])
            failure = try_one(path, changed, suite)
        survivors += not failure
        verdict = f"found by {failure}" if failure else "SURVIVES"
        print(f"{number}/{len(mutants)} {verdict}\n{mutant}", flush=True)
    tried = len(mutants) - skipped
    print(f"{tried} mutants: {tried - survivors} found, {survivors} survive; {skipped} skipped")


def parse(args: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options of the command line."""
    assert __doc__ is not None  # noqa: S101
    title, _, text = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python tools/mutants.py",
        description=f"{title}\n\n{text}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "rooms",
        nargs="*",
        metavar="ROOM",
        help="folders of fedaux_pl to draw mutants from, such as functional",
    )
    parser.add_argument(
        "--count",
        type=int,
        default=20,
        metavar="N",
        help="how many mutants to draw from each room (20)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="another seed draws other mutants (0)"
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="write the drawn mutants to FILE, and run no tests. "
        "FILE is a JSON list of objects with path, line, old and new: "
        "old are the lines from that line on, and new the lines that replace them",
    )
    parser.add_argument(
        "--read",
        type=Path,
        metavar="FILE",
        help="try the mutants in FILE, instead of drawing some. "
        "A mutant whose lines have changed since FILE was written is skipped",
    )
    parser.add_argument(
        "--tests",
        type=Path,
        metavar="DIR",
        help="run the tests in DIR, the folder tests of another clone, instead of those in tests. "
        "The package stays that of the working directory",
    )
    parser.add_argument(
        "--suite",
        action="store_true",
        help="try a mutant that the tests of its room do not find on all tests. "
        "This takes as long as all tests, for each survivor",
    )
    parser.add_argument(
        "--jobs",
        default="auto",
        metavar="N",
        help="processes for all tests, with --suite (auto: one a core). "
        "The tests of a room run in one process",
    )
    options = parser.parse_args(args)
    if bool(options.rooms) == bool(options.read):
        parser.error("name rooms to draw mutants from, such as functional, or --read FILE")
    if options.read and options.write:
        parser.error("--read and --write exclude each other")
    return options


def main(args: Sequence[str] | None = None) -> None:
    """Draw, write, read and try mutants as the options of the command line say."""
    options = parse(args)
    if options.read:
        mutants = read(options.read)
    else:
        mutants = draw(options.rooms, options.count, options.seed)
    if options.write:
        write(mutants, options.write)
        print(f"{options.write}: {len(mutants)} mutants")
        return
    with tempfile.TemporaryDirectory() as folder:
        # a copy of everything, because some tests read pages and configurations
        copy = Path(folder, "copy")
        shutil.copytree(".", copy, ignore=LEFT_OUT)
        if options.tests:
            shutil.rmtree(copy / "tests")
            shutil.copytree(options.tests, copy / "tests", ignore=LEFT_OUT)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy)
        try_all(mutants, with_suite=options.suite, jobs=options.jobs)


if __name__ == "__main__":
    main()
