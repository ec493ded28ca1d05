"""What the command line says about a value that it cannot take."""

import re
from collections.abc import Mapping, Sequence

# How people call what Python calls <class 'float'>.
_TYPES = {
    "bool": "true or false",
    "dict": "a mapping such as {name: value}",
    "float": "a number",
    "int": "an integer",
    "NoneType": "null",
    "str": "text",
}


def clarify(
    message: str,
    prog: str,
    classes: Mapping[str, Sequence[str]],
    meant: Mapping[str, str],
) -> str:
    """Says in a line what jsonargparse says in many; messages of a form unknown here stay.

    Args:
        message: What jsonargparse says.
        prog: The program and its verb, for pointing to the help.
        classes: For options that take a class, the names of those that come with the package.
        meant: For options whose type says too little, what they take.
    """
    key = ".".join(dict.fromkeys(re.findall(r'Parser key "([\w.]+)"', message)))
    if key in classes and (name := re.search(r"import path string: (.*)", message)):
        return (
            f"{key} must be one of {', '.join(classes[key])}, or a class of your own with its "
            f"module, but is {name[1]}"
        )
    if owner := re.search(r"class_path '(?:\w+\.)*(\w+)'", message):
        of_class = f"{prog} --{key}.help {owner[1]}"
        if option := re.search(r"Option '([\w.]+)' is not accepted", message):
            return f"{key}: {owner[1]} has no option {option[1]} ({of_class} lists those it has)"
        if missing := re.search(r"arguments are required: (.*)", message):
            first = missing[1].split(",")[0]
            return f"{key}: {owner[1]} needs {missing[1]}: add --{key}.{first} (see {of_class})"
    value = re.search(r"(?:Got|Given) value: (.*)", message)
    choices = meant.get(key) or _choices(message)
    return f"{key} must be {choices}, but is {value[1]}" if key and value and choices else message


def _choices(message: str) -> str:
    """What was expected, in words; nothing where a part of it is not known."""
    allowed: dict[str, None] = {}
    for expected in re.findall(r"Expected an? (.+?)(?:\. Got value: .*)?$", message, re.MULTILINE):
        if literal := re.fullmatch(r"(?:typing\.)?Literal\[(.*)\]", expected):
            allowed |= dict.fromkeys(re.sub(r"['\"]", "", literal[1]).split(", "))
        elif (name := re.fullmatch(r"<class '(\w+)'>", expected)) and name[1] in _TYPES:
            allowed[_TYPES[name[1]]] = None
        else:
            return ""
    *others, last = allowed or [""]
    return f"{', '.join(others)} or {last}" if others else last
