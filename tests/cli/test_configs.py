"""Every file under configs/ is what it says, alone or on top of the file that it belongs on."""

import dataclasses
import re
import shlex
from functools import reduce
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from jsonargparse import Namespace

from fedaux_pl import FedAUX, FedAUXfdp, FedClassMeans, FedCOF, FedDF
from fedaux_pl.cli import verbs as commands
from fedaux_pl.data import NpzImages, Source
from fedaux_pl.errors import UsageError
from fedaux_pl.models import model_names
from fedaux_pl.scoring import Logistic, MeanScoring, PaperScoring, Privacy
from tests.command_line import resolver
from tests.paper import paper_scoring

ROOT = Path(__file__).parents[2]
BASE = "configs/fedaux_resnet8.yaml"
TEXT_BASE = "configs/fedaux_tinybert_agnews.yaml"
# Files of configs/paper and configs/silos are sweeps, not configurations of fit.
FILES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "configs").rglob("*.yaml")
    if path.parent.name not in ("paper", "silos")
)


@pytest.fixture
def created(monkeypatch, tmp_path):
    """Parses and instantiates, from the folder that the commands in the files are meant for."""
    monkeypatch.chdir(ROOT)

    def create(*files, more=(), trainer=False):
        args = [argument for file in files for argument in ("--config", file)]
        here = ["--trainer.accelerator=cpu", f"--trainer.default_root_dir={tmp_path}"]
        is_wide = all("model_options" not in (ROOT / file).read_text() for file in files)
        if BASE in files and is_wide:  # drawing the weights of a wide network takes long
            here.append("--model.model_options={width: 0.0625}")
        args += [*here, *more]
        if trainer:
            return commands.FederationCLI("fit", args)
        resolver().resolve(args)
        config = resolver().config
        parts = Namespace(model=config.model, data=config.data)
        objects = resolver().parser.instantiate_classes(parts)
        return SimpleNamespace(config=config, model=objects.model, datamodule=objects.data)

    return create


def layered(*names):
    return [BASE, *(f"configs/{name}.yaml" for name in names)]


def leaves(tree, path=()):
    """All values of a YAML with the path to each; clients and an encoder's config are one value."""
    for key, value in tree.items():
        if isinstance(value, dict) and key not in ("clients", "config"):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def of_object(cli, path):
    """What the created objects have where a configuration has this path."""
    part, name, *rest = path
    if part == "trainer":
        return {
            "max_epochs": cli.trainer.max_epochs,
            "devices": cli.trainer.num_devices,
            "precision": cli.trainer.precision,
        }[name]
    if name == "algorithm":
        settings = cli.model.algorithm.settings()
        if rest == ["class_path"]:
            return settings["method"]
        if rest[1] == "privacy":
            return getattr(cli.model.algorithm.release.scoring.privacy, rest[2])
        if rest[1] == "scoring":
            recipe = cli.model.algorithm.scoring
            return getattr(recipe, rest[3]) if len(rest) == 4 else type(recipe).__name__
        if rest[1] in ("dimensions", "whitening"):
            return settings["feature_map"][rest[1]]
        return settings[rest[1]]
    name = "class_order" if name == "classes" else name
    value = getattr(cli.model if part == "model" else cli.datamodule, name)
    if isinstance(value, Source):
        if rest in ([], ["class_path"]):
            return type(value).__name__
        value = reduce(getattr, rest[1:], value)
    else:
        for key in rest:
            value = getattr(value, key) if dataclasses.is_dataclass(value) else value[key]
    return str(value) if isinstance(value, Path) else value


def test_there_is_a_file_for_every_point_of_the_paper():
    def names(folder):
        return {Path(file).stem for file in FILES if Path(file).parent.name == folder}

    methods = {"fedavg", "fedprox", "feddf", "fedbe"}
    others = {"fedaux", "centralized"}
    others |= {"fedavgm", "fedadam", "fedbn", "scaffold"}  # not the paper's
    others |= {"fedauxfdp", "fedclassmeans", "fedcof"}
    assert names("methods") == others | methods | {f"{name}_p" for name in methods}
    papers = {"paper", "paper_literal", "authors"}
    assert names("scoring") == papers | {"whitened_mean", "posterior"}
    assert names("participation") == {"c20", "c40", "c80", "c100"}
    alphas = (0.01, 0.04, 0.16, 0.64, 2.56, 10.24, 100)
    assert names("heterogeneity") == {f"alpha_{alpha:g}" for alpha in alphas}
    subsets = ("birds", "dogs", "devices", "invertebrates", "structures", "animals")
    expected = {"stl10", "cifar100", "svhn"} | {f"imagenet_{name}" for name in subsets}
    assert names("auxiliary") == expected
    assert names("private") == {"cifar10", "cifar100"}


