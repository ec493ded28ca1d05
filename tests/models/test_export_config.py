"""What ``config.json`` of an exported folder may say, and what it may not."""

import json
import resource
import shutil
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.models import create_for, load_exported, save_ensemble
from fedaux_pl.models.encoder import config_values
from fedaux_pl.models.export_config import _check_encoder
from fedaux_pl.models.image_encoder import IMAGE_TYPES
from tests.fuzzing import Reader, is_loaded
from tests.models import own_networks
from tests.texts import CONFIG

OWN = f"{own_networks.__name__}.TinyNet"
ENCODER = "fedaux_pl.models.encoder.Encoder"
VIT = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "image_size": 16}
LARGE = "torchvision/mobilenet_v3_small"
NETWORKS = {
    "resnet8": ((1, 8, 8), {"width": 0.125, "norm": "group", "mean": [0.5], "std": 0.25}),
    "shufflenet": ((1, 8, 8), {"width": 0.125, "groups": 2}),
    LARGE: ((1, 8, 8), {"weights": "DEFAULT"}),
    OWN: ((1, 8, 8), {"width": 4}),
    "encoder": ((20,), {"config": CONFIG, "pooling": "cls"}),
    "image_encoder": ((3, 16, 16), {"config": {**VIT, "intermediate_size": 32, "patch_size": 8}}),
}
MALFORMED = [
    *(None, True, 0, -1, 3, 10**9, 10**30, 0.5, 1e308, -1e308, float("nan"), float("inf")),
    *(
        "",
        "x",
        "x" * 10**5,
        "../model",
        "/etc/passwd",
        "hf-hub:evil/x",
        "a\nb",
        "\x1b[2J",
        "\ud800",
    ),
    *([], [None], [0], [-1], [1e308], [10**9] * 3, [[[[]]]], ["a", 1]),
    *({}, {"": None}, {"model_type": "timm_wrapper"}),
]


def exported(folder, name="resnet8"):
    """Export a network, and return its ``config.json``."""
    shape, options = NETWORKS[name]
    model = create_for(shape, name, 3, pretrained=False, **options)
    settings = {"batchnorm_statistics": "running"}
    federation = {"classes": list("abc"), "input_shape": list(shape), "settings": settings}
    save_ensemble(folder, {"model": model}, federation)
    return json.loads((folder / "config.json").read_text())


def replace(config, path, value):
    """Return a copy of nested values with another one at a path."""
    copy = json.loads(json.dumps(config))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copy


def paths(config):
    """The paths of the entries of a config.json, and of every fifth value of an encoder."""
    yield from ((key,) for key in config)
    yield ("models", 0)
    for key, value in config["models"][0].items():
        yield ("models", 0, key)
        for option in value if key == "options" else ():
            yield ("models", 0, key, option)
            for inner in list(value[option])[::5] if option == "config" else ():
                yield ("models", 0, key, option, inner)


