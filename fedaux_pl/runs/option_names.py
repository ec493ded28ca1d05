"""The names of options in messages of the command line, which are those that one types.

In Python the same messages name arguments: ``alpha`` is ``--data.alpha`` on the command line.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any


def as_typed(message: str, options: Collection[str]) -> str:
    """Put two dashes before the options in a message, which have none yet.

    ``options`` are the names of all options without dashes. Those of a class that an option takes
    are found below it. A name without a dot is an option only where the message begins with it.

    Examples:
        >>> as_typed("data.alpha: got 0; set data.alpha or --seed", ["data.alpha", "seed"])
        '--data.alpha: got 0; set --data.alpha or --seed'
        >>> as_typed("data.csv: got seed; expected alpha", ["data.alpha", "seed"])
        'data.csv: got seed; expected alpha'
    """

    def add_dashes(match: re.Match[str]) -> str:
        name = match[0]
        parents = [name[: dot.start()] for dot in re.finditer(r"\.", name)]
        is_option = any("." in known and known in options for known in (name, *parents))
        return f"--{name}" if is_option else name

    first = re.match(r"(\w+):", message)
    if first and first[1] in options:
        message = f"--{message}"
    return re.sub(r"(?<![\w./`'\"-])[a-z]\w*(?:\.\w+)+", add_dashes, message)


def with_whole_name(message: str, settings: Mapping[str, Any]) -> str:
    """Return a message "name: got x; ..." with the whole name of the one setting that it is about.

    That is the setting whose name ends with the given one; of several, the one whose value is x.

    Examples:
        >>> settings = {"model": {"local": {"lr": 0.0}, "pretraining": {"lr": 0.1}}}
        >>> with_whole_name("lr: got 0.0; expected more", settings)
        'model.local.lr: got 0.0; expected more'
    """
    match = re.match(r"([a-z]\w*(?:\.\w+)*): got (.*?); expected", message)
    if not match:
        return message
    name, value = match.groups()
    found = [
        (key, held) for key, held in nested_settings(settings) if f".{key}".endswith(f".{name}")
    ]
    if len(found) > 1:
        found = [(key, held) for key, held in found if value in (str(held), repr(held))]
    if len(found) != 1:
        return message
    return found[0][0] + message.removeprefix(name)


def nested_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the names and values of all settings, a class's own below the option of the class."""
    for key, value in settings.items():
        name = prefix if key == "init_args" else f"{prefix}.{key}".lstrip(".")
        yield name, value
        if isinstance(value, Mapping):
            yield from nested_settings(value, name)