@pytest.mark.parametrize("file", FILES)
def test_a_file_gives_the_objects_that_it_says(file, created):
    text = (ROOT / file).read_text()
    comment = re.match(r"(?:#.*\n)+", text)
    assert comment, "it must begin with a comment that says what it is"
    (command,) = re.findall(r"^#   fedaux-pl fit (.*)$", comment[0], re.MULTILINE)
    files = shlex.split(command.replace("--config", ""))
    if files[-1] == "mine.yaml":  # the reader's own data, see docs/silos.md
        files = [BASE, *files[:-1]]
    assert files[-1] == file
    layers = {"configs/remember.yaml": "methods/feddf_p", "configs/fast.yaml": "bf16"}
    below = [f"configs/{layers[file]}.yaml"] if file in layers else []
    on_silos = file in ("configs/silos_cpu.yaml", "configs/augmentation/photos.yaml")
    silos = ["configs/silos.yaml"] if on_silos else []
    assert files[:-1] in ([], [TEXT_BASE], [BASE, *below, *silos])

    cli = created(*files, trainer="\ntrainer:" in text)
    config = cli.config.as_dict()
    values = list(leaves(yaml.safe_load(text)))
    assert values
    for path, value in values:
        parsed = config
        for key in path:
            parsed = parsed[key]
        if path == ("seed_everything",):
            assert parsed == cli.model.seed == cli.datamodule.seed == value
        elif path == ("trainer", "accelerator"):  # the fixture's own
            assert value == "auto"
        elif isinstance(parsed, dict) and "class_path" in parsed:  # `private: Digits`
            assert parsed["class_path"].split(".")[-1] == value == of_object(cli, path)
        elif path[-1] == "class_path":
            assert parsed.split(".")[-1] == value == of_object(cli, path)
        else:
            assert parsed == value
            assert of_object(cli, path) == value, path
        assert not str(value).startswith(("/", "~")), "a path must be relative"
    assert cli.datamodule.num_clients == sum(cli.model.clients.values())
    for name in cli.model.clients:
        assert name.startswith("timm/") or name in model_names()


def test_names_of_files_are_their_values():
    for file in FILES:
        layer = yaml.safe_load((ROOT / file).read_text())
        if "/heterogeneity/" in file:
            assert layer == {"data": {"alpha": float(Path(file).stem.removeprefix("alpha_"))}}
        if "/participation/" in file:
            assert layer == {
                "model": {"participation": int(Path(file).stem.removeprefix("c")) / 100}
            }
        if name := re.search(r"epsilon_([\d.]+)_delta_(1e-\d)(?:_lambda_([\d.]+))?\.yaml", file):
            point = layer["model"]["algorithm"]["init_args"]
            assert tuple(point["privacy"].values()) == (float(name[1]), float(name[2]))
            assert point["scoring"]["init_args"]["regularization"] == float(name[3] or 0.01)


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ("fedavg", "FedAvg"),
        ("fedavg_p", "FedAvg+P"),
        ("fedprox", "FedProx"),
        ("fedprox_p", "FedProx+P"),
        ("feddf", "FedDF"),
        ("feddf_p", "FedDF+P"),
        ("fedbe", "FedBE"),
        ("fedbe_p", "FedBE+P"),
        ("fedaux", "FedAUX with memory"),
        ("fedauxfdp", "FedAUXfdp"),
        ("fedclassmeans", "FedClassMeans"),
        ("fedcof", "FedCOF"),
    ],
)
def test_a_method_is_itself_after_another_one(layer, name, created):
    # The other one has the other value of `pretrained`, which must not remain.
    other = "methods/fedavg" if layer.endswith(("_p", "aux")) else "methods/fedprox_p"
    assert created(*layered(other, f"methods/{layer}")).model.algorithm.name == name


def test_the_base_is_the_papers_setting(created):
    cli = created(BASE)
    model = cli.model
    assert cli.config.trainer.max_epochs == 100
    assert (model.clients, model.participation, model.trained) == ({"resnet8": 20}, 0.4, "full")
    assert model.algorithm.release.scoring.privacy == Privacy(epsilon=0.1, delta=1e-5)
    for stage, epochs, batch_size, lr in (
        (model.local, 1, 32, 1e-3),
        (model.distillation, 1, 128, 5e-5),
        (model.pretraining, 100, 512, 1e-3),
    ):
        assert (stage.epochs, stage.batch_size, stage.lr) == (epochs, batch_size, lr)
        assert stage.optimizer == "adam"
    assert cli.datamodule.negative_fraction == 0.2


