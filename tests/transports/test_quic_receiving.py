"""Runs of datagrams: the usual packets are read in bulk; whatever is unusual among them is handled as by aioquic."""

from __future__ import annotations

import pytest
from aioquic.quic import events
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicErrorCode
from aioquic.quic.recovery import MAX_ACK_RANGES, QuicPacketSpace

from tests.transports.support.quic_link import CLIENT, SIZE, Path, made_up_rules
from whippet.bench.quic_load import ClientConnection
from whippet.transports.quic_configuration import UNAUTHENTICATED_STREAMS, Rules
from whippet.transports.quic_packets import PacketWriter, encode_varint, first_byte
from whippet.transports.quic_receiving import ReceivedNumbers

STREAM, FIN, LENGTH, OFFSET = 0x08, 1, 2, 4
PING, UNKNOWN = b"\x01", b"\x3f"


@pytest.fixture(scope="module")
def rules() -> Rules:
    return made_up_rules()


@pytest.fixture
def path(rules: Rules) -> Path:
    made = Path(rules, 1, 0.0, ClientConnection)
    made.settle()
    return made


def stream(stream_id: int, offset: int, data: bytes, *, fin: bool = False) -> bytes:
    head = bytes([STREAM | LENGTH | OFFSET | fin]) + encode_varint(stream_id) + encode_varint(offset)
    return head + encode_varint(len(data)) + data


def packets(path: Path, *payloads: bytes) -> list[bytes]:
    """Datagrams of the client with these frames."""
    client = path.client
    writer = PacketWriter(client._keys.send, client._peer_cid.cid, SIZE)
    writer.begin(client._packet_number, first_byte(spin_bit=False, key_phase=client._keys.recv.key_phase))
    for payload in payloads:
        writer.begin_packet(SIZE)
        writer.add(payload, b"", lambda *_: None, ())
        writer.end_packet(path.now)
    client._packet_number = writer.packet_number
    return writer.finish()


def receive(path: Path, datagrams: list[bytes]) -> list[events.QuicEvent]:
    path.server.receive_datagrams(datagrams, CLIENT, path.now)
    found = []
    while (event := path.server.next_event()) is not None:
        found.append(event)
    return found


def data_of(found: list[events.QuicEvent]) -> list[tuple[int, bytes, bool]]:
    return [
        (event.stream_id, event.data, event.end_stream)
        for event in found
        if isinstance(event, events.StreamDataReceived)
    ]


def test_consecutive_data_of_a_stream_is_one_event(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receive(path, packets(path, stream(0, 0, b"a"), stream(4, 0, b"b")))
    monkeypatch.setattr(QuicConnection, "receive_datagram", None)
    monkeypatch.setattr(QuicConnection, "_payload_received", None)
    run = packets(path, stream(0, 1, b"c"), stream(0, 2, b"d") + stream(4, 1, b"e"), stream(0, 3, b"f", fin=True))
    assert data_of(receive(path, run)) == [(0, b"cd", False), (4, b"e", False), (0, b"f", True)]


def test_a_whole_request_in_one_frame_takes_the_short_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuicConnection, "_payload_received", None)
    whole = b"\x09\x00request"
    assert data_of(receive(path, packets(path, whole))) == [(0, b"request", True)]
    assert path.server._local_max_streams_bidi.used == 1
    assert path.server._local_max_data.used == len(b"request")


def test_other_frames_may_stand_anywhere(path: Path) -> None:
    run = packets(path, PING, stream(0, 0, b"a") + PING + stream(0, 1, b"b"), b"\0\0\0" + stream(0, 2, b"c") + bytes(9))
    assert data_of(receive(path, run)) == [(0, b"a", False), (0, b"b", False), (0, b"c", False)]
    assert path.server._space.ack_at is not None


def test_gaps_are_filled_in_any_order(path: Path) -> None:
    first, second, third, last = packets(
        path, stream(0, 0, b"a"), stream(0, 1, b"b"), stream(0, 2, b"c"), stream(0, 3, b"d", fin=True)
    )
    assert b"".join(data for _, data, _ in data_of(receive(path, [first, last, third, second]))) == b"abcd"
    assert len(path.server._space.ack_queue) == 1


def test_what_arrives_twice_counts_once(path: Path) -> None:
    run = packets(path, stream(0, 0, b"a"), stream(0, 1, b"b"), stream(0, 2, b"c"))
    found = data_of(receive(path, [run[0], run[1], run[1], run[0], run[2]]))
    assert b"".join(data for _, data, _ in found) == b"abc"
    assert receive(path, run) == []
    assert path.server._local_max_data.used == 3


