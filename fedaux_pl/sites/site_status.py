"""Who is connected and who has answered, as a file that ``fedaux-pl sites status`` reads."""

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedaux_pl.callbacks.progress import print_above_bars
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.files import write_json_atomically

ANSWERED = {"evaluate": "evaluated", "vote": "voted"}
"""The entries of requests that the owner of a site need not allow."""
_SHOWN = {
    "evaluated": ("evaluates on", "evaluates nothing"),
    "voted": ("votes by", "does not vote"),
}


class SiteStatus:
    """The state of all sites; ``write`` and each change write it to the file."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.path = path
        self._lock = threading.Lock()  # connections come and go in threads of the transport
        empty = {"connected": False, "since": None, "last_round": None, "last_code": None}
        self._sites: dict[str, dict[str, Any]] = {name: dict(empty) for name in names}

    def change(self, name: str, **values: Any) -> None:
        """Note what is new about a site.

        Values are ``connected`` and ``since``, ``last_round``, ``last_code`` of a refusal, whether
        it was ``in_sum``, and ``evaluated`` and ``voted``: the number of its samples and epsilon,
        or a code.
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


def tell(text: str) -> None:
    """Print a line about sites above the progress bars of the server."""
    print_above_bars(f"sites: {text}", flush=True)


def describe_status(root: Path) -> str:
    """Return the table of a folder's ``sites.json``; raise a ConfigurationError without one."""
    path = root / "sites.json"
    if not path.is_file():
        raise ConfigurationError(
            f"there is no {path.absolute()}: give --root the default_root_dir of a run over sites"
        )
    content = json.loads(path.read_text())
    runs = Path(f"/proc/{content['pid']}").exists()
    state = "runs" if runs else "does not run"
    lines = [f"server: process {content['pid']} {state}; last change {_time(content['updated'])}"]
    width = max(len(name) for name in content["sites"])
    for name, site in content["sites"].items():
        is_there = "connected" if site["connected"] and runs else "not connected"
        last = site["last_round"] or "none yet"
        line = f"{name:{width}}  {is_there:13}  since {_time(site['since'])}  last round {last}"
        if "in_sum" in site:
            line += f"; {'in' if site['in_sum'] else 'NOT in'} the secure sum"
        for entry, (does, refuses) in _SHOWN.items():
            if entry in site:
                line += _describe_answer(site[entry], does, refuses)
        lines.append(f"{line}; last code {site['last_code']}" if site["last_code"] else line)
    return "\n".join(lines)


def _describe_answer(answer: Any, does: str, refuses: str) -> str:
    if isinstance(answer, str):
        return f"; {refuses} (code {answer})"
    count, epsilon = answer
    cost = "NOT covered by epsilon" if epsilon is None else f"epsilon {epsilon:g} each time"
    return f"; {does} {count} samples, {cost}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
