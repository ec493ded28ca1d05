"""The lock of a cell's folder: which process runs there, on this host or on another one."""

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedaux_pl.files import locked

HEARTBEAT = 15.0
"""The seconds between two signs of life of the process that holds a lock."""

_STALE = 4 * HEARTBEAT  # a process on another host is dead if it is silent for so long


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """Hold a lock with the name of this process in it, and touch it every 15 seconds.

    BlockingIOError is raised if another process holds it.
    """
    if _is_alive_elsewhere(lock):
        raise BlockingIOError
    with locked(lock, patience=1.0):  # another process may just look whether it is held
        lock.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(HEARTBEAT):
                with suppress(OSError):
                    os.utime(lock)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            with suppress(OSError):
                lock.write_text("")  # so that no other host believes it alive for a minute


def is_held(lock: Path) -> bool:
    """Return whether a process holds the lock: on this host now, on another one a minute ago."""
    if not lock.is_file():
        return False
    with lock.open("rb") as file:
        try:
            # shared: two processes that look at the same time do not disturb each other
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
    return _is_alive_elsewhere(lock)


def holder(lock: Path) -> dict[str, Any]:
    """Return the host and the process id in a lock; empty if it names none."""
    with suppress(OSError, ValueError):  # not there, or just being written
        return dict(json.loads(lock.read_text()))
    return {}


def _is_alive_elsewhere(lock: Path) -> bool:
    """Return whether another host, where our flock may not be seen, has touched the lock lately."""
    host = holder(lock).get("host", socket.gethostname())
    return host != socket.gethostname() and time.time() - lock.stat().st_mtime < _STALE
