"""`predict` and `export` with --client: the model of one client."""

import csv
import shutil

import numpy as np
import pytest
import torch

from fedaux_pl.cli.entry import main
from fedaux_pl.cli.export import model_card
from fedaux_pl.cli.verbs import fit
from fedaux_pl.engine.checkpoints import load_checkpoint
from fedaux_pl.models import load_exported
from tests.command_line import command, without_figures
from tests.federation.test_given_clients import NamedWards
from tests.federations import FewDigits

OWN = "--model.batchnorm_statistics=own"


def run(root, *options):
    """The federation of a run with three silos."""
    silos = [f"--data.private={NamedWards.__module__}.NamedWards", "--trainer.max_epochs=1"]
    silos += [
        "--model.participation=1",
        "--model.clients={resnet8: 3}",
        "--model.model_options={width: 0.125}",
    ]
    _, *args = command("fit", root, *silos, *options)
    with without_figures():
        return fit(args).model


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """FedAVG: the folder of all output, and its federation."""
    root = tmp_path_factory.mktemp("plain")
    return root, run(root, "--model.algorithm=FedAvg", "--model.batchnorm_statistics=running")


@pytest.fixture
def images(tmp_path):
    """A file of images, and the images."""
    inputs = FewDigits().test().inputs[:8]
    np.savez(tmp_path / "few.npz", train_x=inputs.numpy())
    return tmp_path / "few.npz", inputs


def predicted(path):
    with path.open(newline="") as file:
        _, *rows = csv.reader(file)
    return torch.tensor([[float(p) for p in row[2:]] for row in rows])


def probabilities(model, inputs):
    with torch.no_grad():
        return model(inputs).softmax(dim=1)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--model.algorithm=FedAvg", OWN], "BatchNorm statistics of its training data"),
        (["--model.algorithm=FedBN"], "the BatchNorm of its last round (FedBN)"),
        (
            ["--model.algorithm=FedAvg", "--model.local.fine_tuning=1"],
            "fine-tuning on its training data (1 epoch)",
        ),
    ],
)
def test_a_client_has_its_own_model(tmp_path, images, capsys, options, reason):
    root = tmp_path / "logs"
    federation = run(root, *options)
    file, inputs = images
    expected = probabilities(federation.client_model("west"), inputs)
    server = probabilities(federation.students["resnet8"].eval(), inputs)
    assert (expected - server).abs().max() > 1e-3
    capsys.readouterr()
    output = tmp_path / "west.csv"
    args = [f"--root={root}", "--client=west", f"--output={output}"]
    assert main(["predict", "--ckpt_path=last", f"--images={file}", *args]) == 0
    assert f"8 images, predicted by the model of west: {output}\n" in capsys.readouterr().out
    torch.testing.assert_close(predicted(output), expected, atol=1e-5, rtol=0)

    folder = tmp_path / "west"
    args = ["last", f"--root={root}", f"--output={folder}"]
    assert main(["export", *args, "--client=west"]) == 0
    assert f"(the model of west, with {reason}; from " in capsys.readouterr().out
    loaded = load_exported(folder)
    with torch.no_grad():
        torch.testing.assert_close(loaded(inputs), expected)
    card = (folder / "README.md").read_text()
    assert f"that of west: the server's with {reason}" in card
    assert f"{federation.metrics['client_accuracy/west']:.2%} on the test data of west" in card
    assert "NOT private: this model: it depends on the training data of west" in card

    assert main(["export", *args, "--overwrite"]) == 0
    with torch.no_grad():
        torch.testing.assert_close(load_exported(folder)(inputs), server)
    card = (folder / "README.md").read_text()
    described = "BatchNorm is the average" if "FedBN" in reason else "with its BatchNorm statistics"
    assert described in card
    assert "`export --client NAME` writes the model of a client" in card


def test_own_statistics_can_be_asked_of_a_run_without_them(plain, tmp_path, images, capsys):
    root, federation = plain
    file, inputs = images
    args = [f"--root={root}", "--client=north", f"--output={tmp_path / 'north.csv'}"]
    args += ["--ckpt_path=last", f"--images={file}"]
    assert main(["predict", *args]) == 1
    assert "north has no model of its own in this run" in capsys.readouterr().err
    assert main(["predict", *args, OWN]) == 0
    server = probabilities(federation.students["resnet8"].eval(), inputs)
    assert (predicted(tmp_path / "north.csv") - server).abs().max() > 1e-3
    folder = tmp_path / "north"
    args = ["last", f"--root={root}", f"--output={folder}", "--client=north", OWN]
    assert main(["export", *args]) == 0
    assert "| test accuracy | not measured |" in (folder / "README.md").read_text()
    loaded = load_exported(folder)
    assert loaded.config["batchnorm"] == "running"
    with torch.no_grad():
        exported = loaded(inputs)
    torch.testing.assert_close(exported, predicted(tmp_path / "north.csv"), atol=1e-5, rtol=0)


def test_wrong_clients_and_missing_data_are_told(plain, tmp_path, capsys):
    root, _ = plain
    args = ["export", "last", f"--root={root}", f"--output={tmp_path / 'out'}"]
    assert main([*args, "--client=nrth", OWN]) == 1
    expected = "got 'nrth' (did you mean north?); expected one of north, south, west"
    assert expected in capsys.readouterr().err
    assert main([*args, OWN]) == 1
    assert "got 'own' without a client: add --client" in capsys.readouterr().err
    [checkpoint] = root.rglob("last.ckpt")
    moved = tmp_path / "moved" / "last.ckpt"
    moved.parent.mkdir()
    shutil.copy(checkpoint, moved)
    assert main(["export", str(moved), *args[3:], "--client=north", OWN]) == 1
    assert "needs the data of north, which the config.yaml" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_card_of_clients_alone_says_that_weights_are_averages(plain):
    root, _ = plain
    [checkpoint] = root.rglob("last.ckpt")
    federation = load_checkpoint(checkpoint)["federation"]
    assert "| model |" not in model_card(federation, [], "last.ckpt")
    federation["settings"]["algorithm"] = {"method": "FedBN", "kept": "all"}
    assert "the weights are the average of the clients'" in model_card(federation, [], "last.ckpt")
