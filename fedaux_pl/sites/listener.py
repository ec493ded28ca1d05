"""How the server listens: on all addresses of its host, alone, or not at all.

NVFlare's driver goes on if it cannot listen, and lets several processes share a port, so that the
sites would be split between two servers. It says nothing of peers without a valid certificate.
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
"""The scheme of addresses on which this driver listens; sites connect to them by NVFlare's own."""
_PATIENCE = 15.0  # seconds for a handshake
_LINES = 100  # about failed handshakes that are printed each


class HandshakeWatch:
    """Counts connections, and says if some have ended before their certificate was accepted."""

    def __init__(self, log_line: Callable[[str], None]) -> None:
        self.log_line = log_line
        self.expected = 0  # that are no peers'
        self._began = 0
        self._accepted = 0
        self._failed = 0
        self._is_waiting = False
        self._lines = itertools.count(1)
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Note that somebody connects; gRPC calls it before every handshake."""
        with self._lock:
            self._began += 1
            self._wait()

    def accept(self) -> None:
        """Note that somebody with a valid certificate has connected."""
        with self._lock:
            self._accepted += 1

    def _wait(self) -> None:
        """Look again later; one thread is enough for any number of connections."""
        if not self._is_waiting:
            self._is_waiting = True
            timer = threading.Timer(_PATIENCE, self.look, [self._began])
            timer.daemon = True
            timer.start()

    def look(self, began: int) -> None:
        """Say how many of the first ``began`` connections have failed since the last look."""
        with self._lock:
            failed = began - self.expected - self._accepted
            new = failed - self._failed
            self._failed = max(self._failed, failed)
            self._is_waiting = False
            if self._began > began:
                self._wait()
        if new > 0 and is_printed(count := next(self._lines), _LINES):
            number = "a connection was" if new == 1 else f"{new:,} connections were"
            more = "" if count <= _LINES else f" ({count:,} such lines)"
            self.log_line(
                f"{number} refused: the certificate has expired, is of another federation, or "
                f"there was none (the lines of gRPC say which){more}"
            )


class ExclusiveDriver(grpc_driver.GrpcDriver):  # type: ignore[misc]
    """NVFlare's driver, on a port that no other process can share.

    Attributes:
        bound: The addresses on which it listens, or the OSError that prevents it.
        watch: Counts the connections.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bound: Future[list[str]] = Future()
        self.watch = HandshakeWatch(lambda _: None)

    @staticmethod
    def supported_transports() -> list[str]:
        """Return the schemes of its addresses."""
        return [SCHEME]

    def listen(self, connector: Any) -> None:
        """Listen until the server ends; NVFlare calls it again after a failure."""
        if self.bound.done():
            return
        self.connector = connector
        params = connector.params
        host = params[DriverParams.HOST.value] or "0.0.0.0"  # noqa: S104 - as it was configured
        try:
            addresses = local_addresses(host, int(params[DriverParams.PORT.value]))
            self.server = _Server(self, addresses)
        except OSError as error:
            self.bound.set_exception(error)
            return
        self.bound.set_result(addresses)
        self.server.start()


class _Server(grpc_driver.Server):  # type: ignore[misc]
    """A gRPC server on all of these addresses."""

    def __init__(self, driver: ExclusiveDriver, addresses: list[str]) -> None:
        # not that of the parent, which goes on without addresses that are taken
        self.driver = driver
        self.connector = driver.connector
        options = [*driver.options, ("grpc.so_reuseport", 0)]
        self.grpc_server = grpc.server(ThreadPoolExecutor(driver.max_workers), options=options)
        add_StreamerServicer_to_server(_Servicer(self), self.grpc_server)
        for address in addresses:
            credentials = _credentials(driver.connector.params, driver.watch)  # good for one port
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
    """Return the credentials of the server, which ask every peer for its certificate."""
    names = DriverParams.CA_CERT, DriverParams.SERVER_CERT, DriverParams.SERVER_KEY
    root, certificate, key = (Path(params[name.value]).read_bytes() for name in names)
    configuration = grpc.ssl_server_certificate_configuration([(key, certificate)], root)

    def fetch() -> None:  # another configuration for the next handshake: there is none
        watch.begin()

    return grpc.dynamic_ssl_server_credentials(configuration, fetch, True)


def local_addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a host on this machine, as gRPC writes them.

    Raises an OSError if there are none, or if somebody listens on one of them.
    """
    found = {address[0]: family for family, *_, address in _resolve(host, port)}
    # those of one link, such as fe80::1%eth0, have no meaning at a site
    found = {number: family for number, family in found.items() if "%" not in number}
    if host.lower() == "localhost":  # gRPC connects to both, whatever the machine's tables say
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
            reason = error  # such as an address of IPv6 where the machine has none
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
