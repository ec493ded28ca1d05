"""Which messages of NVFlare's transport are let in: only bytes that a member was asked for."""

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

SERVER = "server"
"""The name of the server on the transport."""
CHUNK = 2**20
"""The number of bytes of a stream in one message; only the last message may have fewer."""
_LINES = 1000  # how many lines are printed in any case
# headers by which a peer would choose how long and how much the transport keeps of its streams
_HINTS = (
    Stream.RETRY_TIMEOUT,
    Stream.RETRY_WAIT,
    Stream.CHUNK_SIZE,
    Stream.WINDOW_SIZE,
    Stream.ACK_INTERVAL,
)


class MessageFilter:
    """Decides which messages of NVFlare are let in, and logs those that are dropped.

    A message is a stream of chunks. At the first chunk NVFlare allocates the size that the stream
    declares, and it keeps the chunks of a stream that never ends. Therefore a request can have only
    one stream, a peer only one request at a time, and a stream no more bytes than are expected.

    Args:
        cell: The cell of NVFlare whose messages are filtered.
        peers: The names of those that may send messages to the cell.
        route: The channel and the topic of the streams.
        limit: Returns how many bytes the stream of a peer for a request may have, given both; None
            if nobody waits for this stream.
        log_line: Prints a line.
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
        self._streams: dict[str, tuple[str, int, int]] = {}  # by peer: request, stream and size
        self._finished: deque[str] = deque(maxlen=100)  # requests whose streams are freed
        cell.core_cell.add_incoming_filter("*", "*", self.check)

    def check(self, message: Any) -> Any:
        """Return None to let a message in, or a reply that drops it."""
        problem = self._problem(message)
        if problem is None:
            return None
        self.log_once(f"refused: {problem}")
        return make_reply(ReturnCode.UNAUTHENTICATED)

    def log_once(self, text: str) -> None:
        """Print a line only once; after 1000 lines print the 1024th, the 2048th and so on.

        So a flood of messages cannot fill a disk, and cannot hide all later refusals.
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
        """Free the streams of a peer, because its request or its connection has ended."""
        with self._lock:
            stream = self._streams.pop(peer, None)
            if stream is not None:
                self._finished.append(stream[0])
            _free(peer)

    def _problem(self, message: Any) -> str | None:
        """Return why a message is dropped; None if it is let in."""
        headers = message.headers
        origin = headers.get(Header.ORIGIN)
        owner = message.get_prop(MessagePropKey.COMMON_NAME)
        if origin not in self.peers:
            return f"a message of {str(origin)[:80]!r}, which is no member"
        if self.name == SERVER and origin != owner:
            return f"a message in the name of {origin!r} by {str(owner)[:80]!r}"
        if headers.get(Header.DESTINATION) != self.name:
            return f"a message of {origin!r} for another member"
        # NVFlare would decode objects in any message, and connect to an address that it names
        encodings = (Header.PAYLOAD_ENCODING, Stream.PAYLOAD_ENCODING)
        if Encoding.FOBS in map(headers.get, encodings):
            return f"objects of {origin!r} where only bytes are allowed"
        if headers.get(Header.CONN_URL):
            return f"a message of {origin!r} that names an address to connect to"
        channel = headers.get(Header.CHANNEL)
        topic = headers.get(Header.TOPIC)
        if (channel, topic) == (CellChannel.CELLNET, CellChannelTopic.Bye):
            return None
        if channel != stream_const.STREAM_CHANNEL:
            return f"a message of {origin!r} on another channel"
        if topic != stream_const.STREAM_DATA_TOPIC:
            return None  # acknowledgments and errors of streams, which have no content
        return self._stream_problem(str(origin), message)

    def _stream_problem(self, origin: str, message: Any) -> str | None:
        """Return why a chunk is dropped; every chunk repeats the headers of its stream."""
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
            return f"a message of {origin!r} that nobody waits for, or that is too large"
        last = max(0, (size - 1) // CHUNK)
        is_last = headers.get(Stream.DATA_TYPE) == StreamDataType.FINAL
        length = min(CHUNK, size - number * CHUNK) if number in range(last + 1) else -1
        if len(message.payload or b"") != length or is_last != (number == last):
            return f"a stream of {origin!r} with other chunks than it declares"
        with self._lock:
            current = self._streams.get(origin)
            if current != (request, stream, size):
                if request in self._finished or (current is not None and current[0] == request):
                    return f"a second stream of {origin!r} for one request"
                if current is not None:
                    self._finished.append(current[0])
                self._streams[origin] = request, stream, size
                _free(origin, but=stream)
        for hint in _HINTS:
            headers.pop(hint, None)
        return None


def _free(peer: str, but: int | None = None) -> None:
    """End the streams of a peer except the stream ``but``, and free their chunks."""
    with RxTask.map_lock:
        ids = [key for key in RxTask.rx_task_map if key[0] == peer and key[1] != but]
        tasks = [RxTask.rx_task_map.pop(key) for key in ids]
    for task in tasks:
        if not task.eos:  # a thread still reads it
            task.stop(StreamError("nobody waits for it any more"), notify=False)
        with task.lock:
            task.chunks.clear()
            task.out_seq_chunks.clear()
