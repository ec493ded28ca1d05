"""`fedaux-pl export`: the files give the predictions of the run."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedaux_pl.algorithms import FedClassMeans
from fedaux_pl.cli.export import model_card, to_onnx
from fedaux_pl.cli.model_verbs import export, predict
from fedaux_pl.cli.prediction import probabilities
from fedaux_pl.engine.checkpoints import load_checkpoint
from fedaux_pl.errors import ConfigurationError, UsageError
from fedaux_pl.models import (
    ModelEnsemble,
    create_model,
    load_exported,
    save_ensemble,
    trained_models,
)
from tests.command_line import OWN
from tests.federations import SMALL, FewDigits
from tests.models import own_networks
from tests.texts import encoder, ids

CLASSES = list("0123456789")


@pytest.fixture
def run(finished_run):
    """The folder of a run of two architectures."""
    return finished_run.folder


@pytest.fixture(scope="module")
def images():
    return FewDigits().test().inputs


def predicted(checkpoint, images):
    models = trained_models(load_checkpoint(checkpoint))
    return probabilities(list(models.values()), images)


def expected(run, images):
    return predicted(run / "checkpoints" / "last.ckpt", images)


def test_a_reloaded_export_predicts_the_same_bit_for_bit(run, images, tmp_path):
    output = export([str(run), f"--output={tmp_path / 'out'}"])
    files = {"README.md", "config.json", "model-resnet8.safetensors", f"model-{OWN}.safetensors"}
    assert {path.name for path in output.iterdir()} == files
    model = load_exported(output)
    assert not model.training
    with torch.no_grad():
        assert torch.equal(model(images), expected(run, images))
    assert model.config["classes"] == CLASSES
    assert model.config["input_shape"] == [1, 8, 8]
    (first, second) = model.config["models"]
    assert first["normalization"] == {"mean": [0.5], "std": [0.25]}
    assert second["options"] == {"in_channels": 1, "width": 6}


def test_the_card_says_what_clients_send_by_the_method_alone(run):
    """Not by metrics, which a checkpoint may lack."""
    federation = load_checkpoint(run / "checkpoints" / "last.ckpt")["federation"]
    federation |= {"history": [], "metrics": {}}
    assert "one release" not in model_card(federation, [], "last.ckpt")
    federation["settings"]["algorithm"] = FedClassMeans().settings()
    card = model_card(federation, [], "last.ckpt")
    assert "each sends one release and no model" in card
    assert "trains_clients" not in card


def test_the_background_of_transparent_pictures_is_exported(run, tmp_path):
    last = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    last["federation"]["input_format"] = {"background": "gray"}
    torch.save(last, tmp_path / "gray.ckpt")
    output = export([str(tmp_path / "gray.ckpt"), f"--output={tmp_path / 'out'}"])
    assert "| transparent pictures | on a gray background |" in (output / "README.md").read_text()
    assert load_exported(output).config["input_format"] == {"background": "gray"}


def test_an_own_network_needs_its_module(run, images, tmp_path, monkeypatch):
    """A module that nobody imported is named on the command line; fit's folder is searched."""
    last = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    settings = last["federation"]["settings"]
    for entry in ("clients", "model_options"):
        settings[entry]["own_copy.TinyNet"] = settings[entry].pop(OWN)
    weights = last["state_dict"].items()
    former, new = OWN.replace(".", ":"), "own_copy:TinyNet"
    last["state_dict"] = {key.replace(former, new): value for key, value in weights}
    torch.save(last, tmp_path / "last.ckpt")
    (tmp_path / "own_copy.py").write_text(Path(own_networks.__file__).read_text())
    np.savez(tmp_path / "few.npz", train_x=images.numpy())
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    inputs = ["--ckpt_path=last.ckpt", "--images=few.npz"]
    for verb, args in ((export, ["last.ckpt"]), (predict, inputs)):
        with pytest.raises(
            ConfigurationError, match=r"own_copy.TinyNet, .* add --import own_copy$"
        ):
            verb(args)
        with pytest.raises(ConfigurationError, match="--import own_cop: the module own_cop cannot"):
            verb([*args, "--import=own_cop"])
    assert "own_copy" not in sys.modules
    assert not Path("export").exists()
    export(["last.ckpt", "--import=own_copy"])
    predict([*inputs, "--import=own_copy"])
    assert "\nimport own_copy  # with the network\n" in Path("export", "README.md").read_text()
    with torch.no_grad():
        assert torch.equal(load_exported("export")(images), expected(run, images))
    del sys.modules["own_copy"]


