"""Which messages of the transport are let in."""

from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, Encoding, MessagePropKey
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey as Header
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming import stream_const
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey as Stream

from fedaux_pl.sites.message_filter import MessageFilter

BYE = CellChannel.CELLNET, CellChannelTopic.Bye
ACKNOWLEDGMENT = stream_const.STREAM_CHANNEL, stream_const.STREAM_ACK_TOPIC
DATA = stream_const.STREAM_CHANNEL, stream_const.STREAM_DATA_TOPIC


def check(kind, **headers):
    """Whether the server lets in a message of a member, and what it tells."""
    told = []
    core = SimpleNamespace(add_incoming_filter=lambda *_: None)
    cell = SimpleNamespace(core_cell=core, get_fqcn=lambda: "server")
    own = {Header.ORIGIN: "a", Header.DESTINATION: "server"}
    own |= {Header.CHANNEL: kind[0], Header.TOPIC: kind[1]}
    message = Message({**own, **headers}, b"")
    message.set_prop(MessagePropKey.COMMON_NAME, "a")
    is_let_in = MessageFilter(cell, ["a"], lambda _: True, told.append).check(message) is None
    return is_let_in, " ".join(told)


@pytest.mark.parametrize("kind", [BYE, ACKNOWLEDGMENT, DATA])
def test_bytes_are_let_in_and_objects_are_not(kind):
    assert check(kind, **{Header.PAYLOAD_ENCODING: Encoding.BYTES}) == (True, "")
    for key in (Header.PAYLOAD_ENCODING, Stream.PAYLOAD_ENCODING):  # NVFlare decodes by either
        is_let_in, told = check(kind, **{key: Encoding.FOBS})
        assert not is_let_in
        assert "objects of 'a'" in told


@pytest.mark.parametrize("kind", [BYE, ACKNOWLEDGMENT, DATA])
def test_nobody_is_told_where_to_connect(kind):
    is_let_in, told = check(kind, **{Header.CONN_URL: "grpc://elsewhere:1"})
    assert not is_let_in
    assert "an address to connect to" in told