def test_a_datagram_that_was_changed_does_not_affect_the_others(path: Path) -> None:
    run = packets(path, *(stream(0, number, b"%d" % number) for number in range(4)))
    for at in (1, 12, len(run[1]) - 1):
        changed = bytearray(run[1])
        changed[at] ^= 0x40
        run.insert(1, bytes(changed))
    found = receive(path, [*run[:1], b"", b"\x40", b"\xc0" + bytes(60), *run[1:]])
    assert b"".join(data for _, data, _ in data_of(found)) == b"0123"


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (UNKNOWN, QuicErrorCode.FRAME_ENCODING_ERROR),
        (b"\x0e\x00\x40", QuicErrorCode.FRAME_ENCODING_ERROR),
        (b"\x0a\x00\x0aabc", QuicErrorCode.FRAME_ENCODING_ERROR),
        (b"\x02\x05\x00\x00\x09", QuicErrorCode.FRAME_ENCODING_ERROR),
        (b"\x02\x05", QuicErrorCode.FRAME_ENCODING_ERROR),
        (stream(0, 1 << 20, b"a"), QuicErrorCode.FLOW_CONTROL_ERROR),
        (stream(4 * UNAUTHENTICATED_STREAMS, 0, b"a", fin=True), QuicErrorCode.STREAM_LIMIT_ERROR),
        (stream(3, 0, b"a"), QuicErrorCode.STREAM_STATE_ERROR),
        (stream(0, 0, b"a", fin=True) + stream(0, 1, b"b"), QuicErrorCode.FINAL_SIZE_ERROR),
    ],
)
def test_a_frame_that_is_invalid_closes_the_connection_as_in_aioquic(
    path: Path, payload: bytes, code: QuicErrorCode
) -> None:
    found = receive(path, packets(path, stream(8, 0, b"before"), payload))
    assert data_of(found)[0] == (8, b"before", False)
    path.server.datagrams_to_send(path.now)
    closed = path.server._close_event
    assert closed is not None
    assert closed.error_code == code


def test_a_packet_without_frames_closes_the_connection(path: Path) -> None:
    client, number = path.client, path.client._packet_number
    header = b"\x43" + client._peer_cid.cid + number.to_bytes(4, "big")
    receive(path, [client._keys.encrypt_packet(header, b"", number)])
    assert path.server._close_event is not None
    assert path.server._close_event.error_code == QuicErrorCode.PROTOCOL_VIOLATION


def test_a_close_after_data_in_one_run_ends_the_connection_as_soon_as_alone(path: Path) -> None:
    client = path.client
    run = packets(path, stream(0, 0, b"a"))
    client.close()
    run += [datagram for datagram, _ in client.datagrams_to_send(path.now)]
    assert data_of(receive(path, run)) == [(0, b"a", False)]
    assert path.server.is_over
    timer = path.server.get_timer()
    assert timer is not None
    assert timer <= path.now + 3 * path.server._loss.get_probe_timeout()


def test_new_keys_in_the_middle_of_a_run_are_used_from_there_on(path: Path) -> None:
    before = packets(path, stream(0, 0, b"a"))
    path.client.request_key_update()
    path.client.send_stream_data(4, b"first with new keys")
    during = [datagram for datagram, _ in path.client.datagrams_to_send(path.now)]
    assert path.client._keys.recv.key_phase == 1
    after = packets(path, stream(0, 1, b"b"), stream(0, 2, b"c", fin=True))
    found = data_of(receive(path, before + during + after))
    assert found == [(0, b"a", False), (4, b"first with new keys", False), (0, b"bc", True)]
    path.deliver_to_client()
    assert path.server._keys.send.key_phase == 1


def test_datagrams_of_another_connection_id_or_address_are_left_to_aioquic(path: Path) -> None:
    run = packets(path, stream(0, 0, b"a"), stream(0, 1, b"b"))
    strange = run[0][:1] + bytes(8) + run[0][9:]
    path.server.receive_datagrams([strange, run[0]], ("127.0.0.9", 9), path.now)
    assert path.server._network_paths[0].addr == ("127.0.0.9", 9)
    assert data_of(receive(path, [run[1]]))[-1][1].endswith(b"b")


# ---------------------------------------------------------------------------------------------------- packet numbers


def test_numbers_are_recorded_in_runs_and_old_ranges_are_dropped() -> None:
    space = QuicPacketSpace()
    for start in range(0, 400, 4):
        numbers = ReceivedNumbers(space, 1.0)
        for number in (start, start + 1):
            assert not numbers.has(number)
            numbers.add(number)
            assert numbers.has(number)
        assert numbers.commit()
    assert len(space.ack_queue) == MAX_ACK_RANGES
    assert space.largest_received_packet == 397
    assert 397 in space.received_packets
    assert 398 not in space.received_packets
    assert 3 in space.received_packets, "too old to tell"
    assert not ReceivedNumbers(space, 1.0).commit()
