"""A run on a CPU has nothing to do with Triton, which only kernels on CUDA need."""

import subprocess
import sys
from pathlib import Path

from tests.cli.test_cli import TINY

# PyTorch itself imports Triton, so that only the names of those who import it say something
SCRIPT = """
import builtins
import sys

importers = set()
original = builtins.__import__


def note_importer(name, globals=None, *more, **options):
    if name.partition(".")[0] == "triton" and globals is not None:
        importers.add(globals.get("__name__", ""))
    return original(name, globals, *more, **options)


builtins.__import__ = note_importer
from fedaux_pl.cli.entry import main

root, *options = sys.argv[1:]
options.append(f"--trainer.default_root_dir={root}")
assert main(["fit", *options]) == 0
assert main(["benchmark", *options, "--rounds=1", "--warmup=0", "--pretraining_steps=1"]) == 0
assert not any(name.startswith("fedaux_pl.accelerate") for name in sys.modules)
print("importers of Triton:", *sorted(name for name in importers if name.startswith("fedaux_pl")))
"""


def test_a_run_on_a_cpu_neither_imports_triton_nor_ends_with_its_leaks(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), *TINY],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].strip() == "importers of Triton:"
    assert "nanobind" not in ended.stderr
