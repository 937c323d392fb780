"""Flow control of a QUIC connection: windows that follow what is read, and a limit of streams that follows the login.

aioquic doubles a window whenever half of it is used, so that a client could make the server set aside any amount of
memory.
"""

from __future__ import annotations

from aioquic.quic.connection import (
    CONNECTION_LIMIT_FRAME_CAPACITY,
    MAX_STREAM_DATA_FRAME_CAPACITY,
    Limit,
)
from aioquic.quic.packet import QuicFrameType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream

from whippet.transports.quic_configuration import UNAUTHENTICATED_STREAMS, UNIDIRECTIONAL_STREAMS, Rules
from whippet.transports.quic_sending import SendingConnection


class WindowedConnection(SendingConnection):
    """aioquic's connection with bounded windows."""

    def __init__(self, rules: Rules, original_id: bytes, retry_id: bytes | None) -> None:
        super().__init__(
            configuration=rules.configuration,
            original_destination_connection_id=original_id,
            retry_source_connection_id=retry_id,
        )
        self._rules = rules
        bidirectional, unidirectional = QuicFrameType.MAX_STREAMS_BIDI, QuicFrameType.MAX_STREAMS_UNI
        self._local_max_streams_bidi = Limit(bidirectional, "max_streams_bidi", UNAUTHENTICATED_STREAMS)
        self._local_max_streams_uni = Limit(unidirectional, "max_streams_uni", UNIDIRECTIONAL_STREAMS)
        self._frozen: set[int] = set()

    def raise_stream_limit(self, count: int) -> None:
        """Allows `count` streams at a time instead of those before a login."""
        self._local_max_streams_bidi.value += max(count - UNAUTHENTICATED_STREAMS, 0)

    def freeze_window(self, stream_id: int) -> None:
        """Keeps the window of a stream where it is, until `open_window`."""
        self._frozen.add(stream_id)

    def open_window(self, stream_id: int, size: int) -> None:
        """Lets the client send this stream up to byte `size`, whatever the windows are."""
        self._frozen.discard(stream_id)
        stream = self._streams.get(stream_id)
        if stream is None or stream.receiver.is_finished:
            return
        stream.max_stream_data_local = max(stream.max_stream_data_local, size)
        data = self._local_max_data
        data.value = max(data.value, data.used + size - stream.receiver.highest_offset + self._rules.receive_window)

    def unfreeze_window(self, stream_id: int) -> None:
        """Lets the window follow what is read again."""
        self._frozen.discard(stream_id)

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        data, window = self._local_max_data, self._rules.receive_window
        streams = self._local_max_streams_bidi, self._local_max_streams_uni
        due = [limit for limit in streams if limit.value - limit.sent > limit.sent - limit.used]
        if not due and data.sent == data.value and data.sent - data.used > window // 2:
            return
        if data.sent - data.used <= window // 2:
            # Bytes after a gap count as unread until the gap is filled.
            pending = sum(
                stream.receiver.highest_offset - stream.receiver.starting_offset()
                for stream in self._streams.values()
                if not stream.receiver.is_finished
            )
            data.value = max(data.value, data.used - pending + window)
        if data.value - data.sent >= window // 2:
            due.append(data)
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
        read = receiver.starting_offset()
        if (
            stream.max_stream_data_local - read <= window // 2
            and receiver._final_size is None
            and stream.stream_id not in self._frozen
        ):
            stream.max_stream_data_local = read + window
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
