"""One QUIC connection, sans-IO: datagrams in, events and datagrams out; with short paths for small requests.

aioquic looks for everything that a packet could hold, several times for each request. The short paths here handle the
usual case, a small request or response in a single frame, and leave everything else to aioquic.

The size of datagrams is decided in quic_path.py, the rate in quic_pacing.py, the windows in quic_windows.py. All of
them override internals of aioquic: its version is pinned, and tests/transports/test_aioquic_internals.py fails when
they change.
"""

from __future__ import annotations

from typing import Any, cast

from aioquic import tls
from aioquic._buffer import Buffer
from aioquic.quic.connection import END_STATES, QuicNetworkPath
from aioquic.quic.events import StreamDataReceived
from aioquic.quic.packet import QuicFrameType, QuicPacketType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream

from whippet.transports.datagrams import PeerAddress
from whippet.transports.quic_configuration import Handshake, Rules
from whippet.transports.quic_pacing import Congestion, Pacer
from whippet.transports.quic_probing import ProbingConnection

STREAM_FIN, STREAM_LENGTH = QuicFrameType.STREAM_BASE | 1, 2
STREAM_WHOLE = STREAM_FIN | STREAM_LENGTH
STREAM_FRAME_HEAD_BYTES = 3 + 8


class NullLog:
    """A logger that drops everything."""

    def drop(self, *_: object) -> None:
        """Does nothing."""

    debug = info = warning = error = drop


NULL_LOG = NullLog()