@contextmanager
def limited_memory():
    """The process can take one more gigabyte."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture
def offline(monkeypatch):
    """Nothing may look for another machine."""
    looked_for = []

    def connect(*address, **_):
        looked_for.append(address)
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", connect)
    monkeypatch.setattr(socket.socket, "connect", connect)
    yield
    assert not looked_for


NAMES = [pytest.param(n, marks=[pytest.mark.nightly] * (n == LARGE)) for n in NETWORKS]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_each_entry_with_malformed_values(tmp_path, offline, name):
    """It loads, or one line names the file and the entry; memory is bounded."""
    config = exported(tmp_path, name)
    assert load_exported(tmp_path).config == config
    refused = 0
    for path in paths(config):

        def load(file, entry=path[0]):
            shutil.copy(tmp_path / "model.safetensors", file.parent)
            try:
                with limited_memory():
                    load_exported(file.parent)
            except ConfigurationError as error:
                message = str(error)
                assert message.isprintable()
                assert "config.json" in message
                # a wrong shape or number of classes is noticed by the model
                assert entry in message or "models[0]" in message
                assert "allocate" not in message
                assert "MemoryError" not in message
                raise

        for value in MALFORMED:
            content = json.dumps(replace(config, path, value)).encode()
            reader = Reader("config.json", content, load)
            refused += not is_loaded(reader, content, f"{path} = {value!r:.60}")
    assert refused > len(MALFORMED)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[" * 200_000, "RecursionError"),
        ('{"models": ' * 200_000, "RecursionError"),
        ("", "JSONDecodeError"),
        ("null", "TypeError"),
        ("[]", "TypeError"),
        ("\udcff", "UnicodeDecodeError"),
    ],
)
def test_files_that_are_no_configuration(tmp_path, content, reason):
    (tmp_path / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(
        ConfigurationError, match=rf"no readable config\.json .* \({reason}\): give"
    ):
        load_exported(tmp_path)


def hostile(folder, path, value, name="resnet8"):
    config = exported(folder, name)
    (folder / "config.json").write_text(json.dumps(replace(config, path, value)))
    return folder


MODEL = ("models", 0)
OPTIONS = (*MODEL, "options")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("models",), [], r"config\.json: models: got \[\]; expected a list of one or more mappin"),
        (("classes",), 10, r"config\.json: classes: got 10; expected a list of one or more names"),
        (("classes",), None, r"config\.json: classes: got None; expected a list of one or more na"),
        (("input_shape",), [], r"config\.json: input_shape: got \[\]; expected a list of one or m"),
        ((*OPTIONS, "width"), 1e308, r"config\.json: models\[0\]: model\.safetensors cannot be"),
        ((*MODEL, "file"), "../model.safetensors", r"models\[0\]\.file: got .*; expected the name"),
        (("format",), 2, r"config\.json has format 2, but this release reads formats up to 1"),
    ],
)
def test_malformed_entries_are_named(tmp_path, path, value, message):
    with pytest.raises(ConfigurationError, match=message):
        load_exported(hostile(tmp_path, path, value))


def test_a_number_of_which_a_long_list_would_be_made(tmp_path):
    config = {**CONFIG, "model_type": "modernbert", "num_hidden_layers": 10**9}
    message = r"options\.config\.num_hidden_layers: got 1000000000, so model\.safetensors can"
    with pytest.raises(ConfigurationError, match=message), limited_memory():
        load_exported(hostile(tmp_path, (*OPTIONS, "config"), config, "encoder"))


def test_two_models_have_two_files(tmp_path):
    """A thousand entries of one file would load it a thousand times."""
    config = exported(tmp_path)
    model = config["models"][0]
    with pytest.raises(
        ConfigurationError, match=r"models\[1\]\.file: got 'model.safetensors'; expected a file"
    ):
        load_exported(hostile(tmp_path, ("models",), [model, model]))


HUB = {"model_type": "timm_wrapper", "architecture": "hf-hub:evil/x"}
FILE = {"model_type": "timm_wrapper", "model_args": {"checkpoint_path": "weights.pt"}}
PLACES = {
    "an encoder by its class path": (
        *("encoder", MODEL, {"name": ENCODER, "options": {"source": "evil/x"}}),
        r"options has source 'evil/x'; expected the config of the encoder",
    ),
    "a source": (
        *("image_encoder", MODEL, {"name": "image_encoder-b", "options": {"source": "evil/x"}}),
        r"options has source 'evil/x'; expected the config of the encoder",
    ),
    "a network of timm by an encoder": (
        *("image_encoder", (*OPTIONS, "config"), HUB),
        r"options\.config\.model_type: got 'timm_wrapper'; expected one of aimv2",
    ),
    "a file of timm by an encoder": (
        *("image_encoder", (*OPTIONS, "config"), FILE),
        r"options\.config\.model_type: got 'timm_wrapper'; expected one of aimv2",
    ),
    "a value that is an address": (
        *("encoder", (*OPTIONS, "config", "hidden_act"), "https://evil"),
        r"options\.config\.hidden_act: got 'https://evil'; expected a number or a word",
    ),
    "a model within a model": (
        *("encoder", (*OPTIONS, "config", "vision_config"), {"model_type": "timm_wrapper"}),
        r"options\.config\.vision_config: got a model within a model; expected one model",
    ),
    "a module that creates models": (
        *("encoder", (*MODEL, "name"), "fedaux_pl.modules.client.ClientModule"),
        r"models\[0\].*: export the run again",
    ),
    "a class of a library": (
        *("resnet8", MODEL, {"name": "torchvision.models.swin_transformer.SwinTransformer"}),
        r"models\[0\]\.name: got 'torchvision.*'; expected an architecture by its name",
    ),
}


@pytest.mark.parametrize("kind", PLACES)
def test_an_export_names_no_place(tmp_path, offline, kind):
    name, path, value, message = PLACES[kind]
    import fedaux_pl.modules.client  # noqa: F401 - as any program may

    if path == MODEL:
        value = {"options": {}, "file": "model.safetensors", **value}
    with pytest.raises(ConfigurationError, match=message):
        load_exported(hostile(tmp_path, path, value, name))


def test_a_network_of_this_package_by_its_class_path(tmp_path):
    folder = hostile(tmp_path, (*MODEL, "name"), "fedaux_pl.models.resnet.ResNet8")
    (again,) = load_exported(folder).models
    (model,) = load_exported(hostile(tmp_path, (*MODEL, "name"), "resnet8")).models
    assert type(again) is type(model)
    assert again(torch.zeros(2, 1, 8, 8)).shape == (2, 3)


@pytest.mark.parametrize("kinds", [IMAGE_TYPES, tuple(MODEL_FOR_MASKED_LM_MAPPING_NAMES)])
def test_the_configurations_of_encoders_are_numbers_and_words(kinds):
    """So what ``recipe`` writes of them is read."""
    read = 0
    for kind in kinds:
        try:
            config = AutoConfig.for_model(kind)
        except ValueError:  # of another version of transformers
            continue
        values = json.loads(json.dumps(config_values(config), default=str))
        if not any("model_type" in v for v in values.values() if isinstance(v, dict)):
            _check_encoder("config", values, kinds, "bert")
            read += 1
    assert read > 20
