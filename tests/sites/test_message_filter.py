"""Which messages of the transport are let in, and how much memory they can take."""

from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, Encoding, MessagePropKey
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey as Header
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming import stream_const
from nvflare.fuel.f3.streaming.byte_receiver import ByteReceiver, RxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey as Stream

from fedaux_pl.sites.message_filter import CHUNK, MessageFilter

BYE = CellChannel.CELLNET, CellChannelTopic.Bye
ACKNOWLEDGMENT = stream_const.STREAM_CHANNEL, stream_const.STREAM_ACK_TOPIC
DATA = stream_const.STREAM_CHANNEL, stream_const.STREAM_DATA_TOPIC


ROUTE = "return", "fedaux:ask"
LIMIT = 3 * 2**20 + 5


def message(kind, payload=b"", **headers):
    """A message of the member a to the server; by default the only chunk of an empty stream."""
    own = {Header.ORIGIN: "a", Header.DESTINATION: "server"}
    own |= {Header.CHANNEL: kind[0], Header.TOPIC: kind[1]}
    own |= {Stream.CHANNEL: ROUTE[0], Stream.TOPIC: ROUTE[1], Stream.STREAM_REQ_ID: "open"}
    own |= {Stream.STREAM_ID: 1, Stream.SIZE: 0, Stream.SEQUENCE: 0, Stream.DATA_TYPE: 2}
    made = Message({**own, **headers}, payload)
    made.set_prop(MessagePropKey.COMMON_NAME, "a")
    return made


def create_filter(told, limit=lambda peer, request: LIMIT if request == "open" else None):
    core = SimpleNamespace(add_incoming_filter=lambda *_: None)
    cell = SimpleNamespace(core_cell=core, get_fqcn=lambda: "server")
    return MessageFilter(cell, ["a"], ROUTE, limit, told.append)


def check(kind, **headers):
    """Whether the server lets in a message of a member, and what it tells."""
    told = []
    is_let_in = create_filter(told).check(message(kind, **headers)) is None
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


def chunk(number=0, size=LIMIT, stream=1, request="open", **headers):
    """A chunk of a stream, cut as NVFlare cuts it."""
    last = max(0, (size - 1) // CHUNK)
    own = {Stream.SIZE: size, Stream.STREAM_ID: stream, Stream.STREAM_REQ_ID: request}
    own |= {Stream.SEQUENCE: number, Stream.DATA_TYPE: 2 if number == last else 1}
    return message(DATA, bytes(max(0, min(CHUNK, size - number * CHUNK))), **{**own, **headers})


@pytest.fixture
def received():
    """A function that passes messages through a filter into NVFlare; it returns its streams."""
    sent = SimpleNamespace(fire_and_forget=lambda *_, **__: None, register_request_cb=lambda **_: 0)
    sent.my_info = SimpleNamespace(fqcn="server")
    receiver = ByteReceiver(sent)
    buffers = []

    def receive(filter_, *messages):
        for one in messages:
            if filter_.check(one) is None:
                receiver._data_handler(one)
        return [task for (peer, _), task in RxTask.rx_task_map.items() if peer == "a"]

    receiver.register_callback(*ROUTE, lambda future, stream, *_: buffers.append(stream))
    yield receive
    RxTask.rx_task_map.clear()


def test_a_stream_of_the_expected_size_is_let_in_in_any_order(received):
    messages = create_filter([])
    [task] = received(messages, chunk(3), chunk(0), chunk(2), chunk(3), chunk(0))
    assert len(task.chunks) == 1
    assert received(messages, chunk(1)) == []
    assert task.completed
    assert task.received_offset == LIMIT


def test_an_open_request_has_one_stream_of_bounded_size(received):
    told = []
    messages = create_filter(told)
    declared = [chunk(stream=i, **{Stream.SIZE: 2**30}) for i in range(6)]
    assert received(messages, *declared) == []
    assert told == ["refused: a message of 'a' that nobody waits for, or that is too large"]
    [task] = received(messages, *(chunk(stream=i) for i in range(6)))
    assert (task.sid, task.size) == (0, LIMIT)
    assert told[1:] == ["refused: a second stream of 'a' for one request"]


CHANGED = {
    "another size": {Stream.SIZE: LIMIT - 1},
    "another stream": {Stream.STREAM_ID: 2},
    "another request": {Stream.STREAM_REQ_ID: "closed"},
    "another channel": {Stream.CHANNEL: "fedaux"},
    "an end in the middle": {Stream.DATA_TYPE: 2},
    "a number beyond the end": {Stream.SEQUENCE: 10**9},
    "a negative number": {Stream.SEQUENCE: -1},
    "a list for a number": {Stream.SEQUENCE: [1]},
    "a list for a size": {Stream.SIZE: [1]},
    "a list for a stream": {Stream.STREAM_ID: [1]},
    "a list for a request": {Stream.STREAM_REQ_ID: [1]},
    "no size": {Stream.SIZE: None},
}


@pytest.mark.parametrize("case", CHANGED)
def test_chunks_whose_headers_change_are_refused(case, received):
    told = []
    messages = create_filter(told)
    [task] = received(messages, chunk(0), chunk(1, **CHANGED[case]))
    assert (len(task.chunks), task.out_seq_chunks) == (1, {})
    assert len(told) == 1


@pytest.mark.parametrize("payload", [b"", b"x", bytes(CHUNK - 1), bytes(16 * CHUNK)])
def test_chunks_of_another_length_are_refused(payload, received):
    short = chunk(1)
    short.payload = payload
    [task] = received(create_filter([]), chunk(0), short)
    assert (len(task.chunks), task.out_seq_chunks) == (1, {})


def test_what_has_come_is_freed_when_the_request_ends(received):
    messages = create_filter([])
    hints = {Stream.RELIABLE: True, Stream.RETRY_TIMEOUT: 3000, Stream.RETRY_WAIT: 500}
    [task] = received(messages, chunk(0, **hints), chunk(2, **hints))
    assert task.completed_task_ttl < 100  # a peer does not choose for how long it is kept
    messages.end("a")
    assert (len(task.chunks), task.out_seq_chunks, RxTask.rx_task_map) == (0, {}, {})
    assert task.failed  # whoever reads it ends
    assert received(messages, chunk(1)) == []  # late


def test_the_next_request_replaces_what_is_left_of_the_last_one(received):
    messages = create_filter([], limit=lambda peer, request: LIMIT)  # as at a site
    for number in range(5):
        [task] = received(messages, *(chunk(i, stream=number, request=f"{number}") for i in (0, 2)))
        assert task.sid == number
        late = chunk(1, stream=number - 1, request=f"{number - 1}")
        assert number == 0 or received(messages, late) == [task]


def test_a_flood_of_refusals_does_not_hide_later_ones_completely():
    told = []
    messages = create_filter(told)
    for number in range(3000):
        messages.check(message(DATA, **{Header.ORIGIN: f"x{number}"}))
        messages.check(message(DATA, **{Header.ORIGIN: "x0"}))  # told once
    assert len(told) == 1000 + 2
    assert told[-1] == "refused: a message of 'x2047', which is no member (2,048 such lines)"
