"""Acknowledgements of many packets: what they cover is reported once, and the rest stays in flight."""

from __future__ import annotations

import random

import pytest
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.quic.recovery import QuicPacketRecovery, QuicPacketSpace
from aioquic.quic.stream import QuicStreamSender

from whippet.transports.quic_pacing import Congestion
from whippet.transports.quic_packets import Handler, SentPacket, StreamPacket
from whippet.transports.quic_recovery import Recovery

SIZE = 1_000


@pytest.fixture
def recovery() -> Recovery:
    made = QuicPacketRecovery(
        congestion_control_algorithm="reno",
        initial_rtt=0.1,
        max_datagram_size=1_200,
        peer_completed_address_validation=True,
        send_probe=lambda: None,
    )
    made.handshake_confirmed = True
    made.__class__ = Recovery
    made._cc = Congestion(max_datagram_size=1_200)
    assert isinstance(made, Recovery)
    return made


class Sender(QuicStreamSender):
    """Records what was delivered."""

    def __init__(self) -> None:
        super().__init__(0, writable=True)
        self.delivered: list[tuple[str, int, int, bool]] = []

    def on_data_delivery(self, delivery: QuicDeliveryState, start: int, stop: int, fin: bool) -> None:
        self.delivered.append((delivery.name, start, stop, fin))


def send(recovery: Recovery, space: QuicPacketSpace, sender: Sender, numbers: range, last: int = -1) -> None:
    recovery.spaces = [space]
    for number in numbers:
        packet = StreamPacket(number, 1.0, SIZE, sender, number * 10, number * 10 + 10, number == last)
        recovery.on_packet_sent(packet=packet, space=space)  # type: ignore[arg-type]


def acknowledge(recovery: Recovery, space: QuicPacketSpace, *ranges: range, now: float = 1.05) -> None:
    recovery.on_ack_received(ack_rangeset=ranges, ack_delay=0.0, now=now, space=space)


def test_consecutive_data_is_reported_once(recovery: Recovery) -> None:
    space, sender, other = QuicPacketSpace(), Sender(), Sender()
    send(recovery, space, sender, range(5))
    send(recovery, space, other, range(5, 7))
    send(recovery, space, sender, range(7, 9), last=8)
    acknowledge(recovery, space, range(9))
    assert sender.delivered == [("ACKED", 0, 50, False), ("ACKED", 70, 90, True)]
    assert other.delivered == [("ACKED", 50, 70, False)]
    assert (recovery.bytes_in_flight, space.ack_eliciting_in_flight, space.sent_packets) == (0, 0, {})


def test_what_was_acknowledged_before_is_not_reported_again(recovery: Recovery) -> None:
    space, sender = QuicPacketSpace(), Sender()
    send(recovery, space, sender, range(6))
    for _ in range(2):
        acknowledge(recovery, space, range(3))
    acknowledge(recovery, space, range(6))
    assert sender.delivered == [("ACKED", 0, 30, False), ("ACKED", 30, 60, False)]


def test_packets_between_ranges_are_lost_as_in_aioquic(recovery: Recovery) -> None:
    space, sender = QuicPacketSpace(), Sender()
    send(recovery, space, sender, range(10))
    acknowledge(recovery, space, range(2), range(4, 5), range(8, 9))
    assert [each for each in sender.delivered if each[0] == "ACKED"] == [
        ("ACKED", 0, 20, False),
        ("ACKED", 40, 50, False),
        ("ACKED", 80, 90, False),
    ]
    assert [each[1] for each in sender.delivered if each[0] == "LOST"] == [20, 30, 50]
    assert list(space.sent_packets) == [6, 7, 9]
    assert recovery.bytes_in_flight == 3 * SIZE
    assert space.loss_time is not None


def test_frames_of_other_packets_are_reported_in_their_order(recovery: Recovery) -> None:
    space, sender = QuicPacketSpace(), Sender()
    found: list[str] = []
    recovery.spaces = [space]
    send(recovery, space, sender, range(2))
    handlers: list[Handler] = [(lambda delivery, name: found.append(name), ("window",))]
    packet = SentPacket(2, 1.0, SIZE, True, True, handlers)
    recovery.on_packet_sent(packet=packet, space=space)  # type: ignore[arg-type]
    send(recovery, space, sender, range(3, 4))
    acknowledge(recovery, space, range(4))
    assert found == ["window"]
    assert sender.delivered == [("ACKED", 0, 20, False), ("ACKED", 30, 40, False)]


def test_the_round_trip_time_is_that_of_the_largest_packet_if_it_is_new(recovery: Recovery) -> None:
    space, sender = QuicPacketSpace(), Sender()
    send(recovery, space, sender, range(4))
    acknowledge(recovery, space, range(1, 3), now=1.25)
    assert recovery._rtt_smoothed == pytest.approx(0.25)
    acknowledge(recovery, space, range(3), now=1.9)
    assert recovery._rtt_smoothed == pytest.approx(0.25), "the largest was acknowledged before"


def test_estimates_are_those_of_aioquic(recovery: Recovery) -> None:
    choose = random.Random(1)
    plain = QuicPacketRecovery(
        congestion_control_algorithm="reno",
        initial_rtt=0.1,
        max_datagram_size=1_200,
        peer_completed_address_validation=True,
        send_probe=lambda: None,
    )
    spaces = QuicPacketSpace(), QuicPacketSpace()
    for number in range(200):
        elapsed, delay = choose.uniform(0.0, 0.05), choose.uniform(0.0, 0.03)
        for end, space in zip((recovery, plain), spaces, strict=True):
            end.spaces = [space]
            packet = StreamPacket(number, 1.0 + number, SIZE, Sender(), 0, 1, False)
            end.on_packet_sent(packet=packet, space=space)  # type: ignore[arg-type]
            ranges = _Ranges([range(number, number + 1)])
            end.on_ack_received(ack_rangeset=ranges, ack_delay=delay, now=1.0 + number + elapsed, space=space)  # type: ignore[arg-type]
    for name in ("_rtt_latest", "_rtt_min", "_rtt_smoothed", "_rtt_variance"):
        assert getattr(recovery, name) == pytest.approx(getattr(plain, name)), name


class _Ranges(list[range]):
    def bounds(self) -> range:
        return range(self[0].start, self[-1].stop)


def test_the_timer_is_that_of_aioquic(recovery: Recovery) -> None:
    space, sender = QuicPacketSpace(), Sender()
    recovery.spaces = [space]
    assert recovery.detection_time(space) is None
    send(recovery, space, sender, range(10))
    for acknowledged in (range(1), range(2, 3), range(6, 7)):
        acknowledge(recovery, space, acknowledged)
        assert recovery.detection_time(space) == recovery.get_loss_detection_time(amplification_limited=False)
    recovery._pto_count = 3
    space.loss_time = None
    assert recovery.detection_time(space) == recovery.get_loss_detection_time(amplification_limited=False)