def test_the_model_card(run, tmp_path):
    export([str(run), f"--output={tmp_path}"])
    card = (tmp_path / "README.md").read_text()
    federation = load_checkpoint(run / "checkpoints" / "last.ckpt")["federation"]
    accuracy = federation["metrics"]["accuracy"]
    for text in (
        "# FedAUX on FewDigits",
        "| method | FedAUX, 2 rounds |",
        "| private data | FewDigits, split over 3 clients by Dirichlet(alpha = 0.01) |",
        f"| test accuracy | {accuracy:.2%} on the test data of FewDigits, by the ensemble (resn",
        *(f"- {line}" for line in federation["privacy"]),
        "load_exported",
    ):
        assert text in card
    assert federation["privacy"]
    assert "onnx" not in card


def test_the_card_calls_data_by_their_name(run):
    federation = load_checkpoint(run / "checkpoints" / "last.ckpt")["federation"]
    assert federation["data_names"] == {"private": "FewDigits", "auxiliary": "FewDigits"}
    names = {"private": "photos", "auxiliary": "public"}
    card = model_card(federation | {"data_names": names}, [], "last.ckpt")
    assert "# FedAUX on photos\n" in card
    assert "| private data | photos (FewDigits), split over 3 clients" in card
    assert "| auxiliary data | public (FewDigits) |" in card
    assert "on the test data of photos" in card
    del federation["data_names"]  # as in checkpoints of 1.0
    assert "| auxiliary data | FewDigits |" in model_card(federation, [], "last.ckpt")


@pytest.mark.parametrize(("chosen", "round_"), [(".", 7), ("last", 7), ("last.ckpt", 2)])
def test_a_run_is_the_checkpoint_that_fit_tested(run, images, tmp_path, capsys, chosen, round_):
    """best.ckpt, if validation data chose one; predict takes the same."""
    last = run / "checkpoints" / "last.ckpt"
    best = torch.load(last, weights_only=True)
    for weight in best["state_dict"].values():
        weight.copy_(weight * 2)
    best["federation"] |= {"history": [{"round": 7, "val/accuracy": 0.5}], "metrics": {}}
    shutil.copy(last, tmp_path)
    torch.save(best, tmp_path / "best.ckpt")
    path = chosen if chosen == "last" else str(tmp_path / chosen)
    root = f"--trainer.default_root_dir={tmp_path}"  # as in fit; below, its other name
    output = export([path, root, f"--output={tmp_path / 'out'}"])
    name = "best.ckpt" if round_ == 7 else "last.ckpt"
    assert f"(from {tmp_path / name}, round {round_})" in capsys.readouterr().out
    assert f"| weights | {name}, after round {round_} |" in (output / "README.md").read_text()
    wanted = predicted(tmp_path / name, images)
    with torch.no_grad():
        assert torch.equal(load_exported(output)(images), wanted)
    np.savez(tmp_path / "few.npz", train_x=images.numpy())
    args = [f"--root={tmp_path}", f"--images={tmp_path / 'few.npz'}"]
    table = predict([f"--ckpt_path={path}", *args, f"--output={tmp_path / 'out.csv'}"])
    row = table.read_text().splitlines()[1].split(",")[2:]
    assert list(map(float, row)) == pytest.approx(wanted[0].tolist(), abs=1e-6)


