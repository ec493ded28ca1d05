"""Error messages of the command line: jsonargparse's, rewritten to one line."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from inspect import isabstract, signature
from itertools import takewhile
from typing import get_args, get_type_hints

from fedaux_pl._version import __version__
from fedaux_pl.errors import did_you_mean
from fedaux_pl.runs.packaged_configs import config_names
from fedaux_pl.runs.refuse_removed import explain
from fedaux_pl.runs.removed import REMOVED

# The names that messages give to Python's types.
_TYPES = {
    "bool": "true or false",
    "dict": "a mapping such as {name: value}",
    "float": "a number",
    "int": "an integer",
    "NoneType": "null",
    "str": "text",
}
_ALL_OPTIONS = f"all options of {__version__}:"
_QUICKSTART = "or a file such as --config quickstart"
# Messages that do not name a value, and their replacements.
_REWRITTEN = {
    r'Linked "([\w.]+)" must be given via "([\w.]+)"\.': r"\1 is set by \2: give --\2 instead",
    r"the following arguments are required: run": (
        "the run is missing: give its folder, a checkpoint, or 'last'"
    ),
    r'Parser key "((?:model|data)\.\w+)":.*Got value: None\b.*': (
        rf"\1 is not set: add --\1, {_QUICKSTART}"
    ),
    r'Parser key "config": File does not exist: (.*)': r"config: the file \1 does not exist",
    r'Parser key "config": Path is not a file: (.*)': r"config: \1 is not a file",
    r'Parser key "([\w.]+)":.*Expected a path but (?:\S*/)?(\w+)\.py .*': (
        r"\1: got the file \2.py; expected a class: give its import path, such as \2.MyClass"
    ),
    r"Problems parsing config: (.*)": r"config: the file is not valid YAML: \1",
    r".*argument after \*\* must be a mapping, not NoneType": (
        "model.algorithm.privacy: got null; expected a mapping such as {epsilon: 0.1}: set "
        "model.algorithm.privacy.epsilon to null for no noise"
    ),
    r".*class_path '(?:\w+\.)*(\w+)':\s+Requirement '([^']+)' not met.*": (
        r"\1 needs \2, which is not installed: run pip install '\2'"
    ),
    # what a class refuses when it is created
    r"Does not validate against any.*?Errors:\s+- ((?!Expected |Not a valid )[^\n]*).*": r"\1",
    r"No supported gpu backend found!": (
        "trainer.accelerator is gpu, but this machine has no GPU that PyTorch can use: choose auto "
        "or cpu"
    ),
}
# Messages about an option that does not exist; its name is what the groups hold.
_UNKNOWN_OPTION = (
    r"unrecognized arguments: (.*)",
    r"Option '([\w.]+)' is not accepted",
    r"Group '([\w.]+)' does not accept option '([\w.]+)'",
)
# Names under which people look for an option, and its name.
_SYNONYMS = {
    "dataset": "data.private",
    "gpus": "trainer.devices",
    "method": "model.algorithm",
    "rounds": "trainer.max_epochs",
    "seed": "seed_everything",
}


def clarify(
    message: str,
    prog: str,
    roots: Mapping[str, type],
    meanings: Mapping[str, str],
    options: Collection[str] = (),
) -> str:
    """Rewrite a message of jsonargparse to one line; a message of unknown form is not changed.

    ``roots`` are the classes behind the first parts of options, such as "model"; ``meanings`` the
    allowed values of options whose type does not describe them.
    """
    for pattern, replacement in _REWRITTEN.items():
        match = re.fullmatch(pattern, message, re.DOTALL)
        if match:
            one_line = " ".join(match.expand(replacement).split())
            return one_line.replace('in "<unicode string>",', "at")
    match = re.fullmatch(r"the following arguments are required: ([\w., ]+)", message)
    if match:
        return _missing_options(match[1].split(", "))
    for pattern in _UNKNOWN_OPTION:
        match = re.fullmatch(pattern, message)
        if match:
            dashes = "--" if "unrecognized" in pattern else ""  # otherwise it stands in a file
            names = [f"{dashes}{option}" for option in options]
            of_classes = [f"{dashes}{option}" for option in _options_of_classes(roots, options)]
            return _unknown_option(".".join(match.groups()), prog, names, of_classes)
    match = re.fullmatch(r"--([\w.]+)\.help: Expected a dot import path .*: (\S+)", message)
    if match:
        names = accepted_classes(roots, match[1])
        return f"--{match[1]}.help takes one of {', '.join(names)}" + did_you_mean(match[2], names)
    keys = _unique(re.findall(r'Parser key "([\w.]+)"', message))
    owners = _unique(re.findall(r"class_path '(?:\w+\.)*(\w+)'", message))
    key = ".".join(keys)
    reason = _innermost(message)
    clear = _failed_import(message, key)
    if not clear and len(owners) < len(keys):
        clear = _wrong_class(reason, key, accepted_classes(roots, key))
    if not clear and owners:
        clear = _wrong_option(message, prog, roots, options, keys, owners)
    return clear or _wrong_value(reason, key, meanings) or message


def _missing_options(names: Sequence[str]) -> str:
    needs_more = names[0].startswith(("model", "data"))
    which, them = ("options", "them") if len(names) > 1 else ("option", "it")
    listed = ", ".join(f"--{name}" for name in names)
    return f"missing {which} {listed}: add {them}" + (f", {_QUICKSTART}" if needs_more else "")


def _failed_import(message: str, key: str) -> str:
    """Return the message about a class that cannot be imported, or a value that is no mapping."""
    pattern = r"class_path '([\w.]+)':\s+(No module named .*|module '.*' has no attribute .*)"
    match = re.search(pattern, message)
    if match:
        advice = "correct it" if "attribute" in match[2] else "add its folder to PYTHONPATH"
        return f"{key}: cannot import {match[1]} ({match[2]}): {advice}"
    match = re.search(r"Unable to load config '(.*?)'", message)
    if match:
        mapping = f"a mapping such as {{name: value}}, or an option of it --{key}.NAME"
        return f"{key}: got {match[1]}; expected {mapping}"
    return ""


def _wrong_class(reason: str, key: str, names: Sequence[str]) -> str:
    """Return the message about an option that accepts the classes ``names``, if there are any."""
    allowed = f"one of {', '.join(names)}, or the import path of your own class"
    match = re.search(r"value: NestedArg\(key='([\w.]+)'", reason)
    if names and match:
        return f"{key}.{match[1]} needs a class for {key}: add --{key} before it, {allowed}"
    pattern = r"(?:import path string:|subclass of \w+\. Got value:|Import path) (\S+)"
    match = re.search(pattern, reason)
    if names and match:
        meant = did_you_mean(match[1], names)
        return f"{key}: got {match[1]}{meant}; expected {allowed}"
    return ""


def _wrong_option(
    message: str,
    prog: str,
    roots: Mapping[str, type],
    options: Collection[str],
    keys: Sequence[str],
    owners: Sequence[str],
) -> str:
    """Return the message about an option that the innermost of the classes lacks or needs."""
    owner = owners[-1]
    key = ".".join(keys[: len(owners)])
    chosen = [f"--{'.'.join(keys[: i + 1])} {name}" for i, name in enumerate(owners[:-1])]
    show_help = " ".join([_ALL_OPTIONS, prog, *chosen, f"--{key}.help {owner}"])
    unknown = r"(?:Option '|Group '([\w.]+)' .* option '|unrecognized arguments: --)([\w.]+)"
    match = re.search(unknown, message)
    if match:
        option = ".".join(filter(None, match.groups()))
        meant = did_you_mean(option, _parameters(roots, key, owner))
        same = [name for name in options if name.endswith(f".{option}")]
        if same and "." in option:
            meant = f" (did you mean {same[0]}?)"
        return f"{key}: {owner} has no option {option}{meant}; {show_help}"
    match = re.search(r"arguments are required: (([^,\n]*).*)", message)
    if match:
        return f"{key}: {owner} needs {match[1]}: add --{key}.{match[2]}; {show_help}"
    return ""


def _wrong_value(reason: str, key: str, meanings: Mapping[str, str]) -> str:
    value = re.search(r"(?:Got|Given) value: (.*)", reason)
    allowed = meanings.get(key) or _allowed_values(reason)
    if not (key and value and allowed):
        return ""
    return f"{key}: got {'nothing' if value[1] == 'None' else value[1]}; expected {allowed}"


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def accepted_classes(roots: Mapping[str, type], key: str) -> list[str]:
    """Return the classes that an option such as "model.algorithm" accepts by name; or none.

    These are the imported subclasses of the class in the option's type, a user's own included.
    """
    classes = _classes(roots, key) if "." in key else []
    is_foreign = {kind.__name__: not kind.__module__.startswith("fedaux_pl.") for kind in classes}
    return sorted(is_foreign, key=lambda name: (is_foreign[name], name))


def _classes(roots: Mapping[str, type], key: str) -> list[type]:
    """Return the classes that an option accepts by name; the class behind a key without dots."""
    root, *parameters = key.split(".")
    owners = [roots[root]] if root in roots else []
    for name in parameters:
        bases: set[type] = set()
        for owner in owners:
            hint = get_type_hints(owner.__init__).get(name)  # type: ignore[misc]
            types = get_args(hint) or (hint,)
            bases.update(t for t in types if isinstance(t, type) and t.__module__ != "builtins")
        owners = [subclass for base in bases for subclass in concrete_subclasses(base)]
    return owners


def _parameters(roots: Mapping[str, type], key: str, owner: str) -> Iterator[str]:
    """Yield the options of the class of that name which an option accepts."""
    for kind in _classes(roots, key):
        if kind.__name__ != owner:
            continue
        for name, parameter in signature(kind).parameters.items():
            yield name
            if is_dataclass(parameter.default):
                yield from (f"{name}.{field.name}" for field in fields(parameter.default))


def _options_of_classes(roots: Mapping[str, type], keys: Collection[str]) -> Iterator[str]:
    """Yield the options of classes that options accept: model.algorithm.privacy.epsilon."""
    for key in keys:
        if key.startswith(("model.", "data.")):
            for owner in accepted_classes(roots, key):
                yield from (f"{key}.{option}" for option in _parameters(roots, key, owner))


def _unknown_option(
    given: str, prog: str, options: Collection[str], of_classes: Collection[str]
) -> str:
    """Return the message about an option that does not exist, with the one probably meant."""
    name = re.split(r"[\s=]", given, maxsplit=1)[0]
    if name.removeprefix("--") in REMOVED:
        return explain(name.removeprefix("--"))
    if name.endswith((".yaml", ".yml")) or name in config_names():
        return f"there is no option {name} (did you mean --config {name}?)"
    last = _last_word(name)
    known = _SYNONYMS.get(last, last).rpartition(".")[2]
    same = [option for option in options if _last_word(option) == known]
    below = name.removeprefix("--").partition(".")[2]
    if below and not same:
        same = _unique(option for option in of_classes if option.endswith(f".{below}"))
    meant = f" (did you mean {' or '.join(same)}?)" if same else did_you_mean(name, options)
    root = re.match(r"(?:--)?(model|data)", name)
    show_help = f"; {_ALL_OPTIONS} {prog} --{root[1]}.help" if root else ""
    return f"there is no option {name}{meant}{show_help}"


def _last_word(option: str) -> str:
    return re.split(r"[.-]", option)[-1]


def concrete_subclasses(base: type) -> Iterator[type]:
    """Yield the imported subclasses of a class that can be created by name."""
    subclasses: list[type] = base.__subclasses__()
    for subclass in subclasses:
        is_private = subclass.__name__.startswith("_") or "<locals>" in subclass.__qualname__
        is_in_python_only = getattr(subclass, "python_only", False)  # takes objects, not options
        if not is_private and not is_in_python_only and not isabstract(subclass):
            yield subclass
        yield from concrete_subclasses(subclass)


def _innermost(message: str) -> str:
    """Return the lines that belong to the last "Parser key": those that are indented below it."""
    *_, last = re.split(r"^(?=.*Parser key)", message, flags=re.MULTILINE)
    first, *others = last.splitlines() or [""]
    indent = len(first) - len(first.lstrip())
    inner = takewhile(lambda line: not line.strip() or line[: indent + 1].isspace(), others)
    return "\n".join([first, *inner])


def _allowed_values(message: str) -> str:
    """Return the expected types in words; empty if one of them is unknown."""
    allowed: list[str] = []
    for expected in re.findall(r"Expected an? (.+?)(?:\. Got value: .*)?$", message, re.MULTILINE):
        literal = re.fullmatch(r"(?:typing\.)?Literal\[(.*)\]", expected)
        kind = re.sub(r"<class '(\w+)'>", r"\1", expected)
        if literal:
            allowed += re.sub(r"['\"]", "", literal[1]).split(", ")
        elif kind in _TYPES:
            allowed.append(_TYPES[kind])
        else:
            return ""
    *others, last = _unique(allowed) or [""]
    return f"{', '.join(others)} or {last}" if others else last
