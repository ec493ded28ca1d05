import inspect
from pathlib import Path

import pytest
import yaml

from fedaux_pl.cli.parser import parse
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.reports import analyses
from fedaux_pl.reports.analyses import analysis_file
from fedaux_pl.reports.items import FigureItem, TableItem
from fedaux_pl.sweeps.yaml_nodes import read_nodes

PAPER = Path(__file__).parents[2] / "configs" / "paper"
FILES = sorted(p.stem for p in PAPER.glob("*.yaml") if "\nanalysis:" in p.read_text())


def run(folder, extra=(), **parts):
    file = folder / "analysis.yaml"
    file.write_text(yaml.safe_dump({"title": "A title", **parts}))
    return analyses.run(file, folder, extra)


def test_options_become_arguments(tmp_path):
    items = run(
        tmp_path,
        analysis="split_bubbles",
        options={"alphas": [0.1, "1e2"], "clients": 2, "classes": 3, "samples_per_class": 4}
        | {"seed": 0},
    )
    assert [type(item) for item in items] == [FigureItem, TableItem]
    assert [row[0] for row in items[1].rows] == ["0.1", "100"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"analysis": "iris_ensembel"}, r"analysis must be one of .* \(did you mean iris_ensemble"),
        (
            {"analysis": "iris_ensemble", "axes": {}},
            "an entry must be one of title, .* but is axes",
        ),
        ({"analysis": "iris_ensemble", "options": {"alhpa": 1}}, r"did you mean alpha\?"),
        (
            {"analysis": "iris_ensemble", "options": {"seed": "many"}},
            "options: seed must be an integer, but is many",
        ),
        (
            {"analysis": "split_bubbles", "options": {"alphas": [0.1, "few"]}},
            r"options: alphas must be a list of numbers, but is \[0.1, few\]",
        ),
        ({"analysis": "split_bubbles"}, "options: alphas is missing"),
        ({"analysis": "iris_ensemble", "options": [1]}, "options must be a mapping"),
        ({"analysis": "iris_ensemble", "base": "quickstart"}, "needs no federation: remove base"),
        ({"analysis": "method_costs"}, "base is missing: method_costs needs a federation"),
        ({"analysis": "iris_ensemble", "options": {"alpha": -1}}, "alpha must be positive"),
        ({}, "analysis is missing"),
    ],
)
def test_mistakes_in_a_file(tmp_path, parts, message):
    with pytest.raises(ConfigurationError, match=message):
        run(tmp_path, **parts)


def test_arguments_of_fit_need_a_federation(tmp_path):
    with pytest.raises(ConfigurationError, match=r"runs no federation, but got --data.alpha 1"):
        run(tmp_path, ["--data.alpha", "1"], analysis="imagenet_subsets")


@pytest.mark.parametrize("name", analyses.ANALYSES)
def test_messages_know_the_types_of_all_options(name, tmp_path):
    function = analysis_file.find_analysis(
        {key: yaml.compose(value) for key, value in {"title": "t", "analysis": name}.items()}
    )
    kinds = {k: p.annotation for k, p in inspect.signature(function).parameters.items()}
    assert {kind for k, kind in kinds.items() if k != "base"} <= set(analysis_file._MEANINGS)


def test_all_analyses_are_used_by_the_paper():
    assert len(FILES) >= 11
    used = {yaml.safe_load((PAPER / f"{name}.yaml").read_text())["analysis"] for name in FILES}
    assert used == set(analyses.ANALYSES)


@pytest.mark.parametrize("name", FILES)
def test_every_file_of_the_paper_can_be_used(name, tmp_path):
    """Its options have the right types, and its federation is created."""
    parts = read_nodes(PAPER / f"{name}.yaml")
    function = analysis_file.find_analysis(parts)
    analysis_file.read_options(function, parts)
    extra = ["--model.model_options", "{width: 0.0625}"] if "base" in parts else []
    base = analysis_file.base_command(function, parts, tmp_path, extra)
    assert (base is None) == ("base" not in parts)
    if base is not None:
        cli = parse("report", base)
        assert cli.trainer.default_root_dir == str(tmp_path)
        assert cli.model.algorithm.scoring is not None
