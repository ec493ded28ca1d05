"""The ``config.json`` of an exported folder, which may come from anybody.

It chooses networks and their sizes, and nothing else: no module to import, no file but the weights
beside it, no repository on the hub.
"""

import json
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedaux_pl.errors import ConfigurationError, first_line
from fedaux_pl.models.encoder import Encoder
from fedaux_pl.models.image_encoder import IMAGE_TYPES, ImageEncoder
from fedaux_pl.models.registry import check_imported, find_factory, is_registered, module_of

FORMAT = 1
"""The format of an exported folder, increased when earlier versions cannot read it."""
CONFIG = "config.json"
_REMEDY = "export the run again"
_MAX_NAME = 200  # characters of the name of an architecture or a file
_MAX_DEPTH = 8  # of options within options
_FREE_SIZE = 10**6  # that a configuration may ask for whatever the size of the weights
_WORD = re.compile(r"[\w+-]{0,80}", re.ASCII)  # "gelu_new": no path, no address
# Their classes are no networks of the user's own, and some of them read other files.
_LIBRARIES = {
    *("fedaux_pl", "lightly", "lightning", "lightning_fabric", "pytorch_lightning"),
    *("timm", "torch", "torchmetrics", "torchvision", "transformers"),
}


def read_config(folder: Path) -> dict[str, Any]:
    """Read and check what a folder says about its models.

    Raises:
        ConfigurationError: If there is no readable file, or an entry has a wrong value or names a
            place where something is read.
    """
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(folder, error) from error
    if not isinstance(config, dict) or "models" not in config:
        raise _unreadable(folder, TypeError())
    version = config.get("format")
    if type(version) is not int or not 1 <= version <= FORMAT:
        raise ConfigurationError(
            f"{path} has format {reprlib.repr(version)}, but this release reads formats up to "
            f"{FORMAT}: {_REMEDY}"
        )
    _check_entries(path, config)
    models = config["models"]
    check_imported([model["name"] for model in models], str(path))
    for index, model in enumerate(models):
        _check_network(f"{path}: models[{index}]", model, folder / model["file"])
    return config


def _unreadable(folder: Path, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"{folder.absolute()} has no readable {CONFIG} of an export ({type(error).__name__}): give "
        "a folder that `fedaux-pl export` wrote"
    )


def _check_entries(path: Path, config: Mapping[str, Any]) -> None:
    """Check the types of all entries."""

    def check(key: str, value: object, is_allowed: bool, expected: str) -> None:
        if not is_allowed:
            got = reprlib.repr(value)
            raise ConfigurationError(f"{path}: {key}: got {got}; expected {expected}: {_REMEDY}")

    classes = config.get("classes")
    check("classes", classes, _is_list_of(classes, _is_text), "a list of one or more names")
    shape = config.get("input_shape")
    sizes = "a list of one or more positive integers"
    check("input_shape", shape, _is_list_of(shape, _is_size), sizes)
    batchnorm = config.get("batchnorm")
    check("batchnorm", batchnorm, batchnorm in ("running", "batch"), "'running' or 'batch'")
    form = config.get("input_format", {})
    check("input_format", form, isinstance(form, dict), "a mapping")
    models = config["models"]
    check("models", models, _is_list_of(models, _is_mapping), "a list of one or more mappings")
    files = set()
    for index, model in enumerate(models):
        key = f"models[{index}]"
        name = model.get("name")
        check(f"{key}.name", name, _is_text(name), "the name of an architecture")
        options = model.get("options")
        is_named = _is_mapping(options) and all(map(_is_option, options))
        check(f"{key}.options", options, is_named, "a mapping of options by their names")
        depth = f"at most {_MAX_DEPTH} lists and mappings within each other"
        check(f"{key}.options", options, _is_flat(options, _MAX_DEPTH), depth)
        constants = model.get("normalization")
        check(f"{key}.normalization", constants, isinstance(constants, dict | None), "a mapping")
        file = model.get("file")
        is_plain = _is_text(file) and Path(file).name == file
        check(f"{key}.file", file, is_plain, "the name of a file beside it")
        if not (path.parent / file).is_file():
            raise ConfigurationError(
                f"{path}: {key}.file: there is no file {file!r} beside it: {_REMEDY}"
            )
        check(f"{key}.file", file, file not in files, "a file of its own for each model")
        files.add(file)


