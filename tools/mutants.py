"""Change one expression at a time in a copy of the package, and see whether a test notices.

python tools/mutants.py 100 0 functional scoring   # count, seed, rooms
"""

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

UNREAD = {"annotation", "returns", "decorator_list", "bases", "exc", "cause", "msg"}
PAIRS = "Lt LtE,Gt GtE,Eq NotEq,Is IsNot,In NotIn,Add Sub,Mult Div,BitAnd BitOr,And Or,Pow Mult"
SWAPS = dict(pair.split() for pair in PAIRS.split(","))
SWAPS |= {new: old for old, new in SWAPS.items() if old != "Pow"}


def expressions(node: ast.AST) -> Iterator[ast.expr]:
    """All expressions but types, docstrings and messages."""
    if isinstance(node, ast.expr):
        yield node
    for name, child in ast.iter_fields(node) if not isinstance(node, ast.JoinedStr) else ():
        for part in child if isinstance(child, list) else [child]:
            if isinstance(part, ast.AST) and name not in UNREAD:
                yield from expressions(part)


def mutate(node: ast.expr) -> str | None:
    """What an expression is changed to; None for nothing."""
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
        case ast.Call(args=[a, b, *rest]):
            fields["args"] = [b, a, *rest]
        case _:
            return None
    return ast.unparse(type(node)(**fields))


def passes(*tests: str) -> bool:
    """Whether no test fails; an endless loop is a failure, too."""
    command = ["timeout", "600", sys.executable, "-m", "pytest", "-qx", "-n0", *tests]
    code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode  # noqa: S603
    return code == 0 or (code in (3, 4) and sys.exit("pytest did not run"))


if __name__ == "__main__":
    _, count, seed, *rooms = sys.argv
    with tempfile.TemporaryDirectory() as folder:
        for name in ("fedaux_pl", "tests", "configs"):
            shutil.copytree(name, f"{folder}/{name}")
        shutil.copy("pyproject.toml", folder)
        os.chdir(folder)
        os.environ |= {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        passes(*(f"tests/{room}" for room in rooms)) or sys.exit("tests fail without a mutant")
        paths = [path for room in rooms for path in sorted(Path("fedaux_pl", room).rglob("*.py"))]
        nodes = [(path, x) for path in paths for x in expressions(ast.parse(path.read_text()))]
        mutants = [(path, x, new) for path, x in nodes if (new := mutate(x))]
        for path, node, new in random.Random(int(seed)).sample(mutants, int(count)):  # noqa: S311
            text = path.read_bytes()
            lines = text.splitlines(keepends=True)
            start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
            end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
            path.write_bytes(text[:start] + f"({new})".encode() + text[end:])
            verdict = "SURVIVES" if passes(f"tests/{path.parts[1]}") else "found"
            print(f"{verdict}: {path}:{node.lineno}: {ast.unparse(node)} -> {new}", flush=True)
            path.write_bytes(text)
