"""Short TLS connections that find out whether a server answers, and if not, why."""

import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from fedaux_pl.errors import first_line

_TIMEOUT = 10.0  # seconds for each step of a connection
_FIRST_LOOK = 10.0  # seconds after which a site asks why it has no connection
_LAST_LOOK = 600.0  # the longest time between two such questions, which become rarer


def has_own_certificate(host: str, port: int, files: Mapping[str, Path]) -> bool:
    """Return whether the server with these credentials answers by TLS at this address."""
    context = _context(files, "server")
    context.check_hostname = False
    own = ssl.PEM_cert_to_DER_cert(_first_certificate(files["server_cert"].read_text()))
    try:
        with (
            socket.create_connection((host, port), _TIMEOUT) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            secured.recv(1)  # completes the handshake, which the server counts
            return secured.getpeercert(binary_form=True) == own
    except OSError:
        return False


def explain_silence(host: str, port: int, files: Mapping[str, Path]) -> str | None:
    """Return why a site with these credentials has no connection; None if TLS works."""
    server = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), _TIMEOUT) as plain:
            return _explain_handshake(plain, host, server, files)
    except OSError as error:
        return f"no server answers at {server} ({first_line(error)}): it may not have started yet"


def _explain_handshake(
    plain: socket.socket, host: str, server: str, files: Mapping[str, Path]
) -> str | None:
    refusal = (
        f"the server at {server} does not accept the certificate of this site: it has expired by "
        "the clock of the server, or it is of another federation"
    )
    try:
        with _context(files, "client").wrap_socket(plain, server_hostname=host) as secured:
            # the server decides about the certificate of the site after the handshake
            return None if secured.recv(1) else refusal
    except ssl.SSLCertVerificationError as error:
        return (
            f"this site does not accept the certificate of the server at {server} "
            f"({error.verify_message}): give --server the host name for which the server was "
            "provisioned, and use the kit of the same federation"
        )
    except (ssl.SSLError, ConnectionError):
        return refusal


def _context(files: Mapping[str, Path], side: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(files["ca_cert"])
    context.load_cert_chain(files[f"{side}_cert"], files[f"{side}_key"])
    context.set_alpn_protocols(["h2"])  # gRPC ends connections without it
    return context


def _first_certificate(text: str) -> str:
    end = "-----END CERTIFICATE-----"
    return text.partition(end)[0] + end


class Silence:
    """Says why a site has no connection, while the transport tries again and prints nothing.

    Args:
        explain: Returns the reason, or None if it finds none.
        log_line: Prints a reason, each only once during a silence.
    """

    def __init__(self, explain: Callable[[], str | None], log_line: Callable[[str], None]) -> None:
        self.explain = explain
        self.log_line = log_line
        self._is_over = threading.Event()

    def begin(self) -> None:
        """Note that there is no connection, and look for the reason until there is one."""
        self.end()
        self._is_over = threading.Event()
        threading.Thread(target=self._look, args=[self._is_over], daemon=True).start()

    def end(self) -> None:
        """Note that there is a connection, or that none is wanted any more."""
        self._is_over.set()

    def _look(self, is_over: threading.Event) -> None:
        logged = None
        pause = _FIRST_LOOK
        while not is_over.wait(pause):
            reason = self.explain()
            if reason not in (None, logged) and not is_over.is_set():
                logged = reason
                self.log_line(reason)
            pause = min(2 * pause, _LAST_LOOK)
