"""The settings of real sites at the server."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Sites:
    """The sites of a federation, at the server.

    Args:
        names: The sites in the order of the clients, as in their certificates.
        certificates: The server's folder, as NVFlare's provisioning has written it.
        port: The port on which the server listens; the only one, and sites open none.
        host: The server's host name, as in its certificate.
        timeout: The seconds in which a site must answer a request.
        wait: The seconds for which the start of a run waits for sites that are not connected.
        min_answers: The number of answers that a round needs; with fewer, sites are asked again.
        rehearsal: Whether the noise of the method is used as configured. Otherwise it is secret.
        max_bytes: The largest message that is accepted.
    """

    names: list[str]
    certificates: Path
    port: int = 8402
    host: str = "localhost"
    timeout: float = 600.0
    wait: float = 60.0
    min_answers: int = 1
    rehearsal: bool = False
    max_bytes: int = 2**32

    def __post_init__(self) -> None:
        for name in self.names:
            check_name(name)
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError(f"sites.names must be different names, but are {self.names}")
        if not 1 <= self.min_answers <= len(self.names):
            raise ValueError(
                f"sites.min_answers must lie in 1 ... {len(self.names)}, but is {self.min_answers}"
            )
        if not self.timeout > 0 or not self.wait >= 0:
            raise ValueError(
                f"sites.timeout must be positive and sites.wait at least 0, but they are "
                f"{self.timeout} and {self.wait}"
            )


def check_name(name: str) -> None:
    """Raises a ValueError for a name that a site cannot have on the transport."""
    plain = name.replace("-", "").replace("_", "")
    if not (plain.isascii() and plain.isalnum()) or name == "server" or len(name) > 63:
        raise ValueError(
            "the name of a site must be letters, digits, - and _ (at most 63, and not 'server'), "
            f"but is {name!r}"
        )
