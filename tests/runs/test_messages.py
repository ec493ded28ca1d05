"""Messages of jsonargparse, as this version writes them, become one line."""

from abc import ABC, abstractmethod

import pytest
from pytorch_lightning.cli import LightningArgumentParser

from fedaux_pl import __version__
from fedaux_pl.algorithms import Algorithm, FedAvg
from fedaux_pl.cli import main
from fedaux_pl.data import FederatedDataModule, Source, sources
from fedaux_pl.federation import Federation
from fedaux_pl.models import model_names
from fedaux_pl.runs.messages import _SYNONYMS, accepted_classes, clarify
from tests.command_line import QUICKSTART, refusal

ALL_OPTIONS = f"all options of {__version__}:"
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


class Clusters(FedAvg):
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


METHODS = [
    *(
        "Centralized",
        "FedAUX",
        "FedAUXfdp",
        "FedAdam",
        "FedAvg",
        "FedAvgM",
        "FedBE",
    ),
    "FedBN",
    *("FedCOF", "FedClassMeans", "FedDF", "FedProx", "Scaffold"),
]


def test_classes_are_the_imported_subclasses_those_of_the_package_first():
    known = accepted_classes(ROOTS, "model.algorithm")
    assert known[: len(METHODS)] == METHODS
    assert "Clusters" in known[len(METHODS) :]
    for key in ("data.private", "data.auxiliary"):
        names = accepted_classes(ROOTS, key)
        assert names[: len(sources.__all__)] == sorted(sources.__all__)
    assert accepted_classes({"model": Model}, "model.algorithm.distance") == [
        "Euclidean",
        "Minkowski",
    ]


def test_classes_that_cannot_be_created_by_name_are_not_listed():
    class Local(Source):
        def train(self):
            pass

    names = accepted_classes(ROOTS, "data.private")
    assert not {"Local", "TextSource", "_HubText", "InMemory"} & set(names)


@pytest.mark.parametrize("key", ["model", "model.clients", "model.seed", "trainer.devices", ""])
def test_options_without_classes(key):
    assert accepted_classes(ROOTS, key) == []


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (
            ["other=Foo"],
            "model.other: got Foo; expected one of Euclidean, Minkowski, or the import path",
        ),
        (["algorithm=Clusters", "algorithm.distance=Foo"], ": got Foo; expected one of "),
        (
            ["algorithm=own.Method"],
            "model.algorithm: cannot import own.Method (No module named 'own'): add its folder to "
            "PYTHONPATH",
        ),
        (["other.power=3"], "model.other.power needs a class for model.other: add --model.other"),
        (["other=Euclidean", "other.power=3"], "model.other: Euclidean has no option power;"),
        (
            ["algorithm=Clusters", "algorithm.distance=Euclidean", "algorithm.distance.power=3"],
            f"model.algorithm.distance: Euclidean has no option power; {ALL_OPTIONS} "
            "prog --model.algorithm Clusters --model.algorithm.distance.help Euclidean",
        ),
        (
            ["algorithm=Clusters", "algorithm.distance=Minkowski"],
            "model.algorithm.distance: Minkowski needs power: add --model.algorithm.distance.power",
        ),
        (
            ["other=Minkowski", "other.power=much"],
            "model.other.power: got much; expected an integer",
        ),
        (
            ["other=Minkowski", "other.power=2", "other.scale=much"],
            "model.other.scale: got much; expected a number",
        ),
    ],
)
def test_options_of_classes(args, expected):
    assert expected in message(*args)


