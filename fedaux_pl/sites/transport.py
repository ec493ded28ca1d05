"""NVFlare's transport in our own processes: mutual TLS, one port at the server, none at sites.

Only this file, ``listener`` and ``message_filter`` know NVFlare. Its cells send each other messages
by name, and the name of a cell must be the common name of its certificate. The filter refuses
everything that a federation does not need: a site may send messages only to the server, only when
it was asked, only in its own name, and only bytes.
"""

import ctypes
import itertools
import logging
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from fedaux_pl.errors import ConfigurationError, first_line
from fedaux_pl.sites.journal import Journal, is_printed
from fedaux_pl.sites.kit import check_secrecy, find_credentials
from fedaux_pl.sites.server_log import log_line
from fedaux_pl.sites.site_settings import Sites
from fedaux_pl.sites.site_status import SiteStatus
from fedaux_pl.sites.tls import Silence, explain_silence, has_own_certificate
from fedaux_pl.sites.wire import Message, RefusalError, largest_body, read_message

try:
    from nvflare.apis.signal import Signal
    from nvflare.fuel.f3.cellnet.cell import Cell
    from nvflare.fuel.f3.cellnet.defs import CellChannel, ReturnCode
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey as Header
    from nvflare.fuel.f3.cellnet.utils import new_cell_message
    from nvflare.fuel.f3.drivers import grpc_driver

    from fedaux_pl.sites.certificates import check_certificate
    from fedaux_pl.sites.listener import SCHEME, ExclusiveDriver
    from fedaux_pl.sites.message_filter import CHUNK, SERVER, MessageFilter
except ImportError as error:
    raise ConfigurationError(
        "real sites need NVFlare: run pip install -e '.[sites]' in the clone of fedaux-pl"
    ) from error

_CHANNEL = "fedaux"
_TOPIC = "ask"
_STRANGER = "stranger"  # the kind of the message to a site that is no member of the run
_STRANGER_TIMEOUT = 10.0  # seconds in which this message must arrive
_MAX_STRANGERS = 4  # how many of these messages are sent at the same time
_FIELDS = "fedaux"  # the header with the plain values
_START = 30.0  # seconds in which the port of the server must answer
_PAUSE = 0.1  # seconds between two attempts to connect to this port
_RETRY_TIMEOUT = 5  # seconds for which the transport keeps what it has received
_MALLOC_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h
_MAX_FRAME = 16 * 2**20  # larger messages are streamed in chunks of 1 MiB
# with these pings a broken link is noticed after 30 s; without them TCP may take 15 minutes
_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 15_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    # gRPC 1.85 still counts these pings as abuse, and would end a quiet connection after a minute
    ("grpc.http2.max_ping_strikes", 0),
)


def _create_cell(name: str, url: str, kit: Path, side: str, max_bytes: int) -> Any:
    """Create a cell of NVFlare; ``side`` is ``server`` or ``client``, as in the names of files."""
    files = find_credentials(kit, side)
    os.environ |= {
        "NVFLARE_STREAMING_MAX_BLOB_SIZE": str(max_bytes),
        "NVFLARE_STREAMING_CHUNK_SIZE": str(CHUNK),
        "NVFLARE_STREAMING_RETRY_TIMEOUT": str(_RETRY_TIMEOUT),
        "NVFLARE_MAX_MESSAGE_SIZE": str(_MAX_FRAME),
        "NVFLARE_ALLOW_ADHOC_CONNS": "false",
    }
    _bound_log()
    # two heaps for all threads: in one heap for each thread the gaps that messages leave add up
    _call_glibc("mallopt", _MALLOC_ARENA_MAX, 2)
    # NVFlare's driver reads its options from this list
    options = grpc_driver.GRPC_DEFAULT_OPTIONS
    options.extend(option for option in _KEEPALIVE if option not in options)
    credentials = {option: str(path) for option, path in files.items()}
    try:
        return Cell(
            fqcn=name,
            root_url=url,
            secure=True,
            credentials=credentials | {"connection_security": "mtls"},
            create_internal_listener=False,
        )
    except Exception as error:  # of several classes: keys that do not fit, damaged files
        raise ConfigurationError(
            f"the certificates in {kit.absolute()} cannot be used ({first_line(error)}): "
            "provision again"
        ) from error


def _bound_log() -> None:
    """Let NVFlare log which peers it refuses, but so few lines that no peer can fill the disk."""
    log = logging.getLogger("nvflare")
    count = itertools.count(1)
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.addFilter(lambda _: is_printed(next(count), 1000))
        handler.setFormatter(logging.Formatter("%(message).1000s"))
        log.addHandler(handler)
        log.setLevel(logging.WARNING)
        log.propagate = False


def _call_glibc(function: str, *arguments: int) -> None:
    call = getattr(ctypes.CDLL(None), function, None)
    if call is not None:
        call(*arguments)


