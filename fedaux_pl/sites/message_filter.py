"""Which messages of NVFlare's transport are let in: those of members, asked for, in bytes."""

from collections.abc import Callable, Mapping
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
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey as Stream

SERVER = "server"
"""The name of the server on the transport."""


class MessageFilter:
    """Decides which messages of NVFlare are let in; the others are dropped and told.

    Args:
        cell: The cell.
        peers: The names that may speak to it.
        wanted: Whether a stream with these headers was asked for.
        tell: Prints a line.
    """

    def __init__(
        self,
        cell: Any,
        peers: list[str],
        wanted: Callable[[Mapping[str, Any]], bool],
        tell: Callable[[str], None],
    ) -> None:
        self.name, self.peers, self.wanted, self.tell = cell.get_fqcn(), peers, wanted, tell
        self._told: set[str] = set()
        cell.core_cell.add_incoming_filter("*", "*", self.check)

    def check(self, message: Any) -> Any:
        """None lets a message in; a reply ends it here."""
        problem = self._problem(message)
        if problem is None:
            return None
        if problem not in self._told and len(self._told) < 1000:  # once each: a flood fills no disk
            self._told.add(problem)
            self.tell(f"refused: {problem}")
        return make_reply(ReturnCode.UNAUTHENTICATED)

    def _problem(self, message: Any) -> str | None:
        origin, headers = message.get_header(Header.ORIGIN), message.headers
        owner = message.get_prop(MessagePropKey.COMMON_NAME)
        if origin not in self.peers:
            return f"a message of {str(origin)[:80]!r}, which is no member"
        if self.name == SERVER and origin != owner:
            return f"a message in the name of {origin!r} by {str(owner)[:80]!r}"
        if headers.get(Header.DESTINATION) != self.name:
            return f"a message of {origin!r} for somebody else"
        # NVFlare decodes objects of any message, and connects to an address that one names
        if Encoding.FOBS in (
            headers.get(Header.PAYLOAD_ENCODING),
            headers.get(Stream.PAYLOAD_ENCODING),
        ):
            return f"objects of {origin!r} where bytes are allowed only"
        if headers.get(Header.CONN_URL):
            return f"a message of {origin!r} that names an address to connect to"
        kind = headers.get(Header.CHANNEL), headers.get(Header.TOPIC)
        if kind == (CellChannel.CELLNET, CellChannelTopic.Bye):
            return None
        if kind[0] != stream_const.STREAM_CHANNEL:
            return f"a message of {origin!r} on another channel"
        if kind[1] != stream_const.STREAM_DATA_TOPIC:
            return None  # acknowledgments and errors of streams, without content
        if not self.wanted(headers):  # every chunk of a stream has these headers
            return f"a message of {origin!r} that nobody waits for, or too large"
        return None