@pytest.mark.parametrize(
    ("original", "expected"),
    [
        (
            'Linked "model.seed" must be given via "seed_everything".',
            "model.seed is set by seed_everything: give --seed_everything instead",
        ),
        (
            "Group 'model' does not accept option 'client.resnet8'",
            f"there is no option model.client.resnet8; {ALL_OPTIONS} prog --model.help",
        ),
        (
            "unrecognized arguments: --data.beta=1 --other",
            f"there is no option --data.beta; {ALL_OPTIONS} prog --data.help",
        ),
        ("Option 'modle.clients' is not accepted", "there is no option modle.clients"),
        ("unrecognized arguments: --foo", "there is no option --foo"),
        (
            "the following arguments are required: ckpt_path",
            "missing option --ckpt_path: add it",
        ),
        ('Parser key "config": Path is not a file: a', "config: a is not a file"),
        (
            'Problems parsing config: while scanning\n  in "<unicode string>", line 2, column 1',
            "config: the file is not valid YAML: while scanning at line 2, column 1",
        ),
        (
            "No supported gpu backend found!",
            "trainer.accelerator is gpu, but this machine has no GPU that PyTorch can use: choose "
            "auto or cpu",
        ),
        (
            "the following arguments are required: model.algorithm, data.private",
            "missing options --model.algorithm, --data.private: add them, or a file such as "
            "--config quickstart",
        ),
        (
            "the following arguments are required: server, certificates",
            "missing options --server, --certificates: add them",
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
        "Parser key \"a\": Expected a <class 'some.Thing'>. Got value: 3",
        'Parser key "a": something new',
        "Expected a <class 'int'>",
    ],
)
def test_a_message_of_an_unknown_form_is_kept(message):
    assert clarify(message, "fedaux-pl fit", {}, {}) == message


def refused(capsys, *args):
    """What fit says about a mistake; nothing is run."""
    if (message := refusal(args)) is None:
        assert main(["fit", *args]) == 2
        message = capsys.readouterr().err.splitlines()[-2]
    return message.removeprefix("fedaux-pl fit: error: ")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (
            "--model.particpation=0.3",
            "there is no option --model.particpation (did you mean --model.participation?); "
            f"{ALL_OPTIONS} fedaux-pl fit --model.help",
        ),
        (  # a prefix was taken for the option
            "--trainer.max_epoch=3",
            "there is no option --trainer.max_epoch (did you mean --trainer.max_epochs?)",
        ),
        (
            "--model.local={epoch: 3}",
            "there is no option model.local.epoch (did you mean model.local.epochs?)",
        ),
        (
            "--lr=1",
            "--lr (did you mean --model.local.lr or --model.distillation.lr or --model.pret",
        ),
        ("--data.clients={resnet8: 3}", "(did you mean --model.clients?)"),
        ("--seed=3", "(did you mean --seed_everything?)"),
        ("model.trained=head", "no option model.trained (did you mean --model.trained?)"),
        (
            "--data={negatives: 0.5}",
            "no option data.negatives (did you mean data.negative_fraction",
        ),
        ("methods/feddf", "no option methods/feddf (did you mean --config methods/feddf?)"),
        (str(QUICKSTART), f"(did you mean --config {QUICKSTART}?)"),
        ("--model.algorithm=FedAux", "got FedAux (did you mean FedAUX?); expected one of"),
        (
            "--model.algorithm.epsilonn=1",
            "has no option epsilonn (did you mean privacy.epsilon?); ",
        ),
        (
            "--model.algorithm={class_path: FedAUX, init_args: {privacy: {epsilo: 1}}}",
            "FedAUX has no option privacy.epsilo (did you mean privacy.epsilon?); all options of ",
        ),
        ("--model.algorithm.privacy=null", ": set --model.algorithm.privacy.epsilon to null"),
        (
            "--model.algorithm.pretraining.epochs=2",
            "has no option pretraining.epochs (did you mean --model.pretraining.epochs?); all",
        ),
        ("--model.algorithm.x.y=2", "model.algorithm: FedAUX has no option x.y; all options of "),
        (
            "--model.algorithm.scoring=Meanscoring",
            "got Meanscoring (did you mean MeanScoring?); expected one of",
        ),
        ("--model.algorithm=fedaux_pl.Federation", ": got fedaux_pl.Federation; expected one of "),
        (
            "--model.algorithm=fedaux_pl.FedFoo",
            "model.algorithm: cannot import fedaux_pl.FedFoo (module 'fedaux_pl' has no attribute "
            f"'FedFoo' in version {__version__}): correct it",
        ),
        (
            "--model.algorithm.help=FedAvgg",
            "--model.algorithm.help takes one of Centralized, FedAUX, FedAUXfdp, ",
        ),
        ("--data.private=null", "data.private is not set: add --data.private, or a file such as "),
        (
            "--model.clients={resnet: 3}",
            f"model 'resnet' (did you mean resnet8?); pass one of {', '.join(model_names())}",
        ),
        (
            "--model.model_options={resnet8: 3}",
            "options of model 'resnet8': got 3; expected a mapping",
        ),
        (
            "--model.algorithm.privacy=3",
            "model.algorithm.privacy: got 3; expected a mapping such as {",
        ),
        (
            "--model.local=3",
            "model.local: got 3; expected a mapping such as {name: value}, or an option of ",
        ),
        ("--model.local.epochs=0", "local.epochs: got 0; expected to be an integer of at least 1"),
        (f"--model.local.batch_size={10**20}", f"got {10**20}; expected to be an integer"),
        ("--model.local.lr=1e300", "lr: got 1e+300; expected to be a positive number of at"),
        (
            "--trainer.max_epochs=0",
            "max_epochs: got 0; expected at least 1 round, or -1 for no limit",
        ),
        ("--trainer.max_steps=0", "trainer.max_steps: got 0; expected at least 1 round"),
        ("--trainer.overfit_batches=1", "trainer.overfit_batches is 1, but has no meaning in a fe"),
        ("--trainer.callbacks=Foo", "trainer.callbacks: got Foo; expected one of BestCheck"),
        ("--seed_everything=true", "got true; expected an integer from 0 to 4294967295"),
        ("--seed_everything=-1", "got -1; expected an integer from 0 to 4294967295"),
        (
            "--seed_everything=4294967296",
            "got 4294967296; expected an integer from 0 to 4294967295",
        ),
        ("--data.private=Foo", f"got Foo; expected one of {', '.join(sorted(sources.__all__))}"),
        ("--data.auxiliary=ImageFolder", "ImageFolder needs root: add --data.auxiliary.root"),
        ("--model.metrics=f1", "model.metrics: got f1; expected a list such as '[f1, auroc]'"),
        (
            "--model.clients=20",
            "got 20; expected architectures with their numbers of clients, like {resnet8: 20}",
        ),
        (
            "--model.algorithm.privacy.epsilon=0",
            "epsilon: got 0.0; expected to be positive and finite, at least 1e-05",
        ),
        ("--model.algorithm.privacy.secure=true", "options of secure sums such as {col"),
        ("--model.algorithm.privacy.sums=secure", "FedAUX has no option privacy.sums (did you m"),
        ("--model.algorithm.privacy.epsilon=lots", "epsilon: got lots; expected a number or null"),
        (
            "--model.algorithm.scoring={class_path: PaperScoring, init_args: {variant: foo}}",
            "scoring.variant: got foo; expected private, literal or authors",
        ),
        (
            "--model.algorithm.scoring={class_path: MeanScoring, init_args: {regularization: 1}}",
            f"model.algorithm.scoring: MeanScoring has no option regularization; {ALL_OPTIONS} "
            "fedaux-pl fit --model.algorithm FedAUX --model.algorithm.scoring.help MeanScoring",
        ),
        (
            "--model.algorithm.scoring={class_path: MeanScoring, init_args: {sharpness: 50}}",
            "sharpness: got 50.0; expected to be above 0 and at most 20",
        ),
        (
            "--model.algorithm.scoring.dimensions=many",
            "model.algorithm.scoring.dimensions: got many; expected an integer or null",
        ),
        (
            "--model.local.optimizer=lbfgs",
            "local.optimizer: got lbfgs; expected adam, adamw or sgd",
        ),
        (
            "--model.pretraining.views.min_scale=2",
            "views.min_scale: got 2.0; expected to lie in (0, 1], the part ",
        ),
        ("--model.pretraining.flip=0", "(did you mean --model.pretraining.views.flip?)"),
        ("--trainer.precision=17", "got 17; expected one of 32-true, bf16-mixed, 16-mixed"),
        ("--trainer.max_epochs=many", "max_epochs: got many; expected an integer or null"),
        ("--data.seed=3", "data.seed is set by seed_everything: give --seed_everything instead"),
        ("--data.num_clients=3", "data.num_clients is set by --model.clients"),
    ],
)
def test_mistakes_of_a_newcomer(args, expected, tmp_path, capsys):
    common = [f"--config={QUICKSTART}", f"--trainer.default_root_dir={tmp_path}"]
    assert expected in refused(capsys, *common, "--trainer.accelerator=cpu", args)
    assert not list(tmp_path.iterdir())


