"""The engine of a QUIC connection without a network: how much is sent at once, and what arrives over a path that loses
and reorders datagrams.
"""

from __future__ import annotations

import random

import pytest
from aioquic import tls
from aioquic.quic import events
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicSentPacket

from tests.transports.support.quic_link import CLIENT, SERVER, SIZE, Path, made_up_rules
from whippet.bench.quic_load import ClientConnection
from whippet.transports.quic_configuration import Rules
from whippet.transports.quic_engine import ACK_DELAY
from whippet.transports.quic_pacing import BURST_DATAGRAMS, Congestion, Pacer


def sent_at_once(pacer: Pacer, now: float, most: int) -> int:
    count = 0
    while count < most and pacer.next_send_time(now) is None:
        pacer.update_after_send(now)
        count += 1
    return count


@pytest.mark.parametrize(
    ("window", "rtt", "expected"),
    [
        pytest.param(1 << 20, 0.05, 14, id="far away"),
        pytest.param(1 << 20, 0.001, 722, id="near by"),
        pytest.param(1 << 25, 0.000_2, 115_000, id="here"),
    ],
)
def test_pacing_is_exact_however_fast_the_path_is(window: int, rtt: float, expected: int) -> None:
    pacer = Pacer(max_datagram_size=SIZE)
    pacer.update_rate(window, rtt)
    sent_at_once(pacer, 1.0, 1_000_000)
    assert sent_at_once(pacer, 1.001, 1_000_000) == pytest.approx(expected, rel=0.2)


def test_a_burst_after_silence_is_limited() -> None:
    pacer = Pacer(max_datagram_size=SIZE)
    pacer.update_rate(20 * SIZE, 0.1)
    assert sent_at_once(pacer, 1.0, 1000) == pytest.approx(BURST_DATAGRAMS, abs=1)
    assert sent_at_once(pacer, 5.0, 1000) == pytest.approx(BURST_DATAGRAMS, abs=1)


def packet(number: int, size: int = SIZE) -> QuicSentPacket:
    return QuicSentPacket(tls.Epoch.ONE_RTT, True, True, False, number, QuicPacketType.ONE_RTT, 1.0, size)