def _is_list_of(value: object, is_member: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(is_member, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_mapping(value: object) -> bool:
    return isinstance(value, dict)


def _is_option(name: str) -> bool:
    return name.isidentifier() and len(name) <= _MAX_NAME


def _is_flat(value: object, depth: int) -> bool:
    """Return whether lists and mappings are nested at most so deep."""
    if not isinstance(value, dict | list):
        return True
    members = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_flat(member, depth - 1) for member in members)


def _check_network(where: str, model: Mapping[str, Any], weights: Path) -> None:
    """Raise a ConfigurationError for a network that reads more than the weights beside it.

    Networks of this package and of the libraries are those with a name of their own, whose options
    are numbers and words. The code of others is the caller's own, who has imported it.
    """
    name = model["name"]
    options = model["options"]
    try:
        factory = find_factory(name, options)
    except (ValueError, TypeError) as error:
        reason = first_line(error)[:_MAX_NAME]
        raise ConfigurationError(f"{where}: {reason}: {_REMEDY}") from error
    package = module_of(name).partition(".")[0]
    if package in _LIBRARIES and not is_registered(factory):
        raise ConfigurationError(
            f"{where}.name: got {name!r}; expected an architecture by its name, or a network of "
            f"your own: {_REMEDY}"
        )
    if not isinstance(factory, type) or not issubclass(factory, Encoder | ImageEncoder):
        return
    if "source" in options:  # its configuration is on the hub, or in another folder
        raise ConfigurationError(
            f"{where}.options has source {reprlib.repr(options['source'])}; expected the config of "
            f"the encoder: {_REMEDY}"
        )
    if "config" in options:
        kinds = _text_types() if issubclass(factory, Encoder) else IMAGE_TYPES
        default = "bert" if issubclass(factory, Encoder) else "vit"
        _check_encoder(f"{where}.options.config", options["config"], kinds, default)
        _check_sizes(f"{where}.options.config", options["config"], weights)


def _text_types() -> tuple[str, ...]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return tuple(MODEL_FOR_MASKED_LM_MAPPING_NAMES)


def _check_encoder(where: str, values: object, kinds: tuple[str, ...], default: str) -> None:
    """Raise a ConfigurationError for a configuration of transformers that could name a place.

    Some model types load a part of theirs from a repository or a file, whose name is one of their
    values.
    """
    if not isinstance(values, dict):
        raise ConfigurationError(
            f"{where}: got {reprlib.repr(values)}; expected a mapping: {_REMEDY}"
        )
    kind = values.get("model_type", default)
    if kind not in kinds:
        raise ConfigurationError(
            f"{where}.model_type: got {reprlib.repr(kind)}; expected one of {', '.join(kinds)}: "
            f"{_REMEDY}"
        )
    for key, value in values.items():
        if key == "model_type":
            continue
        if not _is_option(key):
            raise ConfigurationError(
                f"{where}: got the key {reprlib.repr(key)}; expected the name of a value: {_REMEDY}"
            )
        for member in _members(value):
            if isinstance(member, str) and not _WORD.fullmatch(member):
                raise ConfigurationError(
                    f"{where}.{key}: got {reprlib.repr(member)}; expected a number or a word: "
                    f"{_REMEDY}"
                )
            if isinstance(member, dict) and "model_type" in member:
                raise ConfigurationError(
                    f"{where}.{key}: got a model within a model; expected one model: {_REMEDY}"
                )


def _check_sizes(where: str, values: Mapping[str, Any], weights: Path) -> None:
    """Raise a ConfigurationError for a number of which transformers could make too long a list."""
    limit = _FREE_SIZE + 4 * weights.stat().st_size
    for key, value in values.items():
        for member in _members(value):
            if isinstance(member, int) and member > limit:
                raise ConfigurationError(
                    f"{where}.{key}: got {reprlib.repr(member)}, so {weights.name} cannot be "
                    "created: its options ask for more than the file of its weights holds: "
                    f"{_REMEDY}"
                )


def _members(value: object) -> list[object]:
    """Return a value, and all values within it."""
    if isinstance(value, dict):
        inner = [member for entry in value.values() for member in _members(entry)]
        return [value, *value.keys(), *inner]
    if isinstance(value, list):
        return [member for entry in value for member in _members(entry)]
    return [value]
