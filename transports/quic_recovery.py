"""What a connection does when the other side acknowledges packets: RFC 9002, for many packets at a time.

aioquic handles each acknowledged packet for itself, and looks at all packets in flight for each acknowledgement. Here
one pass over the packets that are acknowledged finds them, and data of one stream that was sent in consecutive packets
is reported to the stream once. What is lost is left to aioquic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from aioquic.quic.packet_builder import QuicDeliveryState, QuicSentPacket
from aioquic.quic.recovery import QuicPacketRecovery, QuicPacketSpace
from aioquic.quic.stream import QuicStreamSender

from whippet.transports.quic_packets import StreamPacket

RTT_SECONDS_MIN = 0.001
"""No sample counts as less, because timers are not more precise."""


class Recovery(QuicPacketRecovery):
    """Replaces the class of aioquic's recovery; its state is aioquic's."""

    def on_ack_received(
        self, *, ack_rangeset: Sequence[range], ack_delay: float, now: float, space: QuicPacketSpace
    ) -> None:
        """Handles an ACK frame; the ranges ascend and do not overlap."""
        largest = ack_rangeset[-1].stop - 1
        space.largest_acked_packet = max(space.largest_acked_packet, largest)
        packets = _take(space.sent_packets, ack_rangeset)
        if not packets:
            return
        control: Any = self._cc
        eliciting = control.on_packets_acked(now=now, packets=packets)
        space.ack_eliciting_in_flight -= eliciting
        _report(packets)
        last = packets[-1]
        if eliciting and last.packet_number == largest:
            assert last.sent_time is not None
            self._sample(now - last.sent_time, ack_delay, now)
        self._detect_loss(now=now, space=space)
        if self.peer_completed_address_validation:
            self._pto_count = 0

    def detection_time(self, space: QuicPacketSpace) -> float | None:
        """Returns when to look for losses in the only space that an established connection has left."""
        if space.loss_time is not None:
            return space.loss_time
        if not space.ack_eliciting_in_flight:
            return None
        return self._time_of_last_sent_ack_eliciting_packet + self.get_probe_timeout() * (1 << self._pto_count)

    def _sample(self, measured: float, ack_delay: float, now: float) -> None:
        """Updates the estimate of the round-trip time (RFC 9002, section 5)."""
        latest = max(measured, RTT_SECONDS_MIN)
        self._rtt_min = min(self._rtt_min, latest)
        delay = min(ack_delay, self.max_ack_delay)
        if latest > self._rtt_min + delay:
            latest -= delay
        self._rtt_latest = latest
        if self._rtt_initialized:
            self._rtt_variance += (abs(self._rtt_min - latest) - self._rtt_variance) / 4
            self._rtt_smoothed += (latest - self._rtt_smoothed) / 8
        else:
            self._rtt_initialized, self._rtt_first_sample_time = True, now
            self._rtt_smoothed, self._rtt_variance = measured, measured / 2
        self._cc.on_rtt_measurement(now=now, rtt=measured)
        self._pacer.update_rate(congestion_window=self._cc.congestion_window, smoothed_rtt=self._rtt_smoothed)

    def _detect_loss(self, *, now: float, space: QuicPacketSpace) -> None:
        oldest = next(iter(space.sent_packets), None)
        if oldest is None or oldest > space.largest_acked_packet:
            # The usual case: nothing was sent before what is acknowledged.
            space.loss_time = None
            return
        super()._detect_loss(now=now, space=space)


def _take(sent: dict[int, QuicSentPacket], ranges: Sequence[range]) -> list[QuicSentPacket]:
    """Removes the packets of these ranges from those in flight, and returns them in the order they were sent."""
    taken: list[QuicSentPacket] = []
    stop = ranges[-1].stop
    if len(ranges) == 1:
        # The usual case: everything up to a packet, of which most was acknowledged before.
        start = ranges[0].start
        for number, packet in sent.items():
            if number >= stop:
                break
            if number >= start:
                taken.append(packet)
        for packet in taken:
            del sent[packet.packet_number]
        return taken
    numbers = list(takewhile(stop.__gt__, sent))
    position, count = 0, len(numbers)
    for acknowledged in ranges:
        start, stop = acknowledged.start, acknowledged.stop
        while position < count and numbers[position] < start:
            position += 1
        while position < count and numbers[position] < stop:
            taken.append(sent.pop(numbers[position]))
            position += 1
        if position == count:
            break
    return taken


def _report(packets: Sequence[QuicSentPacket | StreamPacket]) -> None:
    """Tells the senders of frames that they have arrived. Consecutive data of a stream counts as one frame."""
    acked = QuicDeliveryState.ACKED
    sender: QuicStreamSender | None = None
    start = stop = 0
    fin = False
    handlers: list[tuple[Callable[..., None], Any]]
    for packet in packets:
        if type(packet) is StreamPacket:
            if packet.sender is sender and packet.start == stop:
                stop, fin = packet.stop, packet.fin
                continue
            if sender is not None:
                sender.on_data_delivery(acked, start, stop, fin)
            sender, start, stop, fin = packet.sender, packet.start, packet.stop, packet.fin
            continue
        if packet.delivery_handlers:
            if sender is not None:
                sender.on_data_delivery(acked, start, stop, fin)
                sender = None
            handlers = packet.delivery_handlers
            for handler, args in handlers:
                handler(acked, *args)
    if sender is not None:
        sender.on_data_delivery(acked, start, stop, fin)
