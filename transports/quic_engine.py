"""aioquic's connection with what a public server needs: windows that follow what is read, limits of streams that follow
a login, datagrams as large as the path allows, and tokens by which a restarted server resets clients.

aioquic doubles a window whenever half of it is used, so that a client could make the server set aside any amount of
memory, and it insists on ALPN once it is given any protocol. The size of datagrams is in quic_path.py, the rate in
quic_pacing.py. What is overridden here are aioquic's internals: its version is pinned, and
tests/transports/test_aioquic_internals.py fails when they change.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from aioquic import tls
from aioquic._buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import (
    CONNECTION_LIMIT_FRAME_CAPACITY,
    END_STATES,
    MAX_STREAM_DATA_FRAME_CAPACITY,
    Limit,
    QuicConnection,
    QuicNetworkPath,
)
from aioquic.quic.events import StreamDataReceived
from aioquic.quic.packet import (
    QuicFrameType,
    QuicPacketType,
    QuicProtocolVersion,
    pull_quic_transport_parameters,
)
from aioquic.quic.packet_builder import QuicDeliveryState, QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream

from whippet.transports.datagrams import PeerAddress
from whippet.transports.quic_pacing import Congestion, Pacer
from whippet.transports.quic_path import DATAGRAM_BYTES_MIN, LOST_IN_A_ROW, PathProbe

HTTP3 = "h3"
FOR_EVER = 10 * 365 * 86_400.0
"""Seconds of silence that end no connection."""
CONNECTION_ID_BYTES = 8
DATAGRAM_BYTES_MAX = 16_384
STRANGER_STREAMS = 8
"""How many streams somebody may have open before a login. Official clients have one."""
UNIDIRECTIONAL_STREAMS = 8
"""HTTP/3 needs three; the binary protocols none."""
RESET_BYTES_MIN = 5 + 16
STREAM_FIN, STREAM_LENGTH = QuicFrameType.STREAM_BASE | 1, 2
STREAM_WHOLE = STREAM_FIN | STREAM_LENGTH
STREAM_FRAME_HEAD_BYTES = 3 + 8
HANDSHAKE_BYTES_MAX = 32 << 10
"""Of one message of the handshake, which aioquic gathers before it looks at it."""


@dataclass(frozen=True)
class Rules:
    """What all connections of a listener have in common."""

    configuration: QuicConfiguration
    initial_datagram_bytes: int
    datagram_bytes_max: int
    receive_window: int
    stream_receive_window: int
    reset_key: bytes
    protocols: tuple[str, ...]
    """What may be agreed on by those who offer something."""

    def reset_token(self, connection_id: bytes) -> bytes:
        return hmac.digest(self.reset_key, connection_id, hashlib.sha256)[:16]


def configuration(idle_seconds: float, receive_window: int, stream_receive_window: int) -> QuicConfiguration:
    """Without a certificate: `certificates.put_on` adds it."""
    return QuicConfiguration(
        is_client=False,
        connection_id_length=CONNECTION_ID_BYTES,
        idle_timeout=idle_seconds,
        max_data=receive_window,
        max_stream_data=stream_receive_window,
        max_datagram_size=DATAGRAM_BYTES_MIN,
        supported_versions=[QuicProtocolVersion.VERSION_1],
    )


class Handshake(tls.Context):
    """Official clients offer no ALPN and get none; who offers any has to offer what is spoken."""

    protocols: tuple[str, ...]

    def handle_message(self, input_data: bytes, output_buf: dict[tls.Epoch, Buffer]) -> None:
        if len(self._receive_buffer) + len(input_data) > HANDSHAKE_BYTES_MAX:
            raise tls.AlertDecodeError("a message of the handshake is too large")
        super().handle_message(input_data, output_buf)

    def _server_handle_hello(self, input_buf: Buffer, initial_buf: Buffer, handshake_buf: Buffer) -> None:
        start = input_buf.tell()
        hello = tls.pull_client_hello(input_buf)
        input_buf.seek(start)
        self._alpn_protocols = None if hello.alpn_protocols is None else list(self.protocols)
        super()._server_handle_hello(input_buf, initial_buf, handshake_buf)


class Silence:
    """A log that nobody reads."""

    def say(self, *_: object) -> None:
        """Nothing."""

    debug = info = warning = error = say


SILENCE = Silence()


class Engine(QuicConnection):
    """One connection, sans-IO: datagrams in, events and datagrams out."""

    def __init__(self, rules: Rules, original_id: bytes, retry_id: bytes | None) -> None:
        super().__init__(
            configuration=rules.configuration,
            original_destination_connection_id=original_id,
            retry_source_connection_id=retry_id,
        )
        self._rules = rules
        # Whatever anybody sends would be logged; to ask whether it is to be costs as much as much of a small request.
        self._logger = self._loss._logger = cast(Any, SILENCE)
        datagram_bytes = rules.configuration.max_datagram_size
        self._loss._cc = Congestion(max_datagram_size=datagram_bytes)
        self._loss._pacer = Pacer(max_datagram_size=datagram_bytes)
        self._host_cids[0].stateless_reset_token = rules.reset_token(self.host_cid)
        self._local_max_streams_bidi = Limit(QuicFrameType.MAX_STREAMS_BIDI, "max_streams_bidi", STRANGER_STREAMS)
        self._local_max_streams_uni = Limit(QuicFrameType.MAX_STREAMS_UNI, "max_streams_uni", UNIDIRECTIONAL_STREAMS)
        self._held: set[int] = set()
        self._said_bytes = 0
        self.probe = PathProbe(rules.initial_datagram_bytes, rules.datagram_bytes_max)
        self._path: object = None

    # ------------------------------------------------------------------------------------------------------- state

    @property
    def is_over(self) -> bool:
        """Nothing more will be received or sent."""
        return self._state in END_STATES

    @property
    def is_established(self) -> bool:
        return self._handshake_confirmed

    @property
    def is_validated(self) -> bool:
        """The peer is where it says."""
        return bool(self._network_paths) and self._network_paths[0].is_validated

    def _confirm_handshake(self) -> None:
        super()._confirm_handshake()
        # What the handshake was written into is not needed any more: 48 KiB of each connection.
        self._crypto_buffers = {}

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        # Nothing has been said yet: it only negotiates otherwise.
        self.tls.__class__ = Handshake
        cast(Handshake, self.tls).protocols = self._rules.protocols

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        super()._parse_transport_parameters(data, from_session_ticket)
        theirs = pull_quic_transport_parameters(Buffer(data=data)).max_udp_payload_size
        if theirs is not None:
            self.probe.limit(theirs)

    def _replenish_connection_ids(self) -> None:
        super()._replenish_connection_ids()
        for connection_id in self._host_cids:
            if not connection_id.was_sent:
                connection_id.stateless_reset_token = self._rules.reset_token(connection_id.cid)

    # ----------------------------------------------------------------------------------------------------- windows

    def allow_streams(self, count: int) -> None:
        """From now on so many at a time, rather than those of a stranger."""
        self._local_max_streams_bidi.value += max(count - STRANGER_STREAMS, 0)

    def hold(self, stream_id: int) -> None:
        """No more of this stream than its window, until `allow`."""
        self._held.add(stream_id)

    def allow(self, stream_id: int, size: int) -> None:
        """There is room for this stream up to here, whatever the windows are."""
        self._held.discard(stream_id)
        stream = self._streams.get(stream_id)
        if stream is None or stream.receiver.is_finished:
            return
        stream.max_stream_data_local = max(stream.max_stream_data_local, size)
        data = self._local_max_data
        data.value = max(data.value, data.used + size - stream.receiver.highest_offset + self._rules.receive_window)

    def release(self, stream_id: int) -> None:
        """Its window follows what is taken again."""
        self._held.discard(stream_id)

    def unsent(self, stream_id: int) -> int:
        """Bytes that wait to be sent or acknowledged."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else len(stream.sender._buffer)

    def _handle_stream_frame(self, context: Any, frame_type: int, buf: Buffer) -> None:
        """As a rule a small request: the whole of the next stream of the peer in one frame. All else is aioquic's."""
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
        """Acknowledgements, windows and data, where there is nothing else: aioquic looks for all that there could be,
        and once more when everything is said."""
        if not self._handshake_confirmed or self._has_business(network_path):
            super()._write_application(builder, network_path, now)
            return
        space, crypto = self._spaces[tls.Epoch.ONE_RTT], self._cryptos[tls.Epoch.ONE_RTT]
        pacer, streams = self._loss._pacer, self._streams
        is_all_said = False
        while not is_all_said:
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
            is_all_said = self._write_streams(builder, space)
            if builder.packet_is_empty:
                return
            pacer.update_after_send(now=now)

    def _write_streams(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> bool:
        """What fits into the packet; True if that was all. Who had a turn is behind the others after it."""
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
            # The whole of a small answer, which was not sent yet. All else is aioquic's.
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
            # Which it would notice when it is asked for more.
            sender.buffer_is_empty = True
        return written

    def send_stream_data(self, stream_id: int, data: bytes, end_stream: bool = False) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            super().send_stream_data(stream_id, data, end_stream)
        else:
            stream.sender.write(data, end_stream)
        if not stream_id & 3:
            self._said_bytes += len(data)

    @property
    def taken_bytes(self) -> int:
        """Of all answers that there ever were, what has been acknowledged or is not wanted any more."""
        return self._said_bytes - self.all_unsent

    @property
    def all_unsent(self) -> int:
        """The same of all streams that are answers; an end counts, too."""
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

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        data, window = self._local_max_data, self._rules.receive_window
        if data.sent - data.used <= window // 2:
            # What waits for a gap before it to be filled counts as not taken.
            pending = sum(
                stream.receiver.highest_offset - stream.receiver.starting_offset()
                for stream in self._streams.values()
                if not stream.receiver.is_finished
            )
            data.value = max(data.value, data.used - pending + window)
        streams = self._local_max_streams_bidi, self._local_max_streams_uni
        due = [data] if data.value - data.sent >= window // 2 else []
        due += [limit for limit in streams if limit.value - limit.sent > limit.sent - limit.used]
        for limit in due:
            buffer = builder.start_frame(
                limit.frame_type,
                capacity=CONNECTION_LIMIT_FRAME_CAPACITY,
                handler=self._on_connection_limit_delivery,
                handler_args=(limit,),
            )
            buffer.push_uint_var(limit.value)
            limit.sent = limit.value

    def _write_stream_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream) -> None:
        receiver, window = stream.receiver, self._rules.stream_receive_window
        if receiver.is_finished:
            return
        taken = receiver.starting_offset()
        if (
            stream.max_stream_data_local - taken <= window // 2
            and receiver._final_size is None
            and stream.stream_id not in self._held
        ):
            stream.max_stream_data_local = taken + window
        if stream.max_stream_data_local != stream.max_stream_data_local_sent:
            buffer = builder.start_frame(
                QuicFrameType.MAX_STREAM_DATA,
                capacity=MAX_STREAM_DATA_FRAME_CAPACITY,
                handler=self._on_max_stream_data_delivery,
                handler_args=(stream,),
            )
            buffer.push_uint_var(stream.stream_id or 0)
            buffer.push_uint_var(stream.max_stream_data_local)
            stream.max_stream_data_local_sent = stream.max_stream_data_local

    # --------------------------------------------------------------------------------------- the size of a datagram

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, PeerAddress]]:
        if self._handshake_confirmed:
            self._discard_streams()
            if self._is_quiet(now):
                self._pacing_at = None
                return []
            space = self._spaces[tls.Epoch.ONE_RTT]
            if space.ack_at is not None:
                # What is sent anyway says what has come, rather than a datagram of its own a moment later.
                space.ack_at = now
        found = super().datagrams_to_send(now)
        if self._handshake_confirmed and not self.is_over:
            self._watch_path()
            if (size := self.probe.next_size) is not None:
                found += self._try(size, now)
        return found

    def _discard_streams(self) -> None:
        """Those that are over, as aioquic does when it sends something anyway."""
        over = [
            stream for stream in self._streams.values() if stream.sender.is_finished and stream.receiver.is_finished
        ]
        for stream in over:
            stream_id = cast(int, stream.stream_id)
            del self._streams[stream_id]
            self._streams_queue.remove(stream)
            if not stream_id & 1:
                self._stream_limit(stream_id).value += 1

    def _is_quiet(self, now: float) -> bool:
        """There is nothing to send: to find that out by building packets costs a good part of a small request."""
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
        return not self._has_business(self._network_paths[0])

    def _has_business(self, path: QuicNetworkPath) -> bool:
        """There is something to say besides acknowledgements, windows and the data of streams."""
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

    def _watch_path(self) -> None:
        """Another path may carry more, and one on which nothing gets through any more carries less."""
        path = self._network_paths[0]
        if path is not self._path:
            self._path = path
            self.probe.begin()
            self._carry(self.probe.carried)
        elif self._loss._pto_count >= LOST_IN_A_ROW and self._max_datagram_size > DATAGRAM_BYTES_MIN:
            self.probe.narrow()
            self._carry(self.probe.carried)

    def _try(self, size: int, now: float) -> list[tuple[bytes, PeerAddress]]:
        """Sends a datagram of this size that holds only padding. Its loss tells nothing about congestion, so it does
        not count as being in flight."""
        path = self._network_paths[0]
        if not path.is_validated:
            return []
        builder = QuicPacketBuilder(
            host_cid=self.host_cid,
            is_client=False,
            max_datagram_size=size,
            packet_number=self._packet_number,
            peer_cid=self._peer_cid.cid,
            spin_bit=self._spin_bit,
            version=self._version or QuicProtocolVersion.VERSION_1,
        )
        builder.start_packet(QuicPacketType.ONE_RTT, self._cryptos[tls.Epoch.ONE_RTT])
        buffer = builder.start_frame(QuicFrameType.PING, handler=self._on_tried, handler_args=(size, path))
        buffer.push_bytes(bytes(builder.remaining_flight_space))
        if builder._packet is not None:
            builder._packet.in_flight = False
        self.probe.on_sent()
        return self._flush_builder(builder=builder, network_path=path, peer_cid=self._peer_cid.cid, now=now)

    def _on_tried(self, delivery: QuicDeliveryState, size: int, path: object) -> None:
        arrived, is_current = delivery is QuicDeliveryState.ACKED, path is self._path
        if self.probe.on_result(size, arrived=arrived, is_current=is_current):
            self._carry(self.probe.carried)

    def _carry(self, size: int) -> None:
        """Datagrams have at most this size from now on."""
        self._max_datagram_size = size
        self._loss._pacer._max_datagram_size = size
        control: Any = self._loss._cc
        control._max_datagram_size = size
        control.congestion_window = max(control.congestion_window, 10 * size)


def stateless_reset(rules: Rules, connection_id: bytes, received_bytes: int, random: Callable[[int], bytes]) -> bytes:
    """What is said to somebody whose connection is not known here, any more; b"" when that would answer an answer."""
    size = min(received_bytes - 1, 43)
    if size < RESET_BYTES_MIN:
        return b""
    noise = bytearray(random(size - 16))
    noise[0] = 0x40 | noise[0] & 0x3F
    return bytes(noise) + rules.reset_token(connection_id)
