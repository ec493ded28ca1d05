"""Configurations by name, those of earlier runs, and classes in the current folder."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from fedaux_pl.cli.entry import main
from fedaux_pl.engine import AtomicCheckpointIO
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.runs.config_files import BEGAN_IN, complete_configs
from fedaux_pl.runs.packaged_configs import FOLDER, config_names
from fedaux_pl.runs.parser import FederationCLI

pytestmark = pytest.mark.usefixtures("without_figures")
ROOT = Path(__file__).parents[2]
TINY = [
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=1",
    "--model.clients={resnet8: 2}",
    "--model.model_options={width: 0.125}",
    "--data.private=tests.federations.FewDigits",
    "--data.alpha=1",
]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A current folder without a configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.parametrize("name", ["quickstart", "quickstart.yaml", "configs/quickstart.yaml"])
def test_a_configuration_is_found_by_name(name, elsewhere):
    expected = str(FOLDER / "quickstart.yaml")
    assert complete_configs(["--config", name]) == ["--config", expected]
    assert complete_configs([f"--config={name}", "--x=1"]) == [f"--config={expected}", "--x=1"]


def test_a_file_of_the_user_comes_first(elsewhere):
    Path("quickstart.yaml").write_text("seed_everything: 7\n")
    assert complete_configs(["--config=quickstart.yaml"]) == ["--config=quickstart.yaml"]


def test_layers_have_names_too(elsewhere):
    args = ["--config=quickstart", "--config=methods/fedavg", "--trainer.accelerator=cpu"]
    assert FederationCLI("fit", args).model.algorithm.name == "FedAvg"


def test_an_unknown_name(elsewhere, capsys):
    with pytest.raises(ConfigurationError, match=r"got quickstrt \(did you mean quickstart\?\)"):
        complete_configs(["--config=quickstrt"])
    assert main(["fit", "--config=quickstrt"]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "one of bf16, fast, fast_text, fedaux_resnet8" in message


def test_all_configurations_are_part_of_the_package():
    """The folder at the top is the one in the package, and the wheel's data include its files."""
    assert FOLDER.resolve() == ROOT / "configs"
    files = [path.relative_to(ROOT) for path in (ROOT / "configs").rglob("*.yaml")]
    sweeps = [path for path in files if path.parent.name == "paper"]
    assert len(config_names()) == len(files) - len(sweeps) > 40
    assert len(sweeps) > 10
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["package-data"]["fedaux_pl"]
    for path in files:
        assert any(path.match(pattern) for pattern in patterns), path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("paper/table1", None),
        ("mine.yaml", "title: Mine\naxes:\n  data.alpha: [1, 2]\n"),
    ],
)
def test_a_sweep_file_is_no_configuration_of_a_run(name, text, elsewhere, capsys):
    if text:
        Path(name).write_text(text)
    assert main(["fit", "--config", "quickstart", "--config", name]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "run fedaux-pl sweep " in message
    assert not {name for name in config_names() if name.startswith("paper/")}


def test_verbs_take_the_settings_of_the_run(elsewhere, capsys):
    assert main(["fit", "--config=methods/fedavg", *TINY]) == 0
    [folder] = Path("logs/runs").iterdir()
    assert main(["test", "--ckpt_path=last"]) == 0
    accuracy = json.loads((folder / "summary.json").read_text())["accuracy"]
    assert f"FedAvg after 1 round: accuracy {accuracy:.2%}" in capsys.readouterr().out
    assert (
        main(["fit", f"--ckpt_path={folder}/checkpoints/last.ckpt", "--trainer.max_epochs=2"]) == 0
    )
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 2
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["max_epochs"] == 2
    assert len(list(Path("logs/runs").iterdir())) == 1
    capsys.readouterr()
    assert main(["test", "--ckpt_path", str(folder)]) == 0
    assert "FedAvg after 2 rounds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        ("nowhere.ckpt", "nowhere.ckpt: give a checkpoint, the folder of a run, or 'last'"),
        ("last", "there is no last.ckpt below"),
        (".", "there is no last.ckpt below"),
    ],
)
def test_a_missing_checkpoint_is_named_also_without_a_configuration(
    elsewhere, checkpoint, message, capsys
):
    for verb in ("test", "fit"):
        assert main([verb, "--ckpt_path", checkpoint]) == 1
        assert message in capsys.readouterr().err


