"""Federations of text on the command line: fit, resume, predict, and error messages."""

import csv
from pathlib import Path

import pytest
import torch

from fedaux_pl.cli import verbs as commands
from fedaux_pl.cli.entry import main
from fedaux_pl.data import Glosses
from fedaux_pl.engine.checkpoints import load_checkpoint
from fedaux_pl.models import load_backbone
from tests.texts import CONFIG, encoder, save

QUICKSTART = Path(__file__).parents[2] / "configs" / "text_quickstart.yaml"
SMALL = CONFIG | {"vocab_size": 4000}
TEXTS = "label,text\n" + "".join(
    f"{name},{adjective} {thing} number {i}\n"
    for i in range(8)
    for name, thing, adjective in (("animal", "bird", "small"), ("food", "dish of meat", "large"))
)
BOOKS = "".join(f"a {word} of the {other}\n" for word in "abcdef" for other in "uvwxyz")


@pytest.fixture
def files(tmp_path):
    """Private and auxiliary texts."""
    (tmp_path / "private.csv").write_text(TEXTS)
    (tmp_path / "books.txt").write_text(BOOKS)
    return tmp_path


def args(verb, root, files, *more, rounds=2, options=None):
    options = {"config": SMALL, "mask_id": 4} if options is None else options
    return [
        verb,
        f"--config={QUICKSTART}",
        f"--trainer.max_epochs={rounds}",
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        f"--trainer.default_root_dir={root}",
        "--model.clients={encoder: 2}",
        "--model.pretraining.epochs=1",
        f"--model.model_options={options!r}",
        "--data.alpha=1.0",
        "--data.private=TextFiles",
        f"--data.private.path={files / 'private.csv'}",
        "--data.private.draw.test_fraction=0.25",
        "--data.private.max_length=12",
        "--data.auxiliary=TextFiles",
        f"--data.auxiliary.path={files / 'books.txt'}",
        "--data.auxiliary.max_length=12",
        *more,
    ]


def last(root):
    return next(root.rglob("last.ckpt"))