def test_a_file_in_place_of_a_class(tmp_path, capsys):
    (tmp_path / "own.py").write_text(
        "from fedaux_pl import FedAvg\n\n\nclass Own(FedAvg):\n    pass\n"
    )
    message = refused(capsys, "--config=quickstart", f"--model.algorithm={tmp_path / 'own.py'}")
    assert "expected a class: give its import path, such as own.MyClass" in message


def test_a_callback_that_monitors_nothing_names_the_metrics(tmp_path, capsys):
    callback = ["--trainer.callbacks=EarlyStopping", "--trainer.callbacks.monitor=val_loss"]
    common = [f"--config={QUICKSTART}", f"--trainer.default_root_dir={tmp_path}"]
    assert refused(capsys, *common, "--trainer.accelerator=cpu", *callback) == (
        "--trainer.callbacks: monitor of EarlyStopping: got val_loss; expected one of "
        "val/accuracy, val/accuracy/resnet8, accuracy, accuracy/resnet8, "
        "client_loss/mean, distillation_loss/resnet8"
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"- a\n- b\n", ": got \"['a', 'b']\"; expected options such as"),
        (b"", ": got 'None'; expected options such as `model: {participation: 0.4}`"),
        (b"model: {a: [1\n", " is not valid YAML: while parsing a flow sequence at line 1, "),
        (b"\xb7\xff\x00", " is not valid YAML: it is not a text file"),
    ],
)
def test_a_configuration_that_holds_no_options(content, expected, tmp_path, capsys):
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    assert f"config: {path}{expected}" in refused(capsys, "--config=quickstart", f"--config={path}")