class Engine(ProbingConnection):
    """One connection, as quic_connection.py drives it."""

    def __init__(self, rules: Rules, original_id: bytes, retry_id: bytes | None) -> None:
        super().__init__(rules, original_id, retry_id)
        # aioquic logs whatever a client sends; only to ask whether it should costs a large part of a small request.
        self._logger = self._loss._logger = cast(Any, NULL_LOG)
        datagram_bytes = rules.configuration.max_datagram_size
        self._loss._cc = Congestion(max_datagram_size=datagram_bytes)
        self._loss._pacer = Pacer(max_datagram_size=datagram_bytes)
        self._host_cids[0].stateless_reset_token = rules.reset_token(self.host_cid)
        self._sent_bytes = 0

    # ------------------------------------------------------------------------------------------------------- state

    @property
    def is_over(self) -> bool:
        """Nothing more is received or sent."""
        return self._state in END_STATES

    @property
    def is_established(self) -> bool:
        return self._handshake_confirmed

    @property
    def is_validated(self) -> bool:
        """The client has proved its address."""
        return bool(self._network_paths) and self._network_paths[0].is_validated

    def _confirm_handshake(self) -> None:
        super()._confirm_handshake()
        # The buffers of the handshake are not needed any more: 48 KiB of each connection.
        self._crypto_buffers = {}

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        # No message has been handled yet, so the class can still be replaced: it differs in the negotiation alone.
        self.tls.__class__ = Handshake
        cast(Handshake, self.tls).protocols = self._rules.protocols

    def _replenish_connection_ids(self) -> None:
        super()._replenish_connection_ids()
        for connection_id in self._host_cids:
            if not connection_id.was_sent:
                connection_id.stateless_reset_token = self._rules.reset_token(connection_id.cid)

    def unacknowledged_on(self, stream_id: int) -> int:
        """Returns how many bytes of a stream are not sent or not acknowledged."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else len(stream.sender._buffer)

    def _handle_stream_frame(self, context: Any, frame_type: int, buf: Buffer) -> None:
        """Handles the usual case, all of the client's next stream in one frame; the rest is left to aioquic."""
        start = buf.tell()
        if frame_type & ~STREAM_LENGTH == STREAM_FIN:
            stream_id = buf.pull_uint_var()
            length = buf.pull_uint_var() if frame_type & STREAM_LENGTH else buf.capacity - buf.tell()
            limit, data, window = (
                self._local_max_streams_bidi,
                self._local_max_data,
                self._local_max_stream_data_bidi_remote,
            )
            if (
                stream_id == limit.used << 2
                and limit.used < limit.value
                and 0 < length <= window
                and data.used + length <= data.value
            ):
                octets = buf.pull_bytes(length)
                limit.used += 1
                data.used += length
                stream = QuicStream(stream_id, window, self._remote_max_stream_data_bidi_local)
                receiver = stream.receiver
                receiver.highest_offset = receiver._buffer_start = receiver._final_size = length
                receiver.is_finished = True
                self._streams[stream_id] = stream
                self._streams_queue.append(stream)
                self._events.append(StreamDataReceived(octets, True, stream_id))
                return
            buf.seek(start)
        super()._handle_stream_frame(context, frame_type, buf)

    def _write_application(self, builder: QuicPacketBuilder, network_path: QuicNetworkPath, now: float) -> None:
        """Writes acknowledgements, windows and data, if there is nothing else to send. aioquic would look for every
        kind of frame, and do so once more after the last one."""
        if not self._handshake_confirmed or self._has_control_frames(network_path):
            super()._write_application(builder, network_path, now)
            return
        space, crypto = self._spaces[tls.Epoch.ONE_RTT], self._cryptos[tls.Epoch.ONE_RTT]
        pacer, streams = self._loss._pacer, self._streams
        is_all_written = False
        while not is_all_written:
            if space.ack_at is None or space.ack_at >= now:
                self._pacing_at = pacer.next_send_time(now=now)
                if self._pacing_at is not None:
                    return
            builder.start_packet(QuicPacketType.ONE_RTT, crypto)
            if space.ack_at is not None and space.ack_at <= now:
                self._write_ack_frame(builder=builder, space=space, now=now)
            self._write_connection_limits(builder, space)
            for stream in streams.values():
                self._write_stream_limits(builder, space, stream)
            is_all_written = self._write_streams(builder, space)
            if builder.packet_is_empty:
                return
            pacer.update_after_send(now=now)

    def _write_streams(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> bool:
        """Writes what fits into the packet; returns True if that was everything. Streams that were served move to the
        end of the queue."""
        queue = self._streams_queue
        waiting = [stream for stream in queue if not (stream.sender.buffer_is_empty or stream.is_blocked)]
        served = []
        try:
            for stream in waiting:
                most = self._remote_max_data - self._remote_max_data_used + stream.sender.highest_offset
                written = self._write_stream_frame(builder, space, stream, min(most, stream.max_stream_data_remote))
                self._remote_max_data_used += written
                if written:
                    served.append(stream)
        finally:
            if served and len(served) < len(queue):
                self._streams_queue = [stream for stream in queue if stream not in served] + served
        return all(stream.sender.buffer_is_empty for stream in waiting)

    def _write_stream_frame(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream, max_offset: int
    ) -> int:
        sender = stream.sender
        size = sender._buffer_stop
        if (
            size
            and not sender.highest_offset
            and sender._buffer_fin == size <= min(builder.remaining_flight_space - STREAM_FRAME_HEAD_BYTES, max_offset)
        ):
            # All of a small response, sent for the first time; the rest is left to aioquic.
            args = (0, size, True)
            buf = builder.start_frame(STREAM_WHOLE, STREAM_FRAME_HEAD_BYTES, sender.on_data_delivery, args)
            buf.push_uint_var(cast(int, stream.stream_id))
            buf.push_uint16(size | 0x4000)
            buf.push_bytes(bytes(sender._buffer))
            sender._pending.shift()
            sender._pending_eof, sender.buffer_is_empty, sender.highest_offset = False, True, size
            return size
        written = super()._write_stream_frame(builder, space, stream, max_offset)
        if not (sender._pending_eof or len(sender._pending)):
            # aioquic would notice that only when more is requested.
            sender.buffer_is_empty = True
        return written

    def send_stream_data(self, stream_id: int, data: bytes, end_stream: bool = False) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            super().send_stream_data(stream_id, data, end_stream)
        else:
            stream.sender.write(data, end_stream)
        if not stream_id & 3:
            self._sent_bytes += len(data)

    @property
    def acknowledged_bytes(self) -> int:
        """Bytes of all responses so far that the client has acknowledged, or has cancelled."""
        return self._sent_bytes - self.unacknowledged_bytes

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of all responses that are not sent or not acknowledged; the end of a stream counts as one."""
        return sum(
            len(stream.sender._buffer) + (stream.sender._buffer_fin is not None)
            for stream_id, stream in self._streams.items()
            if not (stream_id & 3 or stream.sender.is_finished) and stream.sender._reset_error_code is None
        )

    def can_be_written(self, stream_id: int) -> bool:
        stream = self._streams.get(stream_id)
        return stream is not None and stream.sender._reset_error_code is None and stream.sender._buffer_fin is None

    def is_being_received(self, stream_id: int) -> bool:
        stream = self._streams.get(stream_id)
        return stream is not None and not stream.receiver.is_finished

    # ------------------------------------------------------------------------------------------------------- sending

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, PeerAddress]]:
        if self._handshake_confirmed:
            self._discard_streams()
            if self._has_nothing_to_send(now):
                self._pacing_at = None
                return []
            space = self._spaces[tls.Epoch.ONE_RTT]
            if space.ack_at is not None:
                # Acknowledges in a datagram that is sent anyway, instead of in one of its own a moment later.
                space.ack_at = now
        found = super().datagrams_to_send(now)
        if self._handshake_confirmed and not self.is_over:
            self._watch_path()
            if (size := self.probe.next_size) is not None:
                found += self._probe_path(size, now)
        return found

    def _discard_streams(self) -> None:
        """Removes finished streams, which aioquic does only when it sends something."""
        over = [
            stream for stream in self._streams.values() if stream.sender.is_finished and stream.receiver.is_finished
        ]
        for stream in over:
            stream_id = cast(int, stream.stream_id)
            del self._streams[stream_id]
            self._streams_queue.remove(stream)
            if not stream_id & 1:
                self._stream_limit(stream_id).value += 1

    def _has_nothing_to_send(self, now: float) -> bool:
        """Checks without building packets, which would cost a large part of a small request."""
        ack_at = self._spaces[tls.Epoch.ONE_RTT].ack_at
        if (ack_at is not None and ack_at <= now) or self._close_pending:
            return False
        data, streams = self._local_max_data, self._local_max_streams_bidi
        if data.sent - data.used <= self._rules.receive_window // 2 or data.value != data.sent:
            return False
        if streams.value - streams.sent > streams.sent - streams.used:
            return False
        half = self._rules.stream_receive_window // 2
        for stream in self._streams.values():
            receiver, sender = stream.receiver, stream.sender
            if not sender.buffer_is_empty:
                return False
            if not receiver.is_finished and (
                stream.max_stream_data_local - receiver._buffer_start <= half
                or stream.max_stream_data_local != stream.max_stream_data_local_sent
            ):
                return False
        return not self._has_control_frames(self._network_paths[0])

    def _has_control_frames(self, path: QuicNetworkPath) -> bool:
        """There are frames to send other than acknowledgements, windows and the data of streams."""
        for stream in self._streams.values():
            if stream.sender.reset_pending or stream.receiver.stop_pending:
                return True
        for connection_id in self._host_cids:
            if not connection_id.was_sent:
                return True
        return bool(
            path is not self._path
            or not path.is_validated
            or path.remote_challenges
            or len(self._network_paths) > 1
            or self._probe_pending
            or self._ping_pending
            or self._retire_connection_ids
            or self._datagrams_pending
            or self._handshake_done_pending
            or self._streams_blocked_pending
            or self.probe.next_size is not None
            or not self._crypto_streams[tls.Epoch.ONE_RTT].sender.buffer_is_empty
        )
