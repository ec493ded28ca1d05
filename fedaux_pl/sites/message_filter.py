"""Which messages of NVFlare's transport are let in: those of members, asked for, in bytes."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    CellChannelTopic,
    Encoding,
    MessagePropKey,
    ReturnCode,
)
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey as Header
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.streaming import stream_const
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.stream_const import StreamDataType
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey as Stream
from nvflare.fuel.f3.streaming.stream_types import StreamError

from fedaux_pl.sites.journal import is_printed

SERVER = "server"  # its name on the transport
CHUNK = 2**20  # the bytes of a stream in one message; only the last one may be shorter
_LINES = 1000  # that are printed each
# for how long the transport keeps what a peer has sent, and how much of it: its own choice
_HINTS = (
    Stream.RETRY_TIMEOUT,
    Stream.RETRY_WAIT,
    Stream.CHUNK_SIZE,
    Stream.WINDOW_SIZE,
    Stream.ACK_INTERVAL,
)


class MessageFilter:
    """Decides which messages of NVFlare are let in; the others are dropped, with a line.

    A message is a stream of chunks. NVFlare allocates the size that a stream declares at its first
    chunk, and keeps what has come of a stream that never ends. Therefore a request has one stream,
    a peer one request at a time, and a stream no more bytes than are expected.

    ``peers`` may speak to the cell, ``route`` is the channel and the topic of the streams, and
    ``limit`` returns the bytes of a peer's stream for a request; None if nobody waits for it.
    """

    def __init__(
        self,
        cell: Any,
        peers: list[str],
        route: tuple[str, str],
        limit: Callable[[str, str], int | None],
        log_line: Callable[[str], None],
    ) -> None:
        self.name = cell.get_fqcn()
        self.peers = peers
        self.route = route
        self.limit = limit
        self.log_line = log_line
        self._printed: set[str] = set()
        self._lines = 0
        self._lock = threading.Lock()
        self._streams: dict[str, tuple[str, int, int]] = {}  # request, stream and size, by peer
        self._over: deque[str] = deque(maxlen=100)  # requests whose streams are freed
        cell.core_cell.add_incoming_filter("*", "*", self.check)

    def check(self, message: Any) -> Any:
        """Return None to let a message in, or a reply that ends it here."""
        problem = self._problem(message)
        if problem is None:
            return None
        self.log_once(f"refused: {problem}")
        return make_reply(ReturnCode.UNAUTHENTICATED)

    def log_once(self, text: str) -> None:
        """Print a line once; of more than 1000 lines the 1024th, 2048th and so on.

        A flood fills no disk, and hides no later refusal completely.
        """
        if text in self._printed:
            return
        self._lines += 1
        if self._lines <= _LINES:
            self._printed.add(text)
            self.log_line(text)
        elif is_printed(self._lines, _LINES):
            self.log_line(f"{text} ({self._lines:,} such lines)")

    def end(self, peer: str) -> None:
        """Free what has come of a peer's streams: its request is over, or its connection."""
        with self._lock:
            stream = self._streams.pop(peer, None)
            if stream is not None:
                self._over.append(stream[0])
            _free(peer)

    def _problem(self, message: Any) -> str | None:
        headers = message.headers
        origin = headers.get(Header.ORIGIN)
        owner = message.get_prop(MessagePropKey.COMMON_NAME)
        if origin not in self.peers:
            return f"a message of {str(origin)[:80]!r}, which is no member"
        if self.name == SERVER and origin != owner:
            return f"a message in the name of {origin!r} by {str(owner)[:80]!r}"
        if headers.get(Header.DESTINATION) != self.name:
            return f"a message of {origin!r} for somebody else"
        # NVFlare decodes objects of any message, and connects to an address that one names
        encodings = (Header.PAYLOAD_ENCODING, Stream.PAYLOAD_ENCODING)
        if Encoding.FOBS in map(headers.get, encodings):
            return f"objects of {origin!r} where bytes are allowed only"
        if headers.get(Header.CONN_URL):
            return f"a message of {origin!r} that names an address to connect to"
        channel = headers.get(Header.CHANNEL)
        topic = headers.get(Header.TOPIC)
        if (channel, topic) == (CellChannel.CELLNET, CellChannelTopic.Bye):
            return None
        if channel != stream_const.STREAM_CHANNEL:
            return f"a message of {origin!r} on another channel"
        if topic != stream_const.STREAM_DATA_TOPIC:
            return None  # acknowledgments and errors of streams, without content
        return self._stream_problem(str(origin), message)

    def _stream_problem(self, origin: str, message: Any) -> str | None:
        """Check a chunk; every chunk has the headers of its stream."""
        headers = message.headers
        request = headers.get(Stream.STREAM_REQ_ID)
        stream = headers.get(Stream.STREAM_ID)
        size = headers.get(Stream.SIZE)
        number = headers.get(Stream.SEQUENCE)
        is_plain = isinstance(request, str) and len(request) <= 64
        is_plain &= all(type(value) is int for value in (stream, size, number))
        route = headers.get(Stream.CHANNEL), headers.get(Stream.TOPIC)
        limit = self.limit(origin, request) if is_plain and route == self.route else None
        if limit is None or not 0 <= size <= limit:
            return f"a message of {origin!r} that nobody waits for, or too large"
        last = max(0, (size - 1) // CHUNK)
        is_last = headers.get(Stream.DATA_TYPE) == StreamDataType.FINAL
        length = min(CHUNK, size - number * CHUNK) if number in range(last + 1) else -1
        if len(message.payload or b"") != length or is_last != (number == last):
            return f"a stream of {origin!r} with other chunks than it declares"
        with self._lock:
            current = self._streams.get(origin)
            if current != (request, stream, size):
                if request in self._over or (current is not None and current[0] == request):
                    return f"a second stream of {origin!r} for one request"
                if current is not None:
                    self._over.append(current[0])
                self._streams[origin] = request, stream, size
                _free(origin, but=stream)
        for hint in _HINTS:
            headers.pop(hint, None)
        return None


def _free(peer: str, but: int | None = None) -> None:
    """End the streams of a peer except one, and free what has come of them."""
    with RxTask.map_lock:
        ids = [key for key in RxTask.rx_task_map if key[0] == peer and key[1] != but]
        tasks = [RxTask.rx_task_map.pop(key) for key in ids]
    for task in tasks:
        if not task.eos:  # somebody still reads it
            task.stop(StreamError("nobody waits for it any more"), notify=False)
        with task.lock:
            task.chunks.clear()
            task.out_seq_chunks.clear()
