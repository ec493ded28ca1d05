"""Settings that several command lines of ``fit`` share, such as those of a sweep.

A parser run takes a tenth of a second, and a sweep has hundreds of cells. They combine few values:
with this, parser runs grow with the distinct values of settings, not with their combinations.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from jsonargparse import Namespace

from fedaux_pl.runs.config_files import keys_of_config
from fedaux_pl.runs.parser import LINKS, ROOTS, ConfigResolver

Argument = tuple[str, str]  # an option and its value
History = tuple[Argument, ...]  # the arguments that a setting depends on, in their order


class SharedSettings:
    """Resolves command lines as ``ConfigResolver``, but parses no combination of known settings.

    A setting is an option of the first two levels with all that stands below it, such as
    ``model.algorithm`` or ``seed_everything``. The parser derives its value from the arguments that
    name it, a part of it or its root, and from the settings that it is linked to. Command lines
    that agree in these arguments share its value.
    """

    def __init__(self, resolver: ConfigResolver) -> None:
        self.resolver = resolver
        self._names: list[str] = []  # of all settings
        self._values: dict[tuple[str, History], tuple[Any, Any]] = {}  # as plain value, and parsed
        self._keys_of_configs: dict[str, frozenset[str]] = {}

    def resolve(self, args: Sequence[str]) -> dict[str, Any]:
        """Return all settings of a command line as plain values, as ``ConfigResolver`` does."""
        shared = self._combine(args)
        if shared is not None:
            settings, self.resolver.config = shared
            return settings
        settings = self.resolver.resolve(args)
        self._remember(args, settings, self.resolver.config)
        return settings

    def _combine(self, args: Sequence[str]) -> tuple[dict[str, Any], Namespace] | None:
        """Return the settings of a command line whose values are all known; else None."""
        arguments = list(_arguments(args))
        configs = {value for option, value in arguments if option == "config"}
        if not self._names or not configs <= self._keys_of_configs.keys():
            return None
        settings: dict[str, Any] = {}
        parsed = Namespace()  # type: ignore[no-untyped-call]
        for name, history in self._histories(arguments).items():
            if (name, history) not in self._values:
                return None
            plain, parsed[name] = self._values[name, history]
            root, _, key = name.partition(".")
            if key:
                settings.setdefault(root, {})[key] = plain
            else:
                settings[root] = plain
        return settings, parsed.clone()

    def _remember(self, args: Sequence[str], settings: dict[str, Any], parsed: Namespace) -> None:
        """Keep the value of each setting of a command line that was parsed."""
        arguments = list(_arguments(args))
        for option, value in arguments:
            if option == "config" and value not in self._keys_of_configs:
                self._keys_of_configs[value] = frozenset(map(_setting, keys_of_config(value)))
        plain: dict[str, Any] = {}
        for root, value in settings.items():
            if root in ROOTS:
                plain |= {f"{root}.{key}": below for key, below in value.items()}
            else:
                plain[root] = value
        self._names = list(plain)
        for name, history in self._histories(arguments).items():
            self._values[name, history] = plain[name], parsed[name]

    def _histories(self, arguments: Sequence[Argument]) -> dict[str, History]:
        """Return the arguments that each setting depends on."""
        changes = [(argument, self._settings_of(argument)) for argument in arguments]
        histories = {}
        for name in self._names:
            sources = {name, LINKS.get(name, name)}
            sources |= {source.partition(".")[0] for source in sources}
            history = [argument for argument, changed in changes if not sources.isdisjoint(changed)]
            histories[name] = tuple(history)
        return histories

    def _settings_of(self, argument: Argument) -> frozenset[str]:
        """Return the settings that an argument changes."""
        option, value = argument
        if option == "config":
            return self._keys_of_configs[value]
        return frozenset([_setting(option)])


def _setting(key: str) -> str:
    """Return the setting that an option belongs to: itself or the one above it."""
    root, *below = key.removesuffix("+").split(".")
    return f"{root}.{below[0]}" if below and root in ROOTS else root


def _arguments(args: Sequence[str]) -> Iterator[Argument]:
    """Yield the options of a command line without their dashes, and their values."""
    left = list(args)
    while left:
        option, equals, value = left.pop(0).partition("=")
        if not equals and left and not left[0].startswith("--"):
            value = left.pop(0)
        yield option.removeprefix("--"), value
