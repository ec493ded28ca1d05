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
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

SCRATCH = ".part"
"""The suffix of files that are being written."""
_FORMULA_STARTS = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"  # the last four: full-width
_REMINDER = 60.0  # seconds between two reports of a process that waits for a lock


def state_folder() -> Path:
    """Return the folder of what must stay on this machine: keys, ledgers (``XDG_STATE_HOME``)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state", "fedaux_pl")


def user_cache() -> Path:
    """Return the user's cache folder, ``$XDG_CACHE_HOME/fedaux_pl`` or ``~/.cache/fedaux_pl``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fedaux_pl")


def create_folder(folder: Path, private: bool = False) -> None:
    """Create a folder unless it is there, one that other users cannot enter if it is private.

    The state folder and the user's cache, which hold private data, are closed to other users, also
    if an earlier version has created them.
    """
    folder.mkdir(0o700 if private else 0o777, parents=True, exist_ok=True)
    for closed in (state_folder(), user_cache()):
        if folder.is_relative_to(closed) and closed.stat().st_uid == os.getuid():
            closed.chmod(0o700)


def write_atomically(
    path: Path, write: Callable[[IO[bytes]], object], private: bool = False
) -> None:
    """Write a file completely or not at all, unreadable to other users if it is private.

    Scratch files of killed processes are removed, so a path may have only one writer at a time:
    the owner of the folder, or the holder of a lock. ``write`` gets an open binary file.
    """
    create_folder(path.parent, private)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{SCRATCH}"):
        left.unlink(missing_ok=True)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}{SCRATCH}")
    try:
        mode = 0o600 if private else 0o666
        with open(scratch, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # so that the new name survives a power failure
    finally:
        os.close(folder)


def create_secret(path: Path, num_bytes: int) -> None:
    """Create a file of random bytes that other users cannot read, unless it exists."""
    if not path.exists():
        with locked(path.with_suffix(".lock")):
            if not path.exists():  # another process may have been faster
                secret = secrets.token_bytes(num_bytes)
                write_atomically(path, lambda file: file.write(secret), private=True)


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
