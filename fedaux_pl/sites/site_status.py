"""Which sites are connected and have answered: a file that ``fedaux-pl sites status`` reads."""

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.files import write_json_atomically
from fedaux_pl.sites.codes import CODES
from fedaux_pl.sites.names import is_name

OPTIONAL_ENTRIES = {"evaluate": "evaluated", "vote": "voted"}
"""The requests that the owner of a site need not allow, with their entries in the file."""
_FOREIGN = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""The errors that reading a foreign file can raise."""
_SHOWN = {
    "evaluated": ("evaluates on", "evaluates nothing"),
    "voted": ("votes by", "does not vote"),
}


class SiteStatus:
    """The state of all sites, which ``write`` and every change write to the file."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.path = path
        self._lock = threading.Lock()  # connections come and go in threads of the transport
        empty = {"connected": False, "since": None, "last_round": None, "last_code": None}
        self._sites: dict[str, dict[str, Any]] = {name: dict(empty) for name in names}

    def change(self, name: str, **values: Any) -> None:
        """Note what is new about a site.

        Args:
            name: The name of the site.
            **values: ``connected`` and ``since``; ``last_round``, the last round that it has
                answered; ``last_code``, the code of its last refusal; ``in_sum``, whether the last
                secure sum has its vector; ``evaluated`` and ``voted``, each either the number of
                its samples and the epsilon, or the code of a refusal.
        """
        with self._lock:
            self._sites[name].update(values)
            self._write()

    def write(self) -> None:
        """Write the file before anything has changed."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        content = {"pid": os.getpid(), "updated": time.time(), "sites": self._sites}
        write_json_atomically(self.path, content)


def describe_status(root: Path) -> str:
    """Return the file ``sites.json`` of a folder as a table.

    Raises a ConfigurationError if there is no such file or if it is damaged.
    """
    path = root / "sites.json"
    advice = "give --root the default_root_dir of a run over sites"
    if not path.is_file():
        raise ConfigurationError(f"there is no {path.absolute()}: {advice}")
    try:
        return _describe(json.loads(path.read_bytes()))
    except _FOREIGN as error:
        raise ConfigurationError(
            f"{path.absolute()} is not the status of a server of sites, or it is damaged "
            f"({type(error).__name__}): {advice}, or start the server again, which writes it"
        ) from error


def _describe(content: Any) -> str:
    pid = content["pid"]
    sites = content["sites"]
    if type(pid) is not int or not sites or not all(map(is_name, sites)):
        raise ValueError("it has no process, no sites, or impossible names")
    runs = Path(f"/proc/{pid}").exists()
    state = "runs" if runs else "does not run"
    lines = [f"server: process {pid} {state}; last change {_time(content['updated'])}"]
    width = max(map(len, sites))
    lines += [_describe_site(name.ljust(width), site, runs) for name, site in sites.items()]
    return "\n".join(lines)


def _describe_site(name: str, site: Any, runs: bool) -> str:
    is_there = "connected" if site["connected"] and runs else "not connected"
    last = site["last_round"]
    if type(last) not in (int, type(None)):
        raise ValueError("the last round is no number")
    line = f"{name}  {is_there:13}  since {_time(site['since'])}  last round {last or 'none yet'}"
    if "in_sum" in site:
        line += f"; {'in' if site['in_sum'] else 'NOT in'} the secure sum"
    for entry, (does, refuses) in _SHOWN.items():
        if entry in site:
            line += _describe_answer(site[entry], does, refuses)
    return f"{line}; last code {_read_code(site['last_code'])}" if site["last_code"] else line


def _read_code(code: Any) -> str:
    if code not in (*CODES, "absent"):
        raise ValueError("it has an unknown code")
    return str(code)


def _describe_answer(answer: Any, does: str, refuses: str) -> str:
    if isinstance(answer, str):
        return f"; {refuses} (code {_read_code(answer)})"
    count, epsilon = answer
    if type(count) is not int:
        raise ValueError("the number of samples is none")
    cost = "NOT covered by epsilon" if epsilon is None else f"epsilon {epsilon:g} each time"
    return f"; {does} {count} samples, {cost}"


def _time(seconds: Any) -> str:
    if seconds is None:
        return "never"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
