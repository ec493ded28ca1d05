"""Messages of jsonargparse, as this version writes them, become one line."""

import re
from abc import ABC, abstractmethod

import pytest
from pytorch_lightning.cli import LightningArgumentParser

from fedaux_pl.algorithms import Algorithm, FedAvg
from fedaux_pl.cli.messages import _FORMER, clarify, class_names
from fedaux_pl.data import FederatedDataModule, Source, sources
from fedaux_pl.federation import Federation

ROOTS = {"model": Federation, "data": FederatedDataModule}


class Distance(ABC):
    @abstractmethod
    def measure(self):
        """Any abstract method."""


class Euclidean(Distance):
    def measure(self):
        pass


class Minkowski(Distance):
    def __init__(self, power: int, scale: float = 1.0):
        pass

    def measure(self):
        pass


class Scaffold(FedAvg):
    """A method of a user, with an option that takes a class."""

    def __init__(self, distance: Distance | None = None):
        super().__init__()


class Model:
    def __init__(self, algorithm: Algorithm, other: Distance | None = None):
        pass


def message(*args):
    """What the user reads."""

    class Parser(LightningArgumentParser):
        def error(self, message, ex=None):
            if not self.exit_on_error:
                super().error(message, ex)
            raise RuntimeError(clarify(message, "prog", {"model": Model}, {}))

    parser = Parser(prog="prog")
    parser.add_class_arguments(Model, "model")
    with pytest.raises(RuntimeError) as caught:
        parser.parse_args([f"--model.{arg}" for arg in args])
    return str(caught.value)


def test_classes_are_the_imported_subclasses_those_of_the_package_first():
    known = class_names(ROOTS, "model.algorithm")
    assert known[:5] == ["FedAUX", "FedAvg", "FedBE", "FedDF", "FedProx"]
    assert "Scaffold" in known[5:]
    for key in ("data.private", "data.auxiliary"):
        names = class_names(ROOTS, key)
        assert names[: len(sources.__all__)] == sorted(sources.__all__)
    assert class_names({"model": Model}, "model.algorithm.distance") == ["Euclidean", "Minkowski"]


def test_classes_that_cannot_be_created_by_name_are_not_listed():
    class Local(Source):
        def train(self):
            pass

    assert not {"Local", "TextSource", "_HubText"} & set(class_names(ROOTS, "data.private"))


@pytest.mark.parametrize("key", ["model", "model.clients", "model.seed", "trainer.devices", ""])
def test_options_without_classes(key):
    assert class_names(ROOTS, key) == []


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["other=Foo"], "model.other must be one of Euclidean, Minkowski, or the import path of "),
        (["algorithm=Scaffold", "algorithm.distance=Foo"], "model.algorithm.distance must be one "),
        (["algorithm=Scaffold", "algorithm.distance=Foo"], ", but is Foo"),
        (
            ["algorithm=own.Method"],
            "model.algorithm: cannot import own.Method (No module named 'own'): add its folder to "
            "PYTHONPATH",
        ),
        (["other.power=3"], "model.other.power needs a class for model.other: add --model.other"),
        (["other=Euclidean", "other.power=3"], "model.other: Euclidean has no option power;"),
        (
            ["algorithm=Scaffold", "algorithm.distance=Euclidean", "algorithm.distance.power=3"],
            "model.algorithm.distance: Euclidean has no option power; all options: "
            "prog --model.algorithm Scaffold --model.algorithm.distance.help Euclidean",
        ),
        (
            ["algorithm=Scaffold", "algorithm.distance=Minkowski"],
            "model.algorithm.distance: Minkowski needs power: add --model.algorithm.distance.power",
        ),
        (
            ["other=Minkowski", "other.power=much"],
            "model.other.power must be an integer, but is much",
        ),
        (
            ["other=Minkowski", "other.power=2", "other.scale=much"],
            "model.other.scale must be a number, but is much",
        ),
    ],
)
def test_options_of_classes(args, expected):
    assert expected in message(*args)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (
            "scoring=mean",
            "algorithm.scoring is now model.algorithm.scorer (Mean or Logistic)",
        ),
        (
            "dimensions=32",
            "now model.algorithm.feature_map.dimensions (with feature_map Whitened)",
        ),
        ("xi=1e-8", "is now model.algorithm.calibration.xi (with calibration Sigmoid); configs/"),
        ("feature_map=none", "but is none, which is now Identity"),
        ("feature_map=centred", "but is centred, which is now Centered"),
        ("calibration=none", "but is none, which is now Sigmoid"),
        ("calibration=standardise", "but is standardise, which is now Standardized"),
    ],
)
def test_former_options_of_fedaux_name_their_new_spelling(args, expected):
    assert expected in message("algorithm=FedAUX", f"algorithm.{args}")


def test_the_new_spellings_exist():
    parser = LightningArgumentParser()
    parser.add_class_arguments(Model, "model")
    for former, new in _FORMER.items():
        if moved := re.fullmatch(r"((\w+)\.(\w+)) \(with \2 (\w+)\)", new):
            assert moved[3] == former
            value = "true" if former == "normalized" else 1
            args = [f"{moved[2]}={moved[4]}", f"{moved[1]}={value}"]
        elif " " in former:
            args = [f"{former.split()[0]}={new}"]
        else:
            args = ["scorer=Mean", "scorer=Logistic"]
        parser.parse_args(
            ["--model.algorithm=FedAUX", *(f"--model.algorithm.{arg}" for arg in args)]
        )


@pytest.mark.parametrize(
    ("original", "expected"),
    [
        (
            'Linked "model.seed" must be given via "seed_everything".',
            "model.seed is set by seed_everything: give --seed_everything instead",
        ),
        (
            "Group 'model' does not accept option 'client.resnet8'",
            "there is no option model.client.resnet8; all options: prog --model.help",
        ),
        (
            "unrecognized arguments: --data.beta=1",
            "there is no option --data.beta=1; all options: prog --data.help",
        ),
        ("Option 'modle.clients' is not accepted", "there is no option modle.clients"),
        (
            "the following arguments are required: model.algorithm, data.private",
            "missing options: model.algorithm, data.private; add them, or a file such as --config "
            "configs/quickstart.yaml",
        ),
        (
            'Parser key "config": File does not exist: a.yaml',
            "config: the file a.yaml does not exist",
        ),
    ],
)
def test_messages_without_a_value(original, expected):
    assert clarify(original, "prog", ROOTS, {}) == expected


@pytest.mark.parametrize(
    "message",
    [
        "unrecognized arguments: --foo",
        "Parser key \"a\": Expected a <class 'some.Thing'>. Got value: 3",
        'Parser key "a": something new',
        "Expected a <class 'int'>",
    ],
)
def test_a_message_of_an_unknown_form_is_kept(message):
    assert clarify(message, "fedaux-pl fit", {}, {}) == message
