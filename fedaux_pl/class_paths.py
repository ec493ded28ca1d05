"""The import of classes that a user names by their paths, such as ``my_package.MyNet``."""

from importlib import import_module
from types import ModuleType
from typing import Any

from fedaux_pl.errors import did_you_mean


def import_class(path: str, base: type) -> Any:
    """Return the class of a path, which must be a subclass of ``base``.

    Raises:
        ImportError: If its module cannot be imported, or has no such class.

    Examples:
        >>> import_class("collections.Counter", dict)
        <class 'collections.Counter'>
    """
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise ImportError(f"{path} is no class path, such as my_package.MyClass; add the module")
    module = import_named(module_name)
    kind = getattr(module, name, None)
    if not _is_class(kind, base):
        known = [other for other, member in vars(module).items() if _is_class(member, base)]
        meant = did_you_mean(name, known)
        expected = f"class of a {base.__module__.partition('.')[0]} {base.__name__}"
        got = "does not exist" if kind is None else f"is no {expected}"
        raise ImportError(f"{name} {got} in {module_name}{meant}; name a {expected}")
    return kind


def import_named(name: str) -> ModuleType:
    """Import a module; raise an ImportError that says what to correct, whatever its code raises."""
    try:
        return import_module(name)
    except Exception as error:  # the module's own code runs: of any class
        missing = error.name if isinstance(error, ModuleNotFoundError) else ""
        is_missing = missing and f"{name}.".startswith(f"{missing}.")
        reason = "" if is_missing else f" ({type(error).__name__}: {error})"
        raise ImportError(
            f"the module {name} cannot be imported{reason}; correct the name, or add its folder "
            "to the Python path (PYTHONPATH=FOLDER)"
        ) from error


def _is_class(member: Any, base: type) -> bool:
    return isinstance(member, type) and issubclass(member, base)
