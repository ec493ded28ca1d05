"""Run the tests with the oldest and with the newest packages that pyproject.toml allows.

``python tools/nightly.py`` makes an environment for each part below, runs the tests in it, prints a
table, and exits with 1 if anything failed. It uses uv if that is installed, else pip.

- ``oldest``: the lower bounds of pyproject.toml, on the oldest Python that it allows
- ``newest``: the newest releases, on the Python that runs this file
- ``python3.14``: the newest releases on Python 3.14, if that is installed and they can be, too
- ``kernels``: every kernel is compiled for its GPU targets, with the newest Triton

Arguments after ``--`` go to pytest: ``python tools/nightly.py --tests tests/functional -- -x``.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("oldest", "newest", "python3.14", "kernels")
FAILED = "failed"


class NotTriedError(Exception):
    """An environment that cannot be made."""


@dataclass(frozen=True)
class Result:
    """A row of the table."""

    part: str
    outcome: str
    seconds: float
    remark: str = ""


def read_project() -> dict[str, Any]:
    """Return the table ``project`` of pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def oldest_python(project: dict[str, Any]) -> str:
    """Return the oldest Python that the project allows, such as 3.11."""
    [version] = re.findall(r">=\s*([\d.]+)", project["requires-python"])
    return str(version)


def lower_bounds(project: dict[str, Any]) -> list[str]:
    """Return constraints that keep pip at the minor version of every lower bound.

    uv needs none: it looks for the lowest versions itself.
    """
    requirements = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        requirements += extra
    constraints = []
    for requirement in requirements:
        found = re.match(r"([\w-]+)(?:\[[\w,]+\])?>=(\d+)(?:\.(\d+))?", requirement)
        if found:
            name, major, minor = found.groups()
            constraints.append(f"{name}=={major}.{minor or 0}.*")
    return constraints


def create_environment(folder: Path, python: str, *, is_oldest: bool) -> Path:
    """Create a virtual environment with the project and the packages of its tests.

    Args:
        folder: Where it is created anew.
        python: The version of its Python.
        is_oldest: Whether it has the oldest packages that pyproject.toml allows, or the newest.

    Returns:
        Its interpreter.

    Raises:
        NotTriedError: There is no such Python, or a package cannot be installed.
    """
    interpreter = folder / "bin" / "python"
    project = f"{ROOT}[test]"
    if shutil.which("uv"):
        try:
            _install("uv", "venv", "--clear", "--python", python, str(folder))
        except NotTriedError as error:
            raise NotTriedError(f"there is no python{python}: {error}") from error
        resolution = "lowest-direct" if is_oldest else "highest"
        install = ["uv", "pip", "install", "--python", str(interpreter), "--resolution", resolution]
        _install(*install, "--editable", project)
        return interpreter
    base = shutil.which(f"python{python}")
    if base is None:
        raise NotTriedError(f"there is no python{python}")
    _install(base, "-m", "venv", "--clear", str(folder))
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(lower_bounds(read_project()) if is_oldest else []))
    install = [str(interpreter), "-m", "pip", "install", "--constraint", str(constraints)]
    _install(*install, "--editable", project)
    return interpreter


def _install(*command: str) -> None:
    print("+", *command, flush=True)
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if ended.returncode != 0:
        print(ended.stderr)
        cause = re.search(r"\w.*", ended.stderr)  # its first line; uv draws a tree before it
        raise NotTriedError(cause[0] if cause else f"{command[0]} ended with {ended.returncode}")


def run_tests(python: Path, tests: Sequence[str], options: Sequence[str]) -> tuple[bool, str]:
    """Run tests in an environment; return whether they passed, and pytest's last line."""
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *options, *tests]
    print("+", *command, flush=True)
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    counts = [line.strip("= \n") for line in lines if re.search(r"\d+ \w+.* in [\d.]+s", line)]
    return process.returncode == 0, counts[-1] if counts else f"status {process.returncode}"


def compile_kernels(python: Path, folder: Path) -> tuple[bool, str]:
    """Compile every kernel for its targets; return whether it worked, and the Triton."""
    ask = [str(python), "-c", "import triton; print('triton', triton.__version__)"]
    triton = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
    command = [str(python), "-m", "tools.kernel_targets", str(folder / "kernels.json")]
    print("+", *command, flush=True)
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    return ended.returncode == 0, triton or "triton cannot be imported"


def run_part(part: str, folder: Path, tests: Sequence[str], options: Sequence[str]) -> Result:
    """Make the environment of a part, and run in it what the part is about."""
    newest_python = f"{sys.version_info.major}.{sys.version_info.minor}"
    pythons = {"oldest": oldest_python(read_project()), "python3.14": "3.14"}
    version = pythons.get(part, newest_python)
    start = time.monotonic()
    try:
        python = create_environment(folder / part, version, is_oldest=part == "oldest")
    except NotTriedError as error:
        # not everybody has Python 3.14, and packages for it come late
        outcome = "not tried" if part == "python3.14" else FAILED
        return Result(part, outcome, time.monotonic() - start, str(error))
    if part == "kernels":
        has_passed, remark = compile_kernels(python, folder)
    else:
        has_passed, remark = run_tests(python, tests, options)
    return Result(part, "passed" if has_passed else FAILED, time.monotonic() - start, remark)


def format_table(results: Sequence[Result]) -> str:
    """Return the results as a table in Markdown."""
    lines = ["| part | outcome | minutes | remark |", "| --- | --- | --- | --- |"]
    for result in results:
        minutes = f"{result.seconds / 60:.1f}"
        lines.append(f"| {result.part} | {result.outcome} | {minutes} | {result.remark} |")
    return "\n".join(lines)


def main(args: Sequence[str] | None = None) -> int:
    """Run the parts and print their table; return the exit status."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="the parts to run")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="files or folders of tests")
    about = "a folder for the environments, which stay there; by default they are deleted"
    parser.add_argument("--folder", type=Path, help=about)
    parser.add_argument("pytest", nargs="*", help="options of pytest, after --")
    options = parser.parse_args(args)
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        results = [run_part(part, folder, options.tests, options.pytest) for part in options.only]
    print(format_table(results))
    return int(any(result.outcome == FAILED for result in results))


if __name__ == "__main__":
    sys.exit(main())
