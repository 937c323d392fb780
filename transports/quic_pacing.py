"""How fast QUIC sends: aioquic's congestion control and pacer, corrected where fast paths are concerned.

aioquic's window grows whether or not it is used, and its pacer sends fewer datagrams at a time the faster a path is.
The classes here override its internals; tests/transports/test_aioquic_internals.py fails when those change.
"""

from __future__ import annotations

from aioquic.quic.congestion.base import K_INITIAL_WINDOW
from aioquic.quic.congestion.reno import RenoCongestionControl
from aioquic.quic.packet_builder import QuicSentPacket
from aioquic.quic.recovery import QuicPacketPacer

PACED_SECONDS = 0.002
"""At least what is due in this time may be sent at once: timers are no finer than half of it."""
BURST_DATAGRAMS = K_INITIAL_WINDOW
USED_PART = 4
"""A congestion window grows only while at least one part in so many of it is in flight."""


class Congestion(RenoCongestionControl):
    """A window that grows only as far as it is used: one that was never filled tells nothing about the path."""

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        window, is_used = self.congestion_window, self.bytes_in_flight * USED_PART >= self.congestion_window
        super().on_packet_acked(now=now, packet=packet)
        if not is_used:
            self.congestion_window = window


class Pacer(QuicPacketPacer):
    """aioquic's pacer has a bucket that holds at most 16 datagrams, and fewer than one where a path is so fast that
    they take less than a microsecond: with timers of a millisecond, that is a bound of 23 MB/s, later of 1 MB/s."""

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        seconds_per_byte = max(smoothed_rtt, 1e-6) / congestion_window
        datagram_seconds = self._max_datagram_size * seconds_per_byte
        self.packet_time = min(datagram_seconds, 1.0)
        self.bucket_max = max(BURST_DATAGRAMS * datagram_seconds, PACED_SECONDS)
        self.bucket_time = min(self.bucket_time, self.bucket_max)
