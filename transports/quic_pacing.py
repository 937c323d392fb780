"""The sending rate of QUIC: aioquic's congestion control and pacer, corrected for fast paths.

aioquic's window grows whether or not it is used, and its pacer sends fewer datagrams at a time the faster a path is.
The classes here override its internals; tests/transports/test_aioquic_internals.py fails when those change.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import maxsize

from aioquic.quic.congestion.base import K_INITIAL_WINDOW
from aioquic.quic.congestion.reno import RenoCongestionControl
from aioquic.quic.packet_builder import QuicSentPacket
from aioquic.quic.recovery import QuicPacketPacer

PACED_SECONDS = 0.002
"""What is due within this time may be sent at once: timers are not much more precise."""
BURST_DATAGRAMS = K_INITIAL_WINDOW
USED_PART = 4
"""A congestion window grows only while at least a quarter of it is in flight."""


class Congestion(RenoCongestionControl):
    """A window that grows only while it is used: one that was never filled says nothing about the path."""

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        window, is_used = self.congestion_window, self.bytes_in_flight * USED_PART >= self.congestion_window
        super().on_packet_acked(now=now, packet=packet)
        if not is_used:
            self.congestion_window = window

    def on_packets_acked(self, *, now: float, packets: Sequence[QuicSentPacket]) -> int:
        """The same for packets that are acknowledged together: what was in flight until then decides. Returns how many
        of them had to be acknowledged."""
        eliciting = acked = grown = 0
        since = self._congestion_recovery_start_time
        for packet in packets:
            if packet.is_ack_eliciting:
                eliciting += 1
            if packet.in_flight:
                acked += packet.sent_bytes
                if (packet.sent_time or 0.0) > since:
                    grown += packet.sent_bytes
        window = self.congestion_window
        is_used = self.bytes_in_flight * USED_PART >= window
        self.bytes_in_flight -= acked
        if not is_used or not grown:
            return eliciting
        if self.ssthresh is None or window < self.ssthresh:
            self.congestion_window = min(window + grown, self.ssthresh or maxsize)
        else:
            self._congestion_stash += grown
            if self._congestion_stash >= window:
                self._congestion_stash -= window
                self.congestion_window = window + self._max_datagram_size
        return eliciting


class Pacer(QuicPacketPacer):
    """aioquic's pacer allows bursts of at most 16 datagrams, and of less than one where a path takes less than a
    microsecond for them: with timers of a millisecond that limits the rate to 23 MB/s, and later to 1 MB/s."""

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        seconds_per_byte = max(smoothed_rtt, 1e-6) / congestion_window
        datagram_seconds = self._max_datagram_size * seconds_per_byte
        self.packet_time = min(datagram_seconds, 1.0)
        self.bucket_max = max(BURST_DATAGRAMS * datagram_seconds, PACED_SECONDS)
        self.bucket_time = min(self.bucket_time, self.bucket_max)
