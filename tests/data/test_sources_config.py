"""Every source can be chosen by class name, with its arguments documented in --help."""

import jsonargparse
import pytest

import fedaux_pl
from fedaux_pl import data
from fedaux_pl.data import sources
from fedaux_pl.data.source import Source

REQUIRED = {
    "ImageFolder": {"root": "x"},
    "ImageNet32": {"root": "x"},
    "ImageNetSubset": {"root": "x"},
    "NpzImages": {"path": "x"},
    "TextFiles": {"path": "x.csv"},
}


@pytest.mark.parametrize("name", sources.__all__)
def test_by_name(name):
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--source", type=Source)
    config = parser.parse_object(
        {"source": {"class_path": name, "init_args": REQUIRED.get(name, {})}}
    )
    # nothing is read: there is no such data
    source = parser.instantiate(config).source
    assert type(source) is getattr(sources, name)


@pytest.mark.parametrize("name", sources.__all__)
def test_every_argument_is_documented(name):
    parser = jsonargparse.ArgumentParser()
    parser.add_class_arguments(getattr(sources, name), "source")
    actions = [action for action in parser._actions if action.dest.startswith("source.")]
    assert actions
    for action in actions:
        assert action.help, action.dest
        assert "kwargs" not in action.dest


def test_every_source_is_exported_by_the_package():
    exported = [getattr(data, name) for name in data.__all__]
    found = [value for value in exported if isinstance(value, type) and issubclass(value, Source)]
    assert len(found) > len(sources.__all__)  # with Source and InMemory
    for source in found:
        assert source.__name__ in fedaux_pl.__all__
        assert getattr(fedaux_pl, source.__name__) is source