def test_a_congestion_window_grows_only_while_it_is_filled() -> None:
    control = Congestion(max_datagram_size=SIZE)
    first = control.congestion_window
    for number in range(10_000):
        control.on_packet_sent(packet=packet(number))
        control.on_packet_acked(now=2.0, packet=packet(number))
    assert control.congestion_window == first
    for number in range(first // SIZE):
        control.on_packet_sent(packet=packet(number))
    for number in range(first // SIZE):
        control.on_packet_acked(now=2.0, packet=packet(number))
    assert 1.5 * first < control.congestion_window < 2 * first
    assert control.bytes_in_flight == 0


# -------------------------------------------------------------------------------------------- both ends and the path


@pytest.fixture(scope="module")
def rules() -> Rules:
    return made_up_rules()


@pytest.mark.parametrize("client", [QuicConnection, ClientConnection])
@pytest.mark.parametrize("loss", [0.0, 0.15])
@pytest.mark.parametrize("seed", range(4))
def test_requests_and_responses_of_any_size_survive_loss_and_delay(
    rules: Rules, seed: int, loss: float, client: type[QuicConnection]
) -> None:
    """New keys and new addresses of the client make no difference."""
    path = Path(rules, seed, loss, client)
    choose = random.Random(seed)
    sizes = [choose.choice((1, 8, 100, 1_400, 3_000, 70_000)) for _ in range(150)]
    asked = {number * 4: choose.randbytes(size) for number, size in enumerate(sizes)}
    answers = {stream_id: choose.randbytes(choose.choice((0, 8, 16, 1_430, 5_000, 40_000))) for stream_id in asked}
    heard = {end: dict[int, bytearray]() for end in (path.client, path.server)}
    ended = {end: set[int]() for end in (path.client, path.server)}
    waiting = sorted(asked)
    has_new_keys = False

    def hear(end: QuicConnection, event: events.QuicEvent) -> None:
        if isinstance(event, events.HandshakeCompleted) and end is path.server:
            path.server.raise_stream_limit(100)
        if not isinstance(event, events.StreamDataReceived):
            assert not isinstance(event, events.ConnectionTerminated), event
            return
        heard[end].setdefault(event.stream_id, bytearray()).extend(event.data)
        if event.end_stream:
            assert event.stream_id not in ended[end], "a stream ends once"
            ended[end].add(event.stream_id)
            if end is path.server:
                answer = answers[event.stream_id]
                half = choose.choice((0, len(answer) // 2))
                if half:
                    path.server.send_stream_data(event.stream_id, answer[:half])
                path.server.send_stream_data(event.stream_id, answer[half:], end_stream=True)

    for _ in range(100_000):
        while waiting and len(heard[path.client]) + 8 > len(asked) - len(waiting):
            stream_id = waiting.pop(0)
            path.client.send_stream_data(stream_id, asked[stream_id], end_stream=True)
        if path.client._handshake_confirmed:
            if len(ended[path.client]) > len(asked) // 2 and not has_new_keys:
                has_new_keys = True
                path.client.request_key_update()
            if loss and choose.random() < 0.004:
                path.client_address = (CLIENT[0], choose.randrange(1_024, 65_536))
        path.step(hear)
        if len(ended[path.client]) == len(asked):
            break
    assert {number: bytes(found) for number, found in heard[path.server].items()} == asked
    assert {number: bytes(found) for number, found in heard[path.client].items()} == answers
    while path.server.unacknowledged_bytes:
        path.step(hear)
    path.carry(path.server, path.client, SERVER)
    assert not path.server._streams, "what was said is acknowledged in the end, and forgotten"
    assert path.server._local_max_data.used == sum(map(len, asked.values()))


# ---------------------------------------------------------------------------------------------------- acknowledgements


@pytest.fixture
def established(rules: Rules) -> Path:
    """Both ends have nothing more to send."""
    path = Path(rules, 1, 0.0, ClientConnection)
    path.settle()
    return path


def test_a_single_request_is_acknowledged_together_with_its_response(established: Path) -> None:
    path, server = established, established.server
    path.client.send_stream_data(0, b"request", end_stream=True)
    path.deliver_to_server()
    assert server.datagrams_to_send(path.now) == [], "the response may follow"
    path.now += ACK_DELAY / 2
    server.send_stream_data(0, b"response", end_stream=True)
    path.deliver_to_client()
    assert not path.client._space.sent_packets
    assert server._space.ack_at is None


def test_a_single_request_without_a_response_is_acknowledged_a_moment_later(established: Path) -> None:
    path, server = established, established.server
    path.client.send_stream_data(0, b"request", end_stream=True)
    path.deliver_to_server()
    assert server.get_timer() == pytest.approx(path.now + ACK_DELAY)
    path.now += ACK_DELAY
    path.deliver_to_client()
    assert not path.client._space.sent_packets


def test_finished_streams_are_forgotten_at_either_end(established: Path) -> None:
    path, client, server = established, established.client, established.server
    limit, own_limit = server._local_max_streams_bidi.value, client._local_max_streams_bidi.value
    client.send_stream_data(0, b"request", end_stream=True)
    path.deliver_to_server()
    server.send_stream_data(0, b"response", end_stream=True)
    path.deliver_to_client()
    client.acknowledge(path.now)
    path.deliver_to_server()
    for end in (client, server):
        end.discard_streams()
        assert not end._streams
        assert not end._streams_queue
    assert server._local_max_streams_bidi.value == limit + 1
    assert client._local_max_streams_bidi.value == own_limit


def test_two_datagrams_are_acknowledged_at_once(established: Path) -> None:
    path = established
    path.client.send_stream_data(0, bytes(2_000))
    path.deliver_to_server()
    path.deliver_to_client()
    assert not path.client._space.sent_packets


def test_a_datagram_after_a_missing_one_is_acknowledged_at_once(established: Path) -> None:
    path = established
    path.client.send_stream_data(0, b"lost")
    path.client.datagrams_to_send(path.now)
    path.client.send_stream_data(4, b"arrives")
    path.deliver_to_server()
    path.deliver_to_client()
    assert len(path.client._space.sent_packets) == 1


def test_a_large_response_is_acknowledged_in_pieces_and_released(established: Path) -> None:
    path, server = established, established.server
    path.client.send_stream_data(0, b"request", end_stream=True)
    path.deliver_to_server()
    server.send_stream_data(0, bytes(60_000), end_stream=True)
    left = [server.unacknowledged_bytes]
    while server.unacknowledged_bytes:
        path.now += 0.001
        path.deliver_to_client()
        path.client.acknowledge(path.now)
        path.deliver_to_server()
        left.append(server.unacknowledged_bytes)
    assert left == sorted(left, reverse=True)
    assert len(left) > 2
    assert not server._space.ack_eliciting_in_flight
    assert server._loss.bytes_in_flight == 0


def test_a_client_that_has_moved_is_served_by_the_short_paths(
    established: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, server = established, established.server
    path.client_address = ("127.0.0.2", 50_000)
    path.client.send_ping(1)
    path.settle()
    assert server._network_paths[0].addr == path.client_address
    assert len(server._network_paths) == 2
    monkeypatch.setattr(QuicConnection, "receive_datagram", None)
    monkeypatch.setattr(QuicConnection, "datagrams_to_send", None)
    path.client.send_stream_data(0, b"request", end_stream=True)
    path.deliver_to_server()
    server.send_stream_data(0, bytes(10_000), end_stream=True)
    assert {address for _, address in server.datagrams_to_send(path.now)} == {path.client_address}
