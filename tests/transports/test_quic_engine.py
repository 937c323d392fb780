"""How much is sent at once over QUIC, without a network: numbers in, numbers out."""

from __future__ import annotations

import pytest
from aioquic import tls
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicSentPacket

from transports.quic_engine import BURST_DATAGRAMS, Congestion, Pacer

SIZE = 1452


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
def test_in_a_millisecond_comes_what_is_due_in_one_however_fast_the_path_is(
    window: int, rtt: float, expected: int
) -> None:
    pacer = Pacer(max_datagram_size=SIZE)
    pacer.update_rate(window, rtt)
    sent_at_once(pacer, 1.0, 1_000_000)
    assert sent_at_once(pacer, 1.001, 1_000_000) == pytest.approx(expected, rel=0.2)


def test_who_was_silent_may_send_a_burst_and_no_more() -> None:
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