def test_a_folder_with_files_is_not_overwritten_unless_asked(run, tmp_path, capsys):
    (tmp_path / "model.onnx").write_text("of an earlier export")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="is not empty: add --overwrite, or give --output"):
        export([str(run), f"--output={tmp_path}"])
    assert len(list(tmp_path.iterdir())) == 2
    export([str(run), f"--output={tmp_path}", "--overwrite"])
    assert not (tmp_path / "model.onnx").exists()  # it would be of another run
    assert (tmp_path / "notes.txt").read_text() == "mine"
    load_exported(tmp_path)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["RUN", "--format=onnxx"], "format: got 'onnxx'; expected one of safetensors, onnx"),
        (["RUN", "--formt=onnx"], "there is no option --formt"),
        ([], "the run is missing: give its folder, a checkpoint, or 'last'"),
    ],
)
def test_wrong_options(args, message):
    with pytest.raises(UsageError, match=message):
        export(args)


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(ConfigurationError, match=r"no last.ckpt below .*: give the folder of"):
        export([str(tmp_path)])
    with pytest.raises(ConfigurationError, match="there is no checkpoint at"):
        export([str(tmp_path / "none.ckpt")])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "has no readable config.json of an export"),
        (lambda f: (f / "config.json").write_text("{}"), "has no readable config.json of an"),
        (lambda f: (f / "model-resnet8.safetensors").unlink(), "there is no file .*resnet8"),
        (
            lambda f: (f / "model-resnet8.safetensors").write_bytes(b"nothing"),
            "cannot be read as safetensors",
        ),
        (
            lambda f: shutil.copy(f / f"model-{OWN}.safetensors", f / "model-resnet8.safetensors"),
            r"the weights of .*resnet8.safetensors do not fit: Error\(s\)",
        ),
        (
            lambda f: _edit(f / "config.json", format=9),
            "has format 9, but this release reads formats up to 1",
        ),
    ],
)
def test_a_damaged_export(run, tmp_path, damage, message):
    export([str(run), f"--output={tmp_path}"])
    damage(tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        load_exported(tmp_path)


def _edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_models_with_batch_statistics_of_version_1_are_read(tmp_path, images):
    torch.manual_seed(0)
    model = create_model("resnet8", 10, in_channels=1, **SMALL)
    federation = {
        "classes": list("0123456789"),
        "input_shape": [1, 8, 8],
    }
    files = save_ensemble(tmp_path, {"resnet8": model}, federation)
    assert files == ["model.safetensors", "config.json"]
    _edit(tmp_path / "config.json", batchnorm="batch")
    with torch.no_grad():
        found = load_exported(tmp_path)(images)
        torch.testing.assert_close(found, model.train()(images).softmax(dim=-1))


def test_an_encoder_is_exported_without_its_source(tmp_path):
    model = encoder(classes=3).eval()
    federation = {
        "classes": ["a", "b", "c"],
        "input_shape": [20],
        "input_format": {"tokenizer": "folder", "max_length": 20},
        "settings": {"batchnorm_statistics": "running"},
    }
    save_ensemble(tmp_path, {"tinybert": model}, federation)
    again = load_exported(tmp_path)
    x = ids(5, 20, 13)
    with torch.no_grad():
        assert torch.equal(again(x), model(x).softmax(dim=-1))
    assert again.config["models"][0]["name"] == "encoder"
    assert "source" not in again.config["models"][0]["options"]


def test_onnx_images(run, images, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    output = export([str(run), f"--output={tmp_path}", "--format=onnx"])
    assert {path.name for path in output.iterdir()} == {"README.md", "model.onnx"}
    card = (output / "README.md").read_text()
    session = runtime.InferenceSession(output / "model.onnx")
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == CLASSES
    assert 'session.get_modelmeta().custom_metadata_map["classes"]' in card
    for count in (1, len(images)):
        (found,) = session.run(["probabilities"], {"inputs": images[:count].numpy()})
        wanted = expected(run, images[:count])
        torch.testing.assert_close(torch.from_numpy(found), wanted, atol=1e-5, rtol=0)


@pytest.mark.nightly
def test_onnx_texts():
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model = encoder(classes=3).eval()
    federation = {
        "input_shape": [20],
        "settings": {"batchnorm_statistics": "running"},
        "classes": ["a", "b"],
    }
    session = runtime.InferenceSession(to_onnx({"encoder": model}, federation))
    x = ids(5, 20, 13, 1)  # three lengths: what is padding must not count
    (found,) = session.run(None, {"inputs": x.long().numpy()})
    with torch.no_grad():
        wanted = ModelEnsemble({"encoder": model}).eval()(x)
    torch.testing.assert_close(torch.from_numpy(found), wanted, atol=1e-5, rtol=0)


def test_onnx_is_an_extra(run, tmp_path, monkeypatch):
    monkeypatch.setattr("fedaux_pl.cli.export.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="format onnx needs onnx and onnxscript: run `pip"):
        export([str(run), f"--output={tmp_path}", "--format=safetensors,onnx"])
    assert not any(tmp_path.iterdir())
