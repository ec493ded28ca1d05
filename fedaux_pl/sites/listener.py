"""How the server listens: on all addresses of its host, where no other process listens.

NVFlare's own driver continues if it cannot listen. It also lets several processes share a port, so
that two servers would split the sites between them. And it does not print that peers without a
valid certificate have been refused.
"""

import errno
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from nvflare.fuel.f3.communicator import driver_mgr
from nvflare.fuel.f3.drivers import grpc_driver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.grpc.streamer_pb2_grpc import add_StreamerServicer_to_server

from fedaux_pl.sites.journal import is_printed

SCHEME = "fedaux"
"""The scheme of the addresses on which this driver listens. Sites use NVFlare's own scheme."""
_HANDSHAKE = 15.0  # seconds after which a handshake that was not accepted counts as failed
_LINES = 100  # how many lines about failed handshakes are printed in any case


class HandshakeWatch:
    """Counts connections, and logs how many of them ended without a valid certificate."""

    def __init__(self, log_line: Callable[[str], None]) -> None:
        self.log_line = log_line
        self.expected = 0  # the server's own short connections
        self._began = 0
        self._accepted = 0
        self._failed = 0
        self._is_waiting = False
        self._lines = itertools.count(1)
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Note that a connection begins; gRPC calls this before every handshake."""
        with self._lock:
            self._began += 1
            self._wait()

    def accept(self) -> None:
        """Note that a peer with a valid certificate has connected."""
        with self._lock:
            self._accepted += 1

    def _wait(self) -> None:
        """Look at the counts later, in one thread for any number of connections."""
        if not self._is_waiting:
            self._is_waiting = True
            timer = threading.Timer(_HANDSHAKE, self.look, [self._began])
            timer.daemon = True
            timer.start()

    def look(self, began: int) -> None:
        """Log how many of the first ``began`` connections have failed since the last look."""
        with self._lock:
            failed = began - self.expected - self._accepted
            new = failed - self._failed
            self._failed = max(self._failed, failed)
            self._is_waiting = False
            if self._began > began:
                self._wait()
        if new > 0 and is_printed(count := next(self._lines), _LINES):
            number = "a connection was" if new == 1 else f"{new:,} connections were"
            total = "" if count <= _LINES else f" ({count:,} such lines)"
            self.log_line(
                f"{number} refused: the certificate has expired, is of another federation, or "
                f"there was none (the lines of gRPC say which){total}"
            )


class ExclusiveDriver(grpc_driver.GrpcDriver):  # type: ignore[misc]
    """NVFlare's driver on a port that no other process can share.

    Attributes:
        bound: The addresses on which the driver listens, or the OSError that prevents it.
        watch: Counts the connections.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bound: Future[list[str]] = Future()
        self.watch = HandshakeWatch(lambda _: None)

    @staticmethod
    def supported_transports() -> list[str]:
        """Return the schemes of the addresses on which the driver can listen."""
        return [SCHEME]

    def listen(self, connector: Any) -> None:
        """Listen until the server ends; NVFlare calls this again after a failure."""
        if self.bound.done():
            return
        self.connector = connector
        params = connector.params
        host = params[DriverParams.HOST.value] or "0.0.0.0"  # noqa: S104 - as configured
        try:
            addresses = local_addresses(host, int(params[DriverParams.PORT.value]))
            self.server = _Server(self, addresses)
        except OSError as error:
            self.bound.set_exception(error)
            return
        self.bound.set_result(addresses)
        self.server.start()


class _Server(grpc_driver.Server):  # type: ignore[misc]
    """A gRPC server that listens on all of the given addresses."""

    def __init__(self, driver: ExclusiveDriver, addresses: list[str]) -> None:
        # does not call the parent, which continues without the addresses that are taken
        self.driver = driver
        self.connector = driver.connector
        options = [*driver.options, ("grpc.so_reuseport", 0)]
        self.grpc_server = grpc.server(ThreadPoolExecutor(driver.max_workers), options=options)
        add_StreamerServicer_to_server(_Servicer(self), self.grpc_server)
        for address in addresses:
            # in the loop, because credentials are valid for one port only
            credentials = _credentials(driver.connector.params, driver.watch)
            try:
                self.grpc_server.add_secure_port(address, credentials)
            except RuntimeError as error:
                self.grpc_server.stop(None)
                raise OSError(errno.EADDRINUSE, f"gRPC cannot listen on {address}") from error


class _Servicer(grpc_driver.Servicer):  # type: ignore[misc]
    def Stream(self, request_iterator: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self.server.driver.watch.accept()
        yield from super().Stream(request_iterator, context)


def _credentials(params: dict[str, Any], watch: HandshakeWatch) -> grpc.ServerCredentials:
    """Return the credentials of the server, which require a certificate of every peer."""
    names = DriverParams.CA_CERT, DriverParams.SERVER_CERT, DriverParams.SERVER_KEY
    root, certificate, key = (Path(params[name.value]).read_bytes() for name in names)
    configuration = grpc.ssl_server_certificate_configuration([(key, certificate)], root)

    def count_handshake() -> None:  # gRPC would take a new configuration here: there is none
        watch.begin()

    return grpc.dynamic_ssl_server_credentials(configuration, count_handshake, True)


def local_addresses(host: str, port: int) -> list[str]:
    """Return those addresses of a host that this machine has, as gRPC writes them.

    Raises an OSError if there are none, or if another process listens on one of them.
    """
    found = {address[0]: family for family, *_, address in _resolve(host, port)}
    # an address of one link, such as fe80::1%eth0, has no meaning at a site
    found = {number: family for number, family in found.items() if "%" not in number}
    if host.lower() == "localhost":  # gRPC connects to both, whatever the tables of the machine say
        found |= {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}
    local = []
    reason = OSError(errno.EADDRNOTAVAIL, "it has no address")
    for number, family in found.items():
        address = f"[{number}]:{port}" if family == socket.AF_INET6 else f"{number}:{port}"
        try:
            _try_to_bind(family, number, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                text = f"another process listens on {address}"
                raise OSError(errno.EADDRINUSE, text) from error
            reason = error  # for example, an IPv6 address where the machine has no IPv6
        else:
            local.append(address)
    if not local:
        raise reason
    return local


def _resolve(host: str, port: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _try_to_bind(family: int, number: str, port: int) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((number, port))


driver_mgr.register(ExclusiveDriver)
