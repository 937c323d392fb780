"""What a connection sends, many datagrams at a time; with a short path for the usual frames.

The usual frames of an established connection are acknowledgements, windows and the data of streams. They are written
here, and a stream with much to send fills a run of datagrams at once. As soon as anything else has to be sent, aioquic
writes all of it.
"""

from __future__ import annotations

from typing import Any, cast

from aioquic import tls
from aioquic.quic.packet import QuicFrameType
from aioquic.quic.packet_builder import QuicPacketBuilderStop
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream

from whippet.transports.datagrams import PeerAddress
from whippet.transports.quic_packets import PacketWriter, encode_varint, first_byte
from whippet.transports.quic_receiving import STREAM_LENGTH, STREAM_OFFSET, ReceivingConnection

RUN_MAX = 32
"""Datagrams that one stream fills before another gets its turn."""
LENGTH_BYTES = 2
_ACK, _NO_MORE = bytes([QuicFrameType.ACK]), b"\0"
"""The type of the frame, and its count of ranges after the first."""
_STREAM = QuicFrameType.STREAM_BASE | STREAM_LENGTH


class SendingConnection(ReceivingConnection):
    """Either end of a connection."""

    def _confirm_handshake(self) -> None:
        super()._confirm_handshake()
        self._writer: PacketWriter | None = None
        self._crypto_stream = self._crypto_streams[tls.Epoch.ONE_RTT]

    def get_timer(self) -> float | None:
        path = self._network_paths[0] if self._network_paths else None
        if not self._handshake_confirmed or self._close_event is not None or path is None or not path.is_validated:
            return super().get_timer()
        # Of an established connection, one packet number space is left.
        space, at = self._space, self._close_at
        assert at is not None
        if space.ack_at is not None and space.ack_at < at:
            at = space.ack_at
        loss: Any = self._loss
        self._loss_at = loss.detection_time(space)
        if self._loss_at is not None and self._loss_at < at:
            at = self._loss_at
        if self._pacing_at is not None and self._pacing_at < at:
            at = self._pacing_at
        return at

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, PeerAddress]]:
        if not self._sends_usual_frames():
            return super().datagrams_to_send(now)
        path, pair, connection_id = self._network_paths[0], self._keys, self._peer_cid.cid
        writer = self._writer
        if writer is None or not writer.is_current(pair.send, connection_id, self._max_datagram_size):
            writer = self._writer = PacketWriter(pair.send, connection_id, self._max_datagram_size)
        writer.begin(self._packet_number, first_byte(spin_bit=self._spin_bit, key_phase=pair.recv.key_phase))
        self._pacing_at = None
        while self._write_packet(writer, now):
            pass
        if writer.packet_number == self._packet_number:
            return []
        self._packet_number = writer.packet_number
        datagrams, address = writer.finish(), path.addr
        path.bytes_sent += sum(map(len, datagrams))
        return [(datagram, address) for datagram in datagrams]

    def discard_streams(self) -> None:
        """Removes finished streams. Whoever sends calls this first; aioquic does it only when it sends something."""
        over = [
            stream for stream in self._streams.values() if stream.sender.is_finished and stream.receiver.is_finished
        ]
        for stream in over:
            stream_id = cast(int, stream.stream_id)
            del self._streams[stream_id]
            self._streams_queue.remove(stream)
            if bool(stream_id & 1) is self._is_client:
                # The other side has opened it, and may open another one.
                self._stream_limit(stream_id).value += 1

    def _sends_usual_frames(self) -> bool:
        """Whether there are no frames to send other than acknowledgements, windows and the data of streams."""
        if not self._handshake_confirmed or self._close_pending or self._close_event is not None:
            return False
        for stream in self._streams.values():
            if stream.sender.reset_pending or stream.receiver.stop_pending:
                return False
        for connection_id in self._host_cids:
            if not connection_id.was_sent:
                return False
        path, *others = self._network_paths
        for other in others:
            # An earlier path is remembered after the client has moved.
            if other.remote_challenges or not (other.is_validated or other.local_challenge_sent):
                return False
        return not (
            not path.is_validated
            or path.remote_challenges
            or self._probe_pending
            or self._ping_pending
            or self._retire_connection_ids
            or self._datagrams_pending
            or self._handshake_done_pending
            or self._streams_blocked_pending
            or self._keys._update_key_requested
            or not self._crypto_stream.sender.buffer_is_empty
        )

    # ------------------------------------------------------------------------------------------------------ packets

    def _write_packet(self, writer: PacketWriter, now: float) -> bool:
        """Writes the next packet, or a run of packets; returns False if nothing is left that may be sent now."""
        loss, space = self._loss, self._space
        is_ack_due = space.ack_at is not None and space.ack_at <= now
        if not is_ack_due:
            self._pacing_at = loss._pacer.next_send_time(now=now)
            if self._pacing_at is not None:
                return False
        flight_bytes = loss._cc.congestion_window - loss._cc.bytes_in_flight
        writer.begin_packet(flight_bytes)
        is_all_written = False
        builder: Any = writer
        try:
            if is_ack_due:
                self._write_acknowledgement(writer, space, now)
            self._write_connection_limits(builder, space)
            for stream in self._streams.values():
                if not stream.receiver.is_finished:
                    self._write_stream_limits(builder, space, stream)
            writer.collect()
            if not writer.size and self._write_run(writer, space, flight_bytes, now):
                return True
            is_all_written = self._write_streams(writer)
        except QuicPacketBuilderStop:
            # What does not fit is written to the next packet, unless this one is empty.
            pass
        packet: Any = writer.end_packet(now)
        if packet is None:
            return False
        space.sent_packets[packet.packet_number] = packet
        if packet.in_flight:
            loss._cc.bytes_in_flight += packet.sent_bytes
        if packet.is_ack_eliciting:
            space.ack_eliciting_in_flight += 1
            self._on_eliciting_sent(now)
        loss._pacer.update_after_send(now=now)
        return not is_all_written

    def _write_acknowledgement(self, writer: PacketWriter, space: QuicPacketSpace, now: float) -> None:
        if len(space.ack_queue) != 1 or space.largest_received_time is None:
            builder: Any = writer
            self._write_ack_frame(builder, space, now)
            return
        received = space.ack_queue[0]
        largest = received.stop - 1
        delay = int((now - space.largest_received_time) * 1_000_000) >> self._local_ack_delay_exponent
        count = encode_varint(largest - received.start)
        frame = b"".join((_ACK, encode_varint(largest), encode_varint(delay), _NO_MORE, count))
        writer.add_ack(frame, self._on_ack_delivery, (space, space.largest_received_packet))
        space.ack_at = None

    def _on_eliciting_sent(self, now: float) -> None:
        self._loss._time_of_last_sent_ack_eliciting_packet = now
        if not self._ack_eliciting_sent_since_receipt:
            self._close_at = now + self._idle_timeout()
            self._ack_eliciting_sent_since_receipt = True

    def _write_run(self, writer: PacketWriter, space: QuicPacketSpace, flight_bytes: int, now: float) -> bool:
        """Fills datagrams with data of the stream whose turn it is; returns False if there is none for two of them."""
        queue = self._streams_queue
        stream = next((each for each in queue if not (each.sender.buffer_is_empty or each.is_blocked)), None)
        if stream is None or stream.stream_id is None or not len(stream.sender._pending):
            return False
        sender, pacer, size = stream.sender, self._loss._pacer, writer.datagram_bytes
        pending = sender._pending[0]
        stop = min(pending.stop, self._offset_max(stream))
        count = min(RUN_MAX, flight_bytes // size, (stop - pending.start) // writer.payload_bytes)
        if pacer.packet_time:
            count = min(count, int(pacer.bucket_time / pacer.packet_time))
        if count < 2:
            return False
        packets = writer.write_run(sender, stream.stream_id, pending.start, stop, count, now)
        space.sent_packets.update((packet.packet_number, cast(Any, packet)) for packet in packets)
        space.ack_eliciting_in_flight += len(packets)
        self._loss._cc.bytes_in_flight += len(packets) * size
        self._on_eliciting_sent(now)
        if pacer.packet_time:
            pacer.bucket_time -= len(packets) * pacer.packet_time
        self._on_written(stream, pending.start, packets[-1].stop, fin=packets[-1].fin)
        queue.remove(stream)
        queue.append(stream)
        return True

    # ------------------------------------------------------------------------------------------------------- streams

    def _write_streams(self, writer: PacketWriter) -> bool:
        """Writes what fits into the packet; returns True if that was everything. Streams that were served move to the
        end of the queue."""
        served, is_all_written = list[QuicStream](), True
        for stream in self._streams_queue:
            if stream.sender.buffer_is_empty or stream.is_blocked:
                continue
            if self._write_stream(writer, stream):
                served.append(stream)
            if not stream.sender.buffer_is_empty:
                is_all_written = False
        if served and len(self._streams_queue) > len(served):
            self._streams_queue = [stream for stream in self._streams_queue if stream not in served] + served
        return is_all_written

    def _write_stream(self, writer: PacketWriter, stream: QuicStream) -> bool:
        sender = stream.sender
        if len(sender._pending):
            pending = sender._pending[0]
            start, stop = pending.start, pending.stop
        elif sender._pending_eof and sender._buffer_fin is not None:
            start = stop = sender._buffer_fin
        else:
            sender.buffer_is_empty = True
            return False
        stream_id = stream.stream_id
        assert stream_id is not None
        frame_type, head = _STREAM, encode_varint(stream_id)
        if start:
            frame_type |= STREAM_OFFSET
            head += encode_varint(start)
        room = writer.flight_room - writer.size - 1 - len(head) - LENGTH_BYTES
        if stop - start > room and writer.flight_room < writer.payload_bytes and self._loss.bytes_in_flight:
            # Many small datagrams cost more than a moment of waiting.
            return False
        is_empty = start == stop
        stop = min(stop, start + room, max(self._offset_max(stream), start))
        if stop < start or (stop == start and not is_empty):
            return False
        fin = stop == sender._buffer_fin
        size, base = stop - start, sender._buffer_start
        writer.add(
            b"%c%b%b" % (frame_type | fin, head, (size | 0x4000).to_bytes(LENGTH_BYTES, "big")),
            bytes(sender._buffer[start - base : stop - base]),
            sender.on_data_delivery,
            (start, stop, fin),
        )
        self._on_written(stream, start, stop, fin=fin)
        return True

    def _offset_max(self, stream: QuicStream) -> int:
        """How far the other side lets a stream be sent."""
        left = self._remote_max_data - self._remote_max_data_used
        return min(stream.sender.highest_offset + left, stream.max_stream_data_remote)

    def _on_written(self, stream: QuicStream, start: int, stop: int, *, fin: bool) -> None:
        sender = stream.sender
        pending = sender._pending
        if stop > start:
            if pending[0].stop == stop:
                pending.shift()
            else:
                pending.subtract(start, stop)
        if stop > sender.highest_offset:
            self._remote_max_data_used += stop - sender.highest_offset
            sender.highest_offset = stop
        if fin:
            sender._pending_eof = False
        if not (sender._pending_eof or len(pending)):
            sender.buffer_is_empty = True