_return_memory = partial(_call_glibc, "malloc_trim", 0)  # returns freed memory to the system


class ServerTransport:
    """The transport at the server; as a context manager, it listens while the block runs."""

    def __init__(self, sites: Sites, status: SiteStatus) -> None:
        self.sites = sites
        self.status = status
        url = f"{SCHEME}://{sites.host}:{sites.port}"
        kit = Path(sites.certificates)
        check_secrecy(kit, "server")
        check_certificate(kit, "server")
        self.files = find_credentials(kit, "server")
        self.cell = _create_cell(SERVER, url, kit, "server", sites.max_bytes)
        self._waiting: dict[str, Any] = {}  # by site: the signal that ends the waiting for it
        self._largest: dict[str, int] = {}  # by site: how many bytes its answer may have
        self._notices = threading.Semaphore(_MAX_STRANGERS)
        route = CellChannel.RETURN_ONLY, f"{_CHANNEL}:{_TOPIC}"
        self.filter = MessageFilter(self.cell, sites.names, route, self._limit, log_line)
        self.cell.core_cell.set_cell_connected_cb(partial(self._note, True))
        self.cell.core_cell.set_cell_disconnected_cb(partial(self._note, False))

    def __enter__(self) -> Self:
        try:
            self._listen()
        except BaseException as error:  # the transport raises RuntimeError, OSError and others
            self._stop()  # its threads would keep the process running
            if not isinstance(error, Exception):
                raise
            raise ConfigurationError(
                f"the server cannot listen on {self.sites.host}:{self.sites.port} "
                f"({first_line(error)}): end the process that does, or choose another sites.port; "
                "sites.host must be a name or an address of this machine, or 0.0.0.0 for all"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        with suppress(Exception):  # the run has its result, whatever the transport raises
            self.cell.stop()

    def _listen(self) -> None:
        """Listen, and wait until all addresses answer by TLS."""
        self.cell.start()
        [connector] = self.cell.core_cell.communicator.conn_manager.connectors.values()
        driver: ExclusiveDriver = connector.driver
        driver.watch.log_line = log_line
        addresses = driver.bound.result(_START)
        end = time.monotonic() + _START
        for address in addresses:
            host, _, port = address.rpartition(":")
            while True:
                driver.watch.expected += 1
                if has_own_certificate(host.strip("[]"), int(port), self.files):
                    break
                if time.monotonic() > end:
                    raise OSError(f"nothing answers by TLS on {address}")
                time.sleep(_PAUSE)
        self.status.write()  # only now, because another server may have listened and has this file
        log_line(f"listening on {self.sites.host}:{self.sites.port} ({', '.join(addresses)})")

    def connected(self) -> list[str]:
        """Return the names of the sites that are connected."""
        return [n for n in self.sites.names if self.cell.core_cell.is_cell_connected(n)]

    def ask(
        self, requests: Mapping[str, Message], timeout: float
    ) -> Iterator[tuple[str, Message | None]]:
        """Send requests, and yield answers as they arrive; None for a site without an answer."""
        if not requests:
            return
        pool = ThreadPoolExecutor(len(requests))
        futures = {pool.submit(self._ask_one, n, r, timeout): n for n, r in requests.items()}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            for name in requests:  # nobody waits any more after Ctrl-C
                stop = self._waiting.pop(name, None)
                if stop is not None:
                    stop.trigger("over")
            pool.shutdown(wait=False)
            _return_memory()

    def _ask_one(self, name: str, request: Message, timeout: float) -> Message | None:
        stop = self._waiting[name] = Signal()
        self._largest[name] = min(largest_body(request.answer_template), self.sites.max_bytes)
        watch = threading.Timer(timeout, lambda: stop.trigger("timeout"))  # for all stages together
        watch.daemon = True
        watch.start()
        try:
            reply = self.cell.send_request(
                channel=_CHANNEL,
                topic=_TOPIC,
                target=name,
                request=new_cell_message({_FIELDS: request.fields_json}, request.body),
                timeout=timeout,
                abort_signal=stop,
            )
            if reply.get_header(_FIELDS) is None:
                return None
            return read_message(reply.get_header(_FIELDS), bytes(reply.payload or b""))
        except RefusalError:
            return Message({"request": None})  # is refused as the answer to another request
        except Exception as error:  # whatever the transport raises, the site has not answered
            log_line(f"{name}: {type(error).__name__} in the transport")
            return None
        finally:
            watch.cancel()
            self.filter.end(name)

    def _limit(self, name: str, request: str) -> int | None:
        """Return how many bytes the answer to an open request may have; None for other requests."""
        waiter = self.cell.requests_dict.get(request)
        return self._largest[name] if waiter is not None and waiter.target == name else None

    def _note(self, is_connected: bool, agent: Any, *_: Any, **__: Any) -> None:
        """Note that a site has connected, or that its connection has ended."""
        name = agent.get_fqcn()
        if name not in self.sites.names:
            if is_connected:
                self._dismiss(name)
            return
        log_line(f"{name} {'connected' if is_connected else 'disconnected'}")
        self.status.change(name, connected=is_connected, since=time.time())
        stop = self._waiting.get(name)
        if stop is not None and not is_connected:
            stop.trigger("gone")

    def _dismiss(self, name: str) -> None:
        """Log at both ends that a site with a valid certificate is no member of this run."""
        self.filter.log_once(
            f"{name[:80]!r} has a valid certificate, but is not in sites.names: it takes no part"
        )
        if self._notices.acquire(blocking=False):
            # in a thread of its own, because this one belongs to the transport
            threading.Thread(target=self._notify, args=[name], daemon=True).start()

    def _notify(self, name: str) -> None:
        try:
            self.cell.send_request(
                channel=_CHANNEL,
                topic=_TOPIC,
                target=name,
                request=new_cell_message({_FIELDS: Message({"kind": _STRANGER}).fields_json}, b""),
                timeout=_STRANGER_TIMEOUT,
            )
        except Exception as error:  # whatever the transport raises
            self.filter.log_once(f"{name[:80]!r} could not be notified ({type(error).__name__})")
        finally:
            self._notices.release()


def serve(
    name: str,
    server: str,
    kit: Path,
    max_bytes: int,
    answer: Callable[[Message], Message],
    largest: int,
) -> None:
    """Answer the server's requests, one at a time in this thread, until the process ends.

    Args:
        name: The name of the site, as in its certificate.
        server: The server, as ``host:port``.
        kit: The folder with the certificates of the site.
        max_bytes: The size of the largest message that the owner of the site accepts.
        answer: Returns the answer to a request.
        largest: The size of the largest request that the configuration allows.
    """
    cell = _create_cell(name, f"grpcs://{server}", kit, "client", max_bytes)
    work: queue.Queue[tuple[Message, Future[Any]]] = queue.Queue()
    is_free = threading.Semaphore()  # one request at a time
    journal = Journal()
    log_connection = partial(journal.log_line, kind="connection")

    def reply(message: Message) -> Any:
        return new_cell_message(
            {Header.RETURN_CODE: ReturnCode.OK, _FIELDS: message.fields_json}, message.body
        )

    def receive(request: Any) -> Any:
        try:
            message = read_message(request.get_header(_FIELDS), bytes(request.payload or b""))
        except RefusalError as error:
            messages.log_once(f"NOT answered: {error}")
            return reply(Message({"code": error.code}))
        if message.fields.get("kind") == _STRANGER:
            log_connection(
                f"{name} is not in sites.names of the server {server}: it is asked nothing until "
                "a run with its name begins"
            )
            return reply(Message({}))
        if not is_free.acquire(blocking=False):
            token = str(message.fields.get("request", ""))[:64]
            return reply(Message({"request": token, "code": "busy"}))
        done: Future[Any] = Future()
        work.put((message, done))
        return done

    def explain() -> str | None:
        host, _, port = server.rpartition(":")
        return explain_silence(host, int(port), find_credentials(kit, "client"))

    silence = Silence(explain, log_connection)

    def join(*_: Any, **__: Any) -> None:
        silence.end()
        log_connection(f"connected to {server}")

    def leave(*_: Any, **__: Any) -> None:
        silence.begin()
        log_connection("the connection has ended")
        messages.end(SERVER)

    limit = min(max_bytes, largest)
    log_refusal = partial(journal.log_line, kind="refused")
    messages = MessageFilter(cell, [SERVER], (_CHANNEL, _TOPIC), lambda *_: limit, log_refusal)
    cell.core_cell.set_cell_connected_cb(join)
    cell.core_cell.set_cell_disconnected_cb(leave)
    cell.register_request_cb(channel=_CHANNEL, topic=_TOPIC, cb=receive)

    def end(number: int, _: object) -> None:
        journal.log_line(f"ended by {signal.Signals(number).name}", "end")
        os._exit(0)  # the threads of the transport would not end; nothing is left to be written

    for number in (signal.SIGTERM, signal.SIGINT):  # Lightning's handlers do not end the process
        signal.signal(number, end)
    log_connection(f"{name} waits for the server {server}")
    silence.begin()
    try:
        cell.start()
        while True:
            message, done = work.get()
            done.set_result(reply(answer(message)))
            is_free.release()
            del message, done
            _return_memory()
    except BaseException:  # its threads would keep the process connected, without an answer
        silence.end()
        traceback.print_exc()
        journal.log_line("ended by an error", "end")
        os._exit(1)
