"""Networks by class path, alone and in federations with networks of torchvision."""

import copy
import inspect
import sys

import pytest
import torch
from torch.testing import assert_close

from fedaux_pl.algorithms import FedAvg
from fedaux_pl.cli.prediction import probabilities
from fedaux_pl.data import Digits
from fedaux_pl.engine.checkpoints import load_checkpoint
from fedaux_pl.errors import UsageError
from fedaux_pl.models import (
    check_model,
    complete_options,
    create_for,
    create_model,
    of_head,
    trained_models,
)
from tests.federations import FewDigits, assert_same, create, fit, split, weights
from tests.models.own_networks import Plain, TinyNet

HERE = "tests.models.own_networks"
CLIENTS = {f"{HERE}.Plain": 1, "torchvision/shufflenet_v2_x0_5": 1}


def test_a_classifier_is_used_as_it_is():
    model = create_for((1, 8, 8), f"{HERE}.TinyNet", 4, pretrained=False, width=5)
    assert type(model) is TinyNet
    assert model.conv.weight.shape == (5, 1, 3, 3)
    options = {"in_channels": 1, "width": 5}
    assert model.recipe() == {"name": f"{HERE}.TinyNet", "options": options}
    with pytest.raises(TypeError, match="remove it or use one of in_channels, width"):
        check_model(f"{HERE}.TinyNet", depth=2)


def test_a_plain_module_gets_standardized_images():
    torch.manual_seed(0)
    model = create_for((1, 8, 8), f"{HERE}.Plain", 4, pretrained=False, mean=0.25, std=0.5).eval()
    torch.manual_seed(0)
    plain = Plain(4, in_channels=1)
    x = Digits().test().inputs[:5]
    model.check_inputs(x)
    expected = plain.features((x.float() / 255 - 0.25) / 0.5)
    assert_close(model.features(x), expected)
    assert_close(model(x), plain.head(expected))
    assert {key for key in model.state_dict() if of_head(key)} == {"head.weight", "head.bias"}
    assert model.feature_dim == 8
    assert model.inputs == "images"
    other = copy.deepcopy(model)
    assert torch.equal(other(x), model(x))


def test_its_options_are_those_of_the_class_and_the_normalization():
    options = complete_options(f"{HERE}.Plain", width=3)
    assert options == {"in_channels": 3, "width": 3, "mean": None, "std": None}
    with pytest.raises(TypeError, match="use one of in_channels, width, mean, std"):
        check_model(f"{HERE}.Plain", height=3)
    with pytest.raises(ValueError, match=r"takes images of shape .*, but the samples"):
        create_for((12,), f"{HERE}.Plain", 3, pretrained=False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            ".Net",
            r"model '\.Net': \.Net is no class path, such as my_package\.MyClass; add the mod",
        ),
        ("no_such_package.Net", "module no_such_package cannot be imported; correct the name, or"),
        (f"{HERE}.Plane", r"Plane does not exist in tests.models.own_networks \(did you mean Pla"),
        (f"{HERE}.class_of_nothing", "class_of_nothing is no class of a torch Module in"),
        (f"{HERE}.NoClasses", "takes no num_classes, only outputs; give its constructor"),
        (f"{HERE}.NoFeatures", "NoFeatures lacks features; a model needs"),
        (f"{HERE}.TenOutputs", "has 10 outputs, but there are 2 classes; use num_classes"),
        ("tests.models.broken_module.Net", r"imported \(RuntimeError: no license for this modu"),
    ],
)
def test_wrong_class_paths(name, message):
    with pytest.raises(ValueError, match=message) as info:
        check_model(name)
    assert "\n" not in str(info.value)


def test_a_federation_of_both_resumes_and_predicts(tmp_path):
    def federation():
        return create(FedAvg(pretrained=True), CLIENTS, model_options={}, seed=3)

    digits = FewDigits(size=32)  # which the network of torchvision can read
    data, file = split(2, private=digits, auxiliary=digits), tmp_path / "first.ckpt"
    first, resumed = federation(), federation()
    fit(tmp_path, first, 1, data).save_checkpoint(file)
    assert set(first.history[-1]) >= {f"accuracy/{name}" for name in CLIENTS}
    assert list(first.students) == list(first.students.keys()) == list(CLIENTS)
    assert f"{HERE}.Plain" in first.students
    fit(tmp_path, resumed, 1, data, ckpt_path=file)  # no round is left
    assert_same(weights(first), weights(resumed))
    x = data.test_examples.inputs
    with torch.no_grad():
        expected = resumed.eval()(x)
    models = list(trained_models(load_checkpoint(file)).values())
    assert_close(probabilities(models, x), expected)


def test_the_current_folder_is_searched_last_and_only_for_configurations(tmp_path, monkeypatch):
    from fedaux_pl.runs import parser

    monkeypatch.chdir(tmp_path)
    before = [entry for entry in sys.path if entry]  # "" is the current folder
    monkeypatch.setattr("sys.path", list(before))
    source = inspect.getsource(TinyNet).replace("TinyNet", "HereNet")
    text = f"from torch import nn\nfrom fedaux_pl.models import FeatureClassifier\n\n{source}"
    (tmp_path / "net_of_this_folder.py").write_text(text)
    with pytest.raises(ValueError, match=r"add its folder to the Python path \(PYTHONPATH=FOLDER"):
        create_model("net_of_this_folder.HereNet", 2)
    with pytest.raises(UsageError):  # of the missing method, after the folder was added
        parser.FederationCLI("fit", [])

    assert sys.path == [*before, str(tmp_path)]
    assert type(create_model("net_of_this_folder.HereNet", 2)).__name__ == "HereNet"
