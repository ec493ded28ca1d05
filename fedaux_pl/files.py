"""Files that survive killed processes and other runs: locks, atomic writes, the state folder."""

import csv
import fcntl
import glob
import io
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fedaux_pl.errors import ConfigurationError

KEY_FILE = "fingerprint.key"
"""The secret key of this machine, in its state folder."""
SCRATCH = ".part"
"""The suffix of files that are being written."""
_FORMULA_STARTS = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"  # the last four: full-width
_REMINDER = 60.0  # seconds between two reports of a process that waits for a lock


class NameTakenError(OSError):
    """The file that was to be created is there: another process was faster."""


def state_folder() -> Path:
    """Return the folder of what must stay on this machine: keys, ledgers (``XDG_STATE_HOME``).

    A relative ``XDG_STATE_HOME`` is ignored, as the XDG specification asks. Versions before 2.0
    used it: if it has the key of a ledger, a ConfigurationError says so, because a new ledger would
    forget what has been released.
    """
    given = os.environ.get("XDG_STATE_HOME", "")
    earlier = Path(given, "fedaux_pl").absolute()
    if given and not Path(given).is_absolute() and (earlier / KEY_FILE).is_file():
        raise ConfigurationError(
            f"XDG_STATE_HOME: got the relative path {given!r}, which the XDG specification tells "
            f"programs to ignore, but {earlier} has the state of an earlier version: set "
            f"XDG_STATE_HOME to {earlier.parent}"
        )
    return _own_folder("XDG_STATE_HOME", ".local/state")


def user_cache() -> Path:
    """Return the user's cache folder, ``$XDG_CACHE_HOME/fedaux_pl`` or ``~/.cache/fedaux_pl``.

    A relative ``XDG_CACHE_HOME`` is ignored, as the XDG specification asks.
    """
    return _own_folder("XDG_CACHE_HOME", ".cache")


def is_user_cache(folder: Path) -> bool:
    """Return whether this is the user's cache folder; a user without a home may have none."""
    with suppress(ConfigurationError):
        return folder == user_cache()
    return False


def _own_folder(variable: str, default: str) -> Path:
    given = Path(os.environ.get(variable, ""))
    if given.is_absolute():
        return given / "fedaux_pl"
    try:
        home = Path.home()
    except RuntimeError as error:  # HOME is not set, and no entry of passwd has this user
        raise ConfigurationError(
            f"this user has no home folder: set HOME, or {variable} to an absolute path"
        ) from error
    return home / default / "fedaux_pl"


def create_folder(folder: Path, private: bool = False) -> None:
    """Create a folder unless it is there, one that other users cannot enter if it is private.

    The state folder and the user's cache, which hold private data, are closed to other users, also
    if an earlier version has created them.
    """
    folder.mkdir(0o700 if private else 0o777, parents=True, exist_ok=True)
    for find in (state_folder, user_cache):
        with suppress(ConfigurationError):  # without such a folder, this one is not below it
            closed = find()
            if folder.is_relative_to(closed) and closed.stat().st_uid == os.getuid():
                closed.chmod(0o700)


def write_atomically(
    path: Path,
    write: Callable[[IO[bytes]], object],
    private: bool = False,
    exclusive: bool = False,
) -> None:
    """Write a file completely or not at all, unreadable to other users if it is private.

    Scratch files of killed processes are removed, so a path may have only one writer at a time:
    the owner of the folder, or the holder of a lock. ``write`` gets an open binary file.

    If ``exclusive``, an existing file is never replaced: a NameTakenError is raised. Of several
    writers at the same time one wins, also where locks exclude nobody.
    """
    create_folder(path.parent, private)
    if not exclusive:
        _remove_scratch(path)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}{SCRATCH}")
    try:
        mode = 0o600 if private else 0o666
        with open(scratch, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if exclusive:
            _link(scratch, path)
            _remove_scratch(path)  # of others: they can only fail now
        else:
            scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # so that the new name survives a power failure
    finally:
        os.close(folder)


def _remove_scratch(path: Path) -> None:
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{SCRATCH}"):
        left.unlink(missing_ok=True)


def _link(scratch: Path, path: Path) -> None:
    try:
        os.link(scratch, path)
    except (FileExistsError, FileNotFoundError) as error:  # a faster writer removes scratch files
        raise NameTakenError(f"another process has created {path}") from error


def create_secret(path: Path, num_bytes: int) -> None:
    """Create a file of random bytes that other users cannot read, unless it exists."""
    if not path.exists():
        secret = secrets.token_bytes(num_bytes)
        with locked(path.with_suffix(".lock")), suppress(NameTakenError):
            # another process may have been faster
            write_atomically(path, lambda file: file.write(secret), private=True, exclusive=True)


def write_text_atomically(path: Path, text: str, private: bool = False) -> None:
    """Write a UTF-8 text file as ``write_atomically`` does, with line ends as they are given."""
    write_atomically(path, lambda file: file.write(text.encode()), private)


def write_json_atomically(path: Path, content: Mapping[str, Any]) -> None:
    """Write an indented JSON file as ``write_atomically`` does."""
    write_text_atomically(path, json.dumps(content, indent=2) + "\n")


def csv_text(rows: Iterable[Iterable[Any]], line_end: str = "\n") -> str:
    """Return rows as the text of a CSV file that spreadsheets open without running a cell.

    Text that begins as a formula does (``=``, ``+``, ``-``, ``@``, white space) gets an apostrophe
    before it; numbers stay as they are.
    """
    file = io.StringIO()
    safe_rows = (map(_without_formula, row) for row in rows)
    csv.writer(file, lineterminator=line_end).writerows(safe_rows)
    return file.getvalue()


def _without_formula(cell: Any) -> Any:
    text = str(cell)
    if len(text) < 2 or text[0] not in _FORMULA_STARTS:
        return cell
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return cell


@contextmanager
def locked(
    path: Path, on_wait: Callable[[], None] = lambda: None, patience: float = math.inf
) -> Iterator[None]:
    """Hold an exclusive lock, which ends with the block or with the process; its file stays.

    While another process holds it, ``on_wait`` is called at once and every minute; after
    ``patience`` seconds a BlockingIOError is raised.
    """
    create_folder(path.parent)
    with path.open("ab") as file:
        started = time.monotonic()
        called = -math.inf
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                now = time.monotonic()
                if now - started >= patience:
                    raise
                if now - called >= _REMINDER:
                    on_wait()
                    called = now
                time.sleep(0.1)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a forked process holds a copy of the descriptor