def test_another_method_keeps_nothing_of_the_scoring(created):
    cli = created(*layered("scoring/authors", "methods/feddf_p"))
    assert cli.model.algorithm.settings() == FedDF(pretrained=True).settings()
    assert cli.model.algorithm.release is None
    cli = created(*layered("methods/fedbe_p", "methods/feddf"))
    assert cli.model.algorithm.settings() == FedDF().settings()
    back = created(*layered("scoring/authors", "methods/feddf", "methods/fedaux"))
    assert back.model.algorithm.settings() == created(BASE).model.algorithm.settings()


def test_scorings_are_those_of_text_and_code(created):
    authors = paper_scoring(
        scorer=Logistic(regularization=0.01, normalized=False, tolerance=1e-6),
        mechanism="classical",
        norm_bound="private",
    )

    def scoring(*names, more=()):
        found = created(*layered(*names), more=more).model.algorithm
        assert not found.remember
        return found.release.scoring

    assert scoring("scoring/authors") == authors
    assert scoring("scoring/paper") == paper_scoring()
    assert scoring("scoring/authors", "scoring/paper") == paper_scoring()
    assert scoring("scoring/paper_literal") == paper_scoring(
        norm_bound="private", mechanism="classical"
    )
    assert scoring("scoring/whitened_mean", "scoring/paper").scorer == Logistic()
    no_noise = ["--model.algorithm.privacy.epsilon=null"]
    assert scoring("scoring/paper", more=no_noise) == paper_scoring(epsilon=None)
    assert scoring("scoring/authors", "scoring/paper", more=no_noise) == paper_scoring(epsilon=None)
    assert scoring("privacy/paper_no_noise") == paper_scoring(
        scorer=Logistic(regularization=0.01), epsilon=None
    )
    stricter = dataclasses.replace(authors, privacy=Privacy(0.04, 1e-6, "classical"))
    assert scoring("privacy/epsilon_0.04_delta_1e-6", "scoring/authors") == stricter


def test_fedaux_is_private_and_remembers_unless_told_otherwise(created):
    default = created(BASE).model.algorithm
    assert (default.name, default.release.scoring.flaw) == ("FedAUX with memory", "")
    assert default.settings() == FedAUX().settings()
    privacy = default.release.scoring.privacy
    assert (privacy.epsilon, privacy.delta) == (0.1, 1e-5)
    for below in ("methods/feddf_p", "scoring/authors", "scoring/paper_literal"):
        again = created(*layered(below, "methods/fedaux")).model.algorithm
        assert again.settings() == default.settings()


def test_public_whitening_is_private_whatever_was_below_it(created):
    for below in ("scoring/paper", "scoring/authors", "scoring/paper_literal"):
        scoring = created(*layered(below, "scoring/whitened_mean")).model.algorithm.release.scoring
        assert scoring == MeanScoring().create(Privacy())
        assert scoring.flaw == ""


@pytest.mark.parametrize(
    "name",
    [
        *("scoring/paper", "scoring/paper_literal", "scoring/authors"),
        *sorted(f"privacy/{Path(file).stem}" for file in FILES if "/privacy/epsilon" in file),
        "privacy/paper_no_noise",
    ],
)
def test_the_papers_scoring_is_pinned(name, created):
    """By name, so that it stays what it is when the default is another one."""
    layer = yaml.safe_load((ROOT / f"configs/{name}.yaml").read_text())
    options = layer["model"]["algorithm"]["init_args"]
    assert options["scoring"]["class_path"] == "PaperScoring"
    assert options["scoring"]["init_args"].keys() == {"regularization", "variant"}
    assert options["remember"] is False


@pytest.mark.parametrize(
    "name", ["scoring/paper_literal", "scoring/authors", "privacy/paper_no_noise"]
)
def test_what_is_not_private_says_so(name):
    assert "NOT private" in (ROOT / f"configs/{name}.yaml").read_text().partition("fedaux-pl")[0]


@pytest.mark.parametrize("kind", [FedAUXfdp, FedClassMeans, FedCOF])
def test_layers_of_methods_with_one_release_are_their_defaults(kind, created):
    cli = created(*layered("scoring/authors", f"methods/{kind.__name__.lower()}"))
    assert cli.model.algorithm.settings() == kind().settings()
    assert cli.model.algorithm.release.scoring.flaw == ""


def test_clients_are_replaced_not_added(created):
    cli = created(*layered("models/mixed"))
    assert cli.datamodule.num_clients == len(cli.model.architectures) == 60
    names = ("resnet8", "mobilenetv2", "shufflenet")
    assert all(cli.model.architectures.count(name) == 20 for name in names)
    cli = created(*layered("models/mixed", "models/mobilenetv2_100"))
    assert cli.model.clients == {"mobilenetv2": 100}
    assert cli.datamodule.num_clients == 100


def test_one_shot_changes_only_what_it_names(created):
    cli = created(*layered("one_shot", "models/shufflenet_100"))
    assert cli.config.trainer.max_epochs == 1
    assert cli.model.participation == 1
    assert cli.datamodule.num_clients == 100
    assert cli.model.local == dataclasses.replace(created(BASE).model.local, epochs=40)


