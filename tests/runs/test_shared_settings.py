"""Command lines of a sweep share the values of their settings, and lose nothing by it."""

import itertools

import pytest

from fedaux_pl.runs.shared_settings import SharedSettings
from tests.command_line import resolver

EPSILON = "--model.algorithm.privacy.epsilon"
LAYER = "data: {alpha: 0.5}\nmodel: {local: {epochs: 3}, participation: 0.2}\n"


@pytest.fixture
def shared():
    return SharedSettings(resolver())


@pytest.fixture
def parser_runs(monkeypatch):
    """The command lines that the parser has parsed."""
    seen = []
    parser = resolver().parser
    parse = parser.parse_args
    monkeypatch.setattr(parser, "parse_args", lambda args: seen.append(args) or parse(args))
    return seen


def combine(*axes):
    """Returns the command lines of all combinations of the arguments on each axis."""
    base = ["--config", "quickstart"]
    return [[*base, *itertools.chain(*chosen)] for chosen in itertools.product(*axes)]


def of(option, *values):
    return [[f"--{option}", str(value)] for value in values]


def test_parser_runs_grow_with_the_values_and_not_with_the_combinations(shared, parser_runs):
    axes = [
        [["--config", "methods/feddf"], ["--config", "methods/fedavg"], []],
        of("data.alpha", 0.1, 1, 10),
        of("model.participation", 0.4, 0.8),
        of("seed_everything", 0, 1, 2, 3),
    ]
    lines = combine(*axes)
    for line in lines:
        shared.resolve(line)
    values = sum(len(axis) - 1 for axis in axes)  # besides those of the first command line
    assert len(lines) == 72
    assert len(parser_runs) <= 1 + values


def test_shared_values_are_those_of_a_parser_run(shared, parser_runs, tmp_path):
    layer = tmp_path / "layer.yaml"
    layer.write_text(LAYER)
    lines = combine(
        [
            ["--model.algorithm=FedDF"],
            ["--model.algorithm=FedAUX", "--model.algorithm.privacy.epsilon=2"],
        ],
        [[], [f"--config={layer}"], ["--data.alpha=2"]],
        [[], ["--model={participation: 0.3, clients: {resnet8: 7}}"]],
        [[], ["--model.clients", "{resnet8: 3}"], ["--model.local.epochs=2"]],
        [[], ["--trainer.callbacks+=LearningRateMonitor"]],
        of("seed_everything", 0, 5),
    )
    found = [shared.resolve(line) for line in lines]
    assert len(parser_runs) < len(lines) / 2
    for line, settings in list(zip(lines, found, strict=True))[::7]:
        assert settings == resolver().resolve(line), line


def test_what_is_checked_is_the_command_line_just_resolved(shared, monkeypatch):
    resolver()._created.clear()
    created = []
    monkeypatch.setattr(resolver().parser, "instantiate_classes", created.append)
    for line in combine(of("data.alpha", 0.1, 1), of("model.participation", 0.4, 0.8)):
        resolver().check(shared.resolve(line))
    assert [(one.data.alpha, one.model.participation) for one in created] == [
        (0.1, 0.4),
        (0.1, 0.8),
        (1.0, 0.4),
    ]  # both parts of (1.0, 0.8) were created before
    assert [one.data.num_clients for one in created] == [20] * 3


@pytest.mark.parametrize("wrong", ["--data.alpha=many", "--model.algorithm=FedFoo"])
def test_a_wrong_value_is_refused_whenever_it_comes(wrong, shared):
    good = ["--config", "quickstart"]
    for _ in range(2):
        shared.resolve(good)
        with pytest.raises(Exception, match=r"got (many|FedFoo)"):
            shared.resolve([*good, wrong])
