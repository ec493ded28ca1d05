"""One parser for all tests, which takes a second to create."""

import functools
import warnings

import pytest

from fedaux_pl.runs import parser

_create = functools.cache(parser.ConfigResolver)


@pytest.fixture
def resolver():
    """Returns the parser; pytest restores the filters of warnings that its constructor sets."""

    def shared():
        warnings.filterwarnings("ignore", message="LightningCLI's args parameter")
        _create()._created.clear()
        return _create()

    return shared


@pytest.fixture(autouse=True)
def _shared_resolver(resolver, monkeypatch):
    monkeypatch.setattr(parser, "ConfigResolver", resolver)
