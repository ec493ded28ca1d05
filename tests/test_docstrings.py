"""The examples in the package's docstrings run and print what they say."""

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

import fedaux_pl

PACKAGE = Path(fedaux_pl.__file__).parent


def modules_with_examples():
    """All modules but those of ``accelerate``, some of which need Triton."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if parts[1] != "accelerate" and ">>> " in path.read_text(encoding="utf-8"):
            yield ".".join(part for part in parts if part != "__init__")


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module(name):
    text = Path(import_module(name).__file__).read_text(encoding="utf-8")
    assert not re.search(r"^ *Example:$", text, re.MULTILINE), "the site needs `Examples:`"
    result = doctest.testmod(import_module(name), optionflags=doctest.FAIL_FAST)
    assert result.failed == 0
    assert result.attempted > 0
