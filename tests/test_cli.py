import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

import fedaux_pl
from fedaux_pl.cli import main
from fedaux_pl.models import create_model, load_backbone
from fedaux_pl.modules import SimCLR
from fedaux_pl.pretrain import parse

CONFIGS = Path(__file__).parent.parent / "configs"
DIGITS = CONFIGS / "pretrain_digits.yaml"


def quick(tmp_path, *more):
    """The shipped configuration, with a smaller network, for two epochs, below tmp_path."""
    return [
        "pretrain",
        f"--config={DIGITS}",
        "--model.model_options={in_channels: 1, width: 0.125}",
        "--trainer.max_epochs=2",
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        f"--trainer.default_root_dir={tmp_path}",
        *more,
    ]


def h0_of(tmp_path):
    (path,) = tmp_path.rglob("h0.pt")
    return torch.load(path, weights_only=True)


def test_pretrain_writes_h0_that_a_classifier_loads(tmp_path, capsys):
    assert main(quick(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert "% with random weights" in printed
    assert "h0.pt" in printed
    assert f"tensorboard --logdir {tmp_path}" in printed
    payload = h0_of(tmp_path)
    assert payload["model"] == "resnet8"
    model = create_model(payload["model"], 10, **payload["model_options"])
    load_backbone(model, payload["state"])
    assert list(tmp_path.rglob("events.out.tfevents*"))
    assert list(tmp_path.rglob("config.yaml"))


def test_the_same_command_gives_the_same_weights_and_another_seed_others(tmp_path):
    for name, more in (("a", []), ("b", []), ("c", ["--seed_everything=1"])):
        assert main(quick(tmp_path / name, *more)) == 0
    a, b, c = (h0_of(tmp_path / name)["state"] for name in "abc")
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not torch.equal(a["conv1.weight"], c["conv1.weight"])


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_an_interrupted_run_goes_on_from_its_checkpoint(tmp_path):
    assert main(quick(tmp_path / "short")) == 0
    (checkpoint,) = (tmp_path / "short").rglob("*.ckpt")
    more = [f"--ckpt_path={checkpoint}", "--trainer.max_epochs=3"]
    assert main(quick(tmp_path / "long", *more)) == 0
    (later,) = (tmp_path / "long").rglob("*.ckpt")
    content = torch.load(later, weights_only=True)
    assert content["global_step"] == 3 * 5  # 598 digits in batches of 128, three epochs


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.name)
def test_every_configuration_can_be_instantiated(path, tmp_path):
    cli = parse([f"--config={path}", f"--trainer.default_root_dir={tmp_path}"])
    assert isinstance(cli.model, SimCLR)
    assert yaml.safe_load(path.read_text())["trainer"]["max_epochs"] == cli.trainer.max_epochs


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model.lr=-1"], "lr must be positive, but is -1.0"),
        (["--model.model=resnet9"], "resnet8"),
        (["--model.learning_rate=1"], "learning_rate"),
        (["--data.batch_size=1"], "batch_size must be at least 2, but is 1"),
        (["--model.optimizer=lbfgs"], "adam"),
        (["--data.auxiliary=Nothing"], "The data sources are: CIFAR10, CIFAR100, Digits"),
    ],
)
def test_a_wrong_setting_is_one_clear_message(tmp_path, capsys, more, message):
    with pytest.raises(SystemExit) as exit_info:
        main(quick(tmp_path, *more))
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert "usage:" not in error


def test_missing_data_are_one_clear_message(tmp_path, capsys):
    more = ["--data.auxiliary=CIFAR10", f"--data.auxiliary.root={tmp_path / 'nowhere'}"]
    assert main(quick(tmp_path, *more, "--data.probe=null")) == 1
    error = capsys.readouterr().err
    assert error.startswith("fedaux-pl pretrain: error: ")
    assert str(tmp_path / "nowhere") in error
    assert "download" in error
    assert "configs/pretrain_digits.yaml" in error


def test_help_and_version_and_unknown_verbs(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fedaux-pl {fedaux_pl.__version__}\n"
    for args in ([], ["--help"], ["-h"]):
        assert main(args) == 0
        assert "pretrain" in capsys.readouterr().out
    assert main(["pretain"]) == 2
    assert "no verb 'pretain'; the verbs are: pretrain" in capsys.readouterr().err


def test_version_and_help_do_not_wait_for_torch():
    for flag in ("--version", "--help"):
        code = (
            f"import sys; from fedaux_pl.cli import main; main(['{flag}']);"
            "assert 'torch' not in sys.modules"
        )
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        assert time.perf_counter() - start < 2


def test_public_names_are_there():
    for name in fedaux_pl.__all__:
        assert getattr(fedaux_pl, name) is not None
        assert name in dir(fedaux_pl)
    with pytest.raises(AttributeError, match="no attribute 'FedAvg'"):
        _ = fedaux_pl.FedAvg
