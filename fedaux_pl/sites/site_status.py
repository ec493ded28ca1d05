"""Who is connected and who has answered, as a file that ``fedaux-pl sites status`` reads."""

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.files import write_json_atomically


class SiteStatus:
    """The state of all sites; each change is written to the file.

    Args:
        path: The file.
        names: The sites.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.path = path
        self._lock = threading.Lock()  # connections come and go in threads of the transport
        empty = {"connected": False, "since": None, "last_round": None, "last_code": None}
        self._sites: dict[str, dict[str, Any]] = {name: dict(empty) for name in names}
        self._write()

    def connected(self, name: str, is_connected: bool) -> None:
        """Note that a site has connected, or that its connection has ended."""
        self._change(name, connected=is_connected, since=time.time())

    def answered(self, name: str, round_: int | None) -> None:
        """Note that a site has answered in a round, or in the preparation (None)."""
        own = {} if round_ is None else {"last_round": round_}
        self._change(name, last_code=None, **own)

    def failed(self, name: str, code: str) -> None:
        """Note that a site has not answered."""
        self._change(name, last_code=code)

    def evaluated(self, name: str, samples: int, epsilon: float | None) -> None:
        """Note that a site has evaluated models; epsilon is None without noise."""
        self._change(name, last_code=None, evaluated=[samples, epsilon])

    def joined(self, names: Sequence[str]) -> None:
        """Note the sites of the last secure sum."""
        for name in self._sites:
            self._change(name, in_sum=name in names)

    def _change(self, name: str, **values: Any) -> None:
        if name in self._sites:
            with self._lock:
                self._sites[name].update(values)
                self._write()

    def _write(self) -> None:
        content = {"pid": os.getpid(), "updated": time.time(), "sites": self._sites}
        write_json_atomically(self.path, content)


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
        last = "none yet" if site["last_round"] is None else site["last_round"]
        code = f"; last code {site['last_code']}" if site["last_code"] else ""
        summed = {True: "; in the secure sum", False: "; NOT in the secure sum", None: ""}
        evaluated = ""
        if (own := site.get("evaluated")) is not None:
            cost = "NOT covered by epsilon" if own[1] is None else f"epsilon {own[1]:g} each time"
            evaluated = f"; evaluates on {own[0]} samples, {cost}"
        lines.append(
            f"{name:{width}}  {is_there:13}  since {_time(site['since'])}  last round {last}"
            f"{summed[site.get('in_sum')]}{evaluated}{code}"
        )
    return "\n".join(lines)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
