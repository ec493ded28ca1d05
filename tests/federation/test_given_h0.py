"""An h_0 that was learned elsewhere starts a run."""

import re

import pytest
import pytorch_lightning as pl
import torch

from fedaux_pl import SimCLR, save_backbone
from fedaux_pl.algorithms import FedAvg, FedDF
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Pretraining
from fedaux_pl.federation.given_h0 import files_of, read_h0
from fedaux_pl.federation.pretraining import H0Source
from fedaux_pl.federation.students import Students
from tests.federations import assert_same, create, fit, network, run, weights
from tests.paper import paper_fedaux


def backbone(seed=0):
    return backbone_of(network(seed))


def backbone_of(model):
    return {k: v for k, v in model.state_dict().items() if not k.startswith("head.")}


def with_h0(h0):
    return {"pretraining": Pretraining(epochs=1, batch_size=20, h0=h0)}


@pytest.fixture
def no_training(monkeypatch):
    def pretrain(*_):
        raise AssertionError("h_0 was learned")

    monkeypatch.setattr(H0Source, "_learn", pretrain)


@pytest.mark.parametrize("kind", ["safetensors", "state dict", "SimCLR", "bfloat16"])
def test_a_file_is_read_in_place_of_a_training(tmp_path, capsys, no_training, kind):
    path = tmp_path / "h0.pt"  # any name
    state = backbone()
    if kind == "safetensors":
        save_backbone(path, network())
    elif kind == "SimCLR":
        module = SimCLR(network())
        trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
        trainer.strategy.connect(module)
        torch.save({"state_dict": module.state_dict(), "pytorch-lightning_version": "2"}, path)
    elif kind == "bfloat16":
        floats = {k: v.bfloat16() if v.is_floating_point() else v for k, v in state.items()}
        torch.save(floats, path)
        state = {k: v.float() if v.is_floating_point() else v for k, v in floats.items()}
    else:
        torch.save(network().state_dict(), path)
    federation = run(tmp_path, paper_fedaux(), 1, **with_h0(str(path)))
    assert_same(dict(federation.h0["resnet8"]), state)
    assert f"h_0 of resnet8: read from {path}, not learned" in capsys.readouterr().out


@pytest.mark.parametrize("given", [network, lambda: network().state_dict()])
def test_weights_in_memory_are_used(tmp_path, no_training, given):
    federation = create(paper_fedaux())
    federation.h0 = {"resnet8": given()}
    fit(tmp_path, federation, 1)
    assert_same(dict(federation.h0["resnet8"]), backbone())
    assert "h0" not in federation.settings()["pretraining"]


def test_the_same_weights_find_the_same_release(tmp_path):
    """The keys of releases hold the weights of h_0, not where they are from."""
    learned = run(tmp_path, paper_fedaux(), 1)
    path = tmp_path / "h0.safetensors"
    save_backbone(path, learned.students["resnet8"])
    torch.save(dict(learned.h0["resnet8"]), tmp_path / "h0.pt")
    cached = {p.name for p in (tmp_path / "cache").iterdir()}
    given = run(tmp_path, paper_fedaux(), 1, **with_h0(str(tmp_path / "h0.pt")))
    assert {p.name for p in (tmp_path / "cache").iterdir()} == cached
    assert_same(weights(given), weights(learned))


def test_a_folder_has_a_file_of_each_architecture(tmp_path):
    names = ["resnet8", "torchvision/resnet18"]
    files = files_of(str(tmp_path), names)
    assert files["torchvision/resnet18"] == str(tmp_path / "torchvision_resnet18.safetensors")
    (tmp_path / "h0.safetensors").touch()
    with pytest.raises(ConfigurationError, match="got one file for resnet8, torchvision/resnet18"):
        files_of(str(tmp_path / "h0.safetensors"), names)