def test_sources_keep_nothing_of_each_other(created):
    cli = created(*layered("auxiliary/imagenet_dogs", "auxiliary/svhn", "private/cifar100"))
    own = {"root": Path("data"), "download": False, "mirror": None}
    assert vars(cli.datamodule.auxiliary) == own
    assert vars(cli.datamodule.private) == {**own, "all_auxiliary": False}
    assert cli.datamodule.download  # of the base
    cli = created(*layered("npz", "auxiliary/stl10"))
    assert vars(cli.datamodule.auxiliary) == {**own, "size": 32}
    assert isinstance(cli.datamodule.private, NpzImages)


def test_the_command_line_wins_over_the_files(created):
    more = ["--model.participation=0.3", "--model.algorithm.privacy.epsilon=0.5", "--data.alpha=1"]
    cli = created(*layered("participation/c80", "privacy/paper_no_noise"), more=more)
    assert cli.model.participation == 0.3
    assert cli.model.algorithm.release.scoring.privacy.epsilon == 0.5
    assert cli.model.algorithm.release.scoring.scorer.regularization == 0.01
    assert cli.datamodule.alpha == 1
    assert cli.model.clients == {"resnet8": 40}


@pytest.mark.parametrize("name", ["agnews", "amazon"])
def test_text_is_as_in_the_papers_appendix(name, created):
    cli = created(f"configs/fedaux_tinybert_{name}.yaml")
    model = cli.model
    assert cli.config.trainer.max_epochs == 20
    assert (model.clients, model.participation) == ({"tinybert": 10}, 1.0)
    assert model.algorithm.release.scoring == paper_scoring(scorer=Logistic(regularization=0.01))
    for stage in (model.local, model.distillation):
        assert (stage.epochs, stage.batch_size, stage.optimizer, stage.lr) == (1, 32, "adam", 1e-5)
    assert model.pretraining.epochs == 0  # h_0 is the published TinyBERT
    source = cli.datamodule.auxiliary
    assert source.limit * cli.datamodule.negative_fraction == 160_000
    assert source.limit * (1 - cli.datamodule.negative_fraction) == 160_000


@pytest.mark.parametrize(("layer", "name"), [("fedavg_p", "FedAvg+P"), ("feddf_p", "FedDF+P")])
def test_methods_go_on_top_of_text(layer, name, created):
    cli = created(TEXT_BASE, f"configs/methods/{layer}.yaml", "configs/text_files.yaml")
    assert cli.model.algorithm.name == name
    assert cli.model.clients == {"encoder": 10}
    assert cli.datamodule.private.layout.text == ["title", "description"]


def test_options_of_a_part_are_merged(created):
    more = [
        "--model.algorithm.scoring.dimensions=64",
        "--model.algorithm.scoring.sharpness=2",
    ]
    scoring = created("configs/quickstart.yaml", more=more).model.algorithm.release.scoring
    assert scoring == MeanScoring(64, sharpness=2.0).create(Privacy(1.0))
    more = [
        "--model.algorithm.scoring=PaperScoring",
        "--model.algorithm.scoring.variant=authors",
    ]
    scoring = created("configs/quickstart.yaml", more=more).model.algorithm.release.scoring
    assert scoring == PaperScoring(variant="authors").create(Privacy(1.0))
    more = ["--model.algorithm.privacy.epsilon=null", "--model.algorithm.privacy.secret=true"]
    scoring = created("configs/quickstart.yaml", more=more).model.algorithm.release.scoring
    assert scoring.privacy == Privacy(epsilon=None, secret=True)


@pytest.mark.parametrize(
    ("option", "name"),
    [
        # an option of PaperScoring, but MeanScoring is chosen
        ("scoring.regularization=0.5", "regularization"),
        ("dimensions=64", "dimensions"),
        ("scoring=mean", "scoring"),
    ],
)
def test_an_option_that_the_class_does_not_have_is_refused(option, name, created):
    with pytest.raises(UsageError, match=name):
        created("configs/quickstart.yaml", more=[f"--model.algorithm.{option}"])


def test_parts_of_ones_own_are_named_by_their_class_path(created, tmp_path):
    own = "tests.scoring.test_scoring"
    (tmp_path / "own.yaml").write_text(
        f"""model:
  algorithm:
    init_args:
      scoring: {{class_path: {own}.OwnScoring, init_args: {{scale: 0.5}}}}
"""
    )
    cli = created("configs/quickstart.yaml", str(tmp_path / "own.yaml"))
    scoring = cli.model.algorithm.release.scoring
    assert scoring.scorer.scale == 0.5
    assert (scoring.feature_map.count, scoring.calibration.base) == (2, 2.0)
