"""Options, classes and configurations of version 1.0 that version 2.0 answers with advice."""

import pytest
import yaml

from fedaux_pl.cli.entry import main
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.runs.config_files import complete_configs
from fedaux_pl.runs.packaged_configs import FOLDER
from fedaux_pl.runs.refuse_removed import explain
from fedaux_pl.runs.removed import REMOVED
from fedaux_pl.sweeps.sweep_file import find_sweep

KINDS = {
    "option": [name for name in REMOVED if name.startswith(("model.", "data."))],
    "class": [name for name in REMOVED if name.isidentifier() and name[0].isupper()],
    "function, or option of site": [n for n in REMOVED if n.isidentifier() and n[0].islower()],
    "configuration": [name for name in REMOVED if "/" in name],
}


def refusal(args):
    with pytest.raises(ConfigurationError) as refused:
        complete_configs(args)
    return str(refused.value)


@pytest.mark.parametrize("name", KINDS["option"])
def test_a_removed_option_gives_its_line(name, tmp_path):
    option, _, value = name.partition("=")
    assert refusal([f"--{option}={value or 1}"]) == explain(name)
    assert refusal([f"--{option}", value or "1"]) == explain(name)
    nested = value or 1
    for key in reversed(option.split(".")):
        nested = {key: nested}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(nested))
    assert refusal(["--config", str(file)]) == explain(name)


@pytest.mark.parametrize("name", KINDS["class"])
def test_a_removed_class_gives_its_line(name):
    assert refusal([f"--model.algorithm={name}"]) == explain(name)
    assert refusal([f"--model.algorithm={{class_path: fedaux_pl.{name}}}"]) == explain(name)


def test_a_class_of_the_user_may_have_such_a_name():
    args = ["--model.algorithm=mine.FedMD", "--model.algorithm.discount=0.9"]
    assert complete_configs(args) == args


@pytest.mark.parametrize("name", KINDS["configuration"])
def test_a_removed_configuration_gives_its_line(name):
    assert not (FOLDER / f"{name}.yaml").exists()
    for given in (name, f"{name}.yaml", f"configs/{name}.yaml"):
        assert REMOVED[name] in refusal(["--config", given])
        with pytest.raises(ConfigurationError) as refused:
            find_sweep(given)
        assert str(refused.value) == explain(name)


def test_the_command_line_prints_one_line(capsys):
    assert main(["fit", "--config=quickstart", "--model.distillation.min_share=0.1"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "model.distillation.min_share was removed after version 1.0" in line
    assert line.endswith(REMOVED["model.distillation.min_share"])


def test_a_removed_option_of_site_gives_its_line(capsys):
    assert main(["site", "--vote_epsilon=0.5"]) != 0
    assert explain("vote_epsilon") in capsys.readouterr().err


def test_every_name_is_of_a_known_kind():
    assert sorted(sum(KINDS.values(), [])) == sorted(REMOVED)