def test_the_last_of_several_checkpoints_counts(elsewhere):
    for run in ("one", "other"):
        (Path(run) / "checkpoints").mkdir(parents=True)
        (Path(run) / "config.yaml").touch()
        (Path(run) / "checkpoints" / "last.ckpt").touch()
    args = [f"--ckpt_path={run}/checkpoints/last.ckpt" for run in ("one", "other")]
    saved = Path("other/config.yaml").absolute()
    assert complete_configs(args) == ["--config", str(saved), *args]


def test_a_class_in_the_current_folder_is_found_by_its_path(elsewhere):
    Path("my_method_here.py").write_text(
        "from fedaux_pl import Algorithm\n\n\nclass Mine(Algorithm):\n    '''A method.'''\n"
    )
    assert (
        main(["fit", "--config=methods/fedavg", "--model.algorithm=my_method_here.Mine", *TINY])
        == 0
    )
    [folder] = Path("logs/runs").iterdir()
    assert folder.name == "Mine-FewDigits-alpha1-seed0"


def test_a_progress_bar_and_plugins_of_the_user(elsewhere):
    """The bar replaces ours; plugins stand beside ours."""
    args = ["--config=methods/fedavg", *TINY]
    trainer = FederationCLI("fit", args).trainer
    assert type(trainer.progress_bar_callback).__name__ == "FederationProgress"
    own = ["--trainer.callbacks=RichProgressBar", "--trainer.plugins=SLURMEnvironment"]
    trainer = FederationCLI("fit", [*args, *own]).trainer
    assert type(trainer.progress_bar_callback).__name__ == "RichProgressBar"
    connector = trainer._accelerator_connector
    assert type(connector.cluster_environment).__name__ == "SLURMEnvironment"
    assert isinstance(trainer.strategy.checkpoint_io, AtomicCheckpointIO)


def test_a_fast_dev_run_promises_no_results(elsewhere, capsys):
    assert main(["fit", "--config=methods/fedavg", *TINY, "--trainer.fast_dev_run=true"]) == 0
    printed = capsys.readouterr().out
    assert "fast_dev_run: a few samples, and nothing was written" in printed
    assert "Results" not in printed
    assert not Path("logs").exists()


def test_the_relative_paths_of_a_run_are_found_from_another_folder(elsewhere, capsys):
    began = elsewhere / "began"
    run = elsewhere / "logs" / "runs" / "run"
    for folder in (began / "scans", began / "text", run / "checkpoints"):
        folder.mkdir(parents=True)
    (run / "checkpoints" / "last.ckpt").touch()
    images = {"root": "scans", "test_root": "missing", "cache_dir": None, "size": 8}
    texts = {"path": str(began / "scans"), "layout": {"text": "text"}}
    data = {
        "private": {"class_path": "ImageFolder", "init_args": images},
        "auxiliary": {"class_path": "TextFiles", "init_args": texts},
    }
    settings = {"data": data, "model": {"model_options": {"source": "text"}}}
    (run / "config.yaml").write_text(f"{BEGAN_IN}{began}\n{yaml.safe_dump(settings)}")
    config = ["--config", str(run / "config.yaml")]
    given = [f"--ckpt_path={run}", "--data.alpha=1"]
    assert complete_configs(given) == [
        *config,
        f"--trainer.default_root_dir={elsewhere / 'logs'}",
        f"--data.private.root={began / 'scans'}",
        f"--model.model_options.source={began / 'text'}",
        *given,
    ]
    assert f"config.yaml (of a run that began in {began})\n" in capsys.readouterr().out
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace(str(began), str(elsewhere)))
    assert complete_configs(given) == [*config, *given]


def test_a_run_stores_the_folder_in_which_it_began(finished_run):
    first = (finished_run.folder / "config.yaml").read_text().partition("\n")[0]
    assert first == f"{BEGAN_IN}{Path.cwd()}"