def test_what_does_not_fit_is_one_line(tmp_path):
    federation = create(paper_fedaux())
    with pytest.raises(ConfigurationError, match=r"got one of resnet9 \(did you mean resnet8\?\)"):
        federation.h0 = {"resnet9": network()}
    with pytest.raises(ConfigurationError, match=r"got ResNet8; expected weights by architecture"):
        federation.h0 = network()
    mixed = create(paper_fedaux(), {"resnet8": 1, "shufflenet": 1})
    with pytest.raises(ConfigurationError, match="got none of shufflenet"):
        mixed.h0 = {"resnet8": network()}
    state = backbone()
    del state["conv1.weight"]
    with pytest.raises(ConfigurationError, match=r"1 entries are missing, .*'conv1\.weight'"):
        read_h0(state, network())
    with pytest.raises(ConfigurationError, match=re.escape(str(tmp_path / "none.pt"))):
        read_h0(tmp_path / "none.pt", network())
    (tmp_path / "text.pt").write_text("no weights")
    with pytest.raises(ConfigurationError, match=r"text\.pt cannot be read as weights"):
        read_h0(tmp_path / "text.pt", network())
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ConfigurationError, match=r"list\.pt holds no state dict"):
        read_h0(tmp_path / "list.pt", network())


def test_a_file_that_claims_gigabytes_is_one_line(tmp_path):
    path = tmp_path / "large.pt"
    torch.save({"weights": torch.zeros(1).expand(1 << 40)}, path)
    with pytest.raises(
        ConfigurationError, match=r"large\.pt cannot be read .*stores 1: save a con"
    ):
        read_h0(path, network())
    torch.save({"weights": bytearray(10)}, path)
    message = (
        r"large\.pt cannot be read as weights \(it holds 'builtins\.bytearray', but only tensors"
    )
    with pytest.raises(ConfigurationError, match=message):
        read_h0(path, network())


@pytest.mark.parametrize("is_zip", [True, False])
def test_files_of_earlier_versions_of_torch_are_read(tmp_path, is_zip):
    """torchvision's older weights are no zip archives."""
    path = tmp_path / "h0.pth"
    torch.save(network().state_dict(), path, _use_new_zipfile_serialization=is_zip)
    state, _ = read_h0(path, network(1))
    assert_same(state, backbone())


def test_nothing_given_is_ignored(tmp_path):
    path = tmp_path / "h0.safetensors"
    save_backbone(path, network())
    with pytest.raises(ConfigurationError, match="FedAvg does not start from one"):
        run(tmp_path, FedAvg(), 1, **with_h0(str(path)))
    both = create(FedDF(pretrained=True), **with_h0(str(path)))
    both.h0 = {"resnet8": network()}
    with pytest.raises(ConfigurationError, match="both set"):
        fit(tmp_path, both, 1)


def test_a_resumed_run_refuses_another_h0(tmp_path):
    federation = create(FedDF(pretrained=True))
    federation.h0 = {"resnet8": network(0)}
    trainer = fit(tmp_path, federation, 1)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    for seed in (0, 1):
        resumed = create(FedDF(pretrained=True))
        resumed.h0 = {"resnet8": network(seed)}
        if seed == 0:
            fit(tmp_path, resumed, 2, ckpt_path=tmp_path / "last.ckpt")
        else:
            with pytest.raises(
                ConfigurationError,
                match="already has an h_0 for resnet8, and a resumed run keeps it",
            ):
                fit(tmp_path, resumed, 2, ckpt_path=tmp_path / "last.ckpt")


def test_a_seed_shares_one_h0_between_seeds_and_classes(tmp_path):
    """Heads, clients and rounds have the seed of the run."""
    shared = {"pretraining": Pretraining(epochs=1, batch_size=20, seed=7)}
    first = run(tmp_path, FedAvg(pretrained=True), 1, **shared)
    other = run(tmp_path, FedAvg(pretrained=True), 1, seed=1, **shared)
    assert_same(dict(first.h0["resnet8"]), dict(other.h0["resnet8"]))
    assert len(list((tmp_path / "cache").glob("h0-*"))) == 1
    assert not torch.equal(weights(first)["resnet8.head.bias"], weights(other)["resnet8.head.bias"])
    students = [Students(["resnet8"], {"width": 0.125}, 0) for _ in range(2)]
    for model, classes in zip(students, (7, 10), strict=True):
        model.create((1, 8, 8), classes, False, backbone_seed=7)
    one, two = (backbone_of(model["resnet8"]) for model in students)
    assert_same(one, two)
    alone = run(tmp_path, FedAvg(pretrained=True), 1, seed=7)
    assert not torch.equal(alone.h0["resnet8"]["conv1.weight"], first.h0["resnet8"]["conv1.weight"])