def test_it_runs_resumes_and_predicts(files, tmp_path, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(args("fit", whole, files)) == 0
    assert main(args("fit", parts, files, rounds=1)) == 0
    assert main(args("fit", parts, files, "--ckpt_path=last")) == 0
    one, other = (load_checkpoint(last(root))["state_dict"] for root in (whole, parts))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert "FedAUX after 2 rounds: accuracy" in capsys.readouterr().out
    assert main(args("validate", whole, files, "--ckpt_path=last")) == 0

    (tmp_path / "new.txt").write_text("small bird\n\nlarge dish of meat\n")
    capsys.readouterr()
    output = tmp_path / "out.csv"
    command = ["predict", f"--ckpt_path={last(whole)}", f"--output={output}"]
    assert main([*command, f"--texts={tmp_path / 'new.txt'}"]) == 0
    with output.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["row", "text", "class", "animal", "food"]
    assert [row["row"] for row in rows] == ["0", "1", "2"]
    assert [row["text"] for row in rows] == ["small bird", "", "large dish of meat"]
    assert list(rows[1].values())[2:] == ["", "", ""]
    assert capsys.readouterr().out == f"3 texts (1 without a text have empty rows): {output}\n"
    for row in (rows[0], rows[2]):
        assert float(row["animal"]) + float(row["food"]) == pytest.approx(1, abs=1e-5)
    assert main([*command, f"--texts={files / 'private.csv'}", "--column=label,text"]) == 0
    capsys.readouterr()
    for more, words in (
        ([f"--texts={files / 'private.csv'}", "--column=body"], "give --column and the name"),
        ([f"--images={tmp_path}"], "trained on texts: give --texts"),
    ):
        assert main([*command, *more]) == 1
        assert words in capsys.readouterr().err


def test_given_weights_are_h0(files, tmp_path):
    source = save(tmp_path / "encoder", encoder(config=SMALL, seed=7))
    options = {"source": str(source)}
    given = encoder(config=SMALL, seed=7).encoder.state_dict()

    def h0(*more):
        cli = commands.FederationCLI(
            "fit", args("fit", tmp_path / "a", files, *more, options=options)[1:]
        )
        cli.trainer.fit_loop.max_epochs = 0  # the preparation alone
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
        return cli.model

    untrained = h0("--model.pretraining.epochs=0").h0["encoder"]
    assert all(torch.equal(untrained[f"encoder.{key}"], given[key]) for key in given)
    trained = h0("--model.pretraining.epochs=1")
    moved = trained.h0["encoder"]
    assert not all(torch.equal(moved[f"encoder.{key}"], given[key]) for key in given)
    load_backbone(trained.students["encoder"], untrained)  # of the same shape
    # without pre-training a run starts from random weights, not from those of the folder
    plain = h0("--model.algorithm=FedAvg", "--model.pretraining.epochs=0")
    assert plain.h0 == {}
    state = plain.students["encoder"].encoder.state_dict()
    assert not any(torch.equal(state[key], given[key]) for key in given if "query.weight" in key)


@pytest.mark.parametrize(
    "method",
    [
        ["--model.algorithm=FedDF", "--model.algorithm.pretrained=true"],
        ["--model.algorithm=FedAUX"],
    ],
)
def test_mixed_encoders_and_linear_evaluation(method, files, tmp_path):
    options = {
        "mask_id": 4,
        "encoder": {"config": SMALL},
        "encoder-wide": {"config": SMALL | {"hidden_size": 24}, "pooling": "cls"},
    }
    cli = commands.fit(
        args(
            "fit",
            tmp_path / "runs",
            files,
            *method,
            "--model.clients={encoder: 1, encoder-wide: 1}",
            "--model.trained=head",
            rounds=1,
            options=options,
        )[1:]
    )
    for name, width in (("encoder", 16), ("encoder-wide", 24)):
        student = cli.model.students[name]
        assert student.feature_dim == width
        state, h0 = student.state_dict(), cli.model.h0[name]
        assert all(torch.equal(state[key], h0[key]) for key in h0)  # only the head was trained


@pytest.mark.parametrize(
    ("more", "options", "words"),
    [
        (["--data.private.layout.text=body"], None, "no column 'body'"),
        (["--data.private.max_length=60", "--data.auxiliary.max_length=60"], None, "texts of 60"),
        (["--data.private.max_length=9"], None, "samples of the same shape"),
        ([], {"config": CONFIG, "mask_id": 4}, "0 ... 59, the encoder's vocabulary"),
        ([], {"config": SMALL}, "set mask_id of the model"),
        (["--data.private=Digits", "--data.auxiliary=Digits"], None, "'encoder' takes token ids"),
        (["--model.clients={resnet8: 2}"], {}, "'resnet8' takes images"),
    ],
)
def test_a_mistake_is_one_clear_message(more, options, words, files, tmp_path, capsys):
    command = args("fit", tmp_path / "runs", files, *more, options=options)
    if "--data.private=Digits" in more:
        command = [a for a in command if ".path" not in a and "TextFiles" not in a]
        command = [a for a in command if not a.startswith(("--data.private.", "--data.auxiliary."))]
    assert main(command) == 1
    message = capsys.readouterr().err
    assert words in message
    assert "Traceback" not in message


def test_the_quickstart_uses_the_embedded_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(QUICKSTART.parent.parent)
    cli = commands.FederationCLI(
        "fit", [f"--config={QUICKSTART}", f"--trainer.default_root_dir={tmp_path}"]
    )
    assert isinstance(cli.datamodule.private, Glosses)
    cli.datamodule.setup()
    options = cli.model.model_options
    model = encoder(6, config=options["config"], mask_id=options["mask_id"])
    for inputs in cli.datamodule.all_inputs:
        model.check_inputs(inputs)
    assert cli.datamodule.private._tokenize.load().mask_token_id == options["mask_id"]


def test_another_padding_token_than_the_encoders(files, capsys):
    """The encoder would read padding as text, and token 7 as padding."""
    options = {"config": SMALL, "mask_id": 4, "pad_id": 7}
    assert main(args("fit", files / "logs", files, options=options)) == 1
    errors = capsys.readouterr().err
    assert "pads texts with token 0, but the encoder takes token 7 for padding" in errors
    assert "pad_id: 0" in errors
    assert not list((files / "logs").rglob("last.ckpt"))
