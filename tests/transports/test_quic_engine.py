"""The engine of a QUIC connection without a network: how much is sent at once, and what arrives over a path that loses
and reorders datagrams.
"""

from __future__ import annotations

import heapq
import random
import ssl
from collections.abc import Callable

import pytest
from aioquic import tls
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicSentPacket

from whippet.bench.quic_unpaced import unpace
from whippet.transports.certificates import self_signed
from whippet.transports.datagrams import PeerAddress
from whippet.transports.quic_configuration import Rules, configuration
from whippet.transports.quic_engine import Engine
from whippet.transports.quic_pacing import BURST_DATAGRAMS, Congestion, Pacer
from whippet.transports.quic_receiving import ReceivingConnection
from whippet.transports.quic_sending import SendingConnection

SIZE = 1452
CLIENT, SERVER = ("127.0.0.1", 40_000), ("127.0.0.1", 3_000)


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


class Path:
    """Datagrams of both ends, of which some are lost, some arrive twice, and some late."""

    def __init__(self, rules: Rules, seed: int, loss: float, client: type[QuicConnection] = QuicConnection) -> None:
        self.random, self.loss, self.now = random.Random(seed), loss, 1.0
        settings = QuicConfiguration(verify_mode=ssl.CERT_NONE, server_name="localhost", max_datagram_size=SIZE)
        self.client = client(configuration=settings)
        self.client_address = CLIENT
        unpace(self.client)
        self.server = Engine(rules, self.client.original_destination_connection_id, None)
        self.client.connect(SERVER, now=self.now)
        self.under_way: list[tuple[float, int, QuicConnection, bytes, PeerAddress]] = []
        self.sent = 0

    def carry(self, end: QuicConnection, other: QuicConnection, back: PeerAddress) -> None:
        if not end._network_paths:
            # No client has connected yet.
            return
        for datagram, _ in end.datagrams_to_send(self.now):
            for _ in range(2 if self.random.random() < self.loss / 4 else 1):
                self.sent += 1
                if self.random.random() >= self.loss:
                    arrives = self.now + self.random.choice((0.001, 0.001, 0.004))
                    heapq.heappush(self.under_way, (arrives, self.sent, other, datagram, back))

    def arrive(self) -> None:
        """Delivers what is due; what arrives together at one end, and from one address, is one run."""
        while self.under_way and self.under_way[0][0] <= self.now:
            _, _, end, datagram, back = heapq.heappop(self.under_way)
            run = [datagram]
            while self.under_way and self.under_way[0][0] <= self.now and self.under_way[0][2::2] == (end, back):
                run.append(heapq.heappop(self.under_way)[3])
            if isinstance(end, ReceivingConnection):
                end.receive_datagrams(run, back, self.now)
            else:
                for each in run:
                    end.receive_datagram(each, back, self.now)

    def step(self, hear: Callable[[QuicConnection, events.QuicEvent], None]) -> None:
        """Advances to the next event on either side."""
        self.carry(self.client, self.server, self.client_address)
        self.carry(self.server, self.client, SERVER)
        timers = [at for end in (self.client, self.server) if (at := end.get_timer()) is not None]
        # Timers are always slightly late.
        self.now = max(min([*timers, *(each[0] for each in self.under_way[:1])]), self.now) + 1e-6
        self.arrive()
        for end in (self.client, self.server):
            if (at := end.get_timer()) is not None and at <= self.now:
                end.handle_timer(self.now)
            while (event := end.next_event()) is not None:
                hear(end, event)


@pytest.fixture(scope="module")
def rules() -> Rules:
    settings = configuration(60.0, 1 << 20, 1 << 16)
    self_signed().put_on(settings)
    return Rules(settings, SIZE, SIZE, 1 << 20, 1 << 16, b"key", ())


@pytest.mark.parametrize("client", [QuicConnection, SendingConnection])
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