def test_an_option_of_a_class_is_found_without_its_class(capsys):
    for given, meant in (
        ("model.privacy.epsilon", "--model.algorithm.privacy.epsilon"),
        ("data.root", "--data.private.root or --data.auxiliary.root"),
    ):
        message = refused(capsys, "--config=quickstart", f"--{given}=1")
        assert f"there is no option --{given} (did you mean {meant}?)" in message


def test_a_logger_whose_package_is_missing_names_it():
    original = (
        'Parser key "trainer.logger":\n  Does not validate against any of the Union subtypes\n'
        "  Subtypes: [Logger]\n  Errors:\n    - Problem with given class_path "
        "'pytorch_lightning.loggers.WandbLogger':\n        Requirement 'wandb>=0.12.10' not met. "
        "HINT: Try running `pip install -U 'wandb>=0.12.10'`\n  Given value type: <class 'dict'>"
    )
    assert clarify(original, "prog", ROOTS, {}) == (
        "WandbLogger needs wandb>=0.12.10, which is not installed: run pip install 'wandb>=0.12.10'"
    )


@pytest.mark.parametrize("verb", ["fit", "pretrain", "benchmark"])
def test_a_verb_without_options_names_a_configuration(verb, capsys):
    assert main([verb]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("or a file such as --config quickstart")
    assert second.endswith(f"fedaux-pl {verb} --help all)")


def test_the_names_under_which_people_look_for_an_option(capsys):
    for looked_for, option in _SYNONYMS.items():
        assert f"(did you mean --{option}?)" in refused(capsys, f"--{looked_for}=1")


@pytest.mark.parametrize(
    ("option", "value", "name"),
    [
        # refused by the parser
        ("--model.algorithm.privacy.secure", "true", "--model.algorithm.privacy.secure"),
        ("--data.alpha", "many", "--data.alpha"),
        ("--trainer.max_epochs", "0", "--trainer.max_epochs"),
        ("--seed_everything", "-1", "--seed_everything"),
        # refused by the class, whose argument has the last part of the name
        ("--data.alpha", "-5", "--data.alpha"),
        ("--model.participation", "3", "--model.participation"),
        ("--model.local.lr", "0", "--model.local.lr"),
        ("--model.algorithm.privacy.epsilon", "0", "--model.algorithm.privacy.epsilon"),
        ("--model.pretraining.views.min_scale", "2", "--model.pretraining.views.min_scale"),
    ],
)
def test_a_message_names_an_option_as_it_is_typed(option, value, name, capsys):
    message = refused(capsys, "--config=quickstart", f"{option}={value}")
    assert message.startswith(f"{name}: got ")


def test_a_message_about_data_names_the_option_as_it_is_typed(tmp_path, capsys):
    args = ["--config=quickstart", "--data.auxiliary=null", "--trainer.accelerator=cpu"]
    assert main(["fit", *args, f"--trainer.default_root_dir={tmp_path}"]) == 1
    assert "auxiliary data: set --data.auxiliary, or choose" in capsys.readouterr().err
