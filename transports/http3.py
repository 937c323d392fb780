"""One HTTP/3 connection: the requests on the streams of a QUIC connection.

A stream carries one request and its response (http3_exchange.py). The limits are those of `http.limits`; the windows of
QUIC limit what is sent ahead. Headers are compressed without a dynamic table, because with one a few bytes can expand
to megabytes. A server that stops reports which requests it will not process any more (GOAWAY), so that clients can send
them to another one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

import pylsqpack
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import ErrorCode, FrameType, H3Connection, Setting, encode_frame
from aioquic.h3.events import DataReceived, Headers, HeadersReceived
from aioquic.quic import events
from starlette.types import ASGIApp

from whippet.transports.admission.stall_detector import StallDetector
from whippet.transports.http3_exchange import PIECE_BYTES, Exchange
from whippet.transports.quic_engine import Engine

if TYPE_CHECKING:
    from whippet.transports.quic_connection import Connection

CONTROL_BYTES_MAX = 16 << 10
"""Bytes buffered of a stream that carries no request."""


class Framing(H3Connection):
    """The framing of HTTP/3, without a dynamic table in either direction, and without WebSocket over HTTP/3."""

    def _init_connection(self) -> None:
        self._max_table_capacity = self._blocked_streams = 0
        self._decoder = pylsqpack.Decoder(0, 0)
        super()._init_connection()

    def _get_local_settings(self) -> dict[int, int]:
        settings = super()._get_local_settings()
        del settings[Setting.ENABLE_CONNECT_PROTOCOL]
        return settings

    def go_away(self, stream_id: int) -> None:
        """Announces that requests from this stream on are not processed."""
        frame = encode_frame(FrameType.GOAWAY, encode_uint_var(stream_id))
        assert self._local_control_stream_id is not None
        self._quic.send_stream_data(self._local_control_stream_id, frame)

    def reset(self, stream_id: int, code: int) -> None:
        """Ends the server's side of a stream."""
        if stream_id in self._stream:
            with self._get_or_create_stream(stream_id) as stream:
                stream.sending_ended = True
        if cast(Engine, self._quic).can_be_written(stream_id):
            self._quic.reset_stream(stream_id, code)

    def buffered(self, stream_id: int) -> tuple[int, int]:
        """Returns how many bytes of a stream wait for the rest of a frame, and how long the announced headers are."""
        stream = self._stream.get(stream_id)
        if stream is None:
            return 0, 0
        fields = (stream.frame_size or 0) if stream.frame_type == FrameType.HEADERS else 0
        return len(stream.buffer), fields


class Http3:
    """All exchanges of one connection; one of the two protocols that quic_connection.py drives."""

    DONE_CODE, OVERDUE_CODE = int(ErrorCode.H3_NO_ERROR), int(ErrorCode.H3_EXCESSIVE_LOAD)

    def __init__(self, connection: Connection, application: ASGIApp) -> None:
        self.connection = connection
        self.engine = connection.engine
        self.application = application
        self.limits = connection.listener.gateway.config.http.limits
        self.framing = Framing(connection.engine)
        self._exchanges: dict[int, Exchange] = {}
        self._awaiting_headers: dict[int, float] = {}
        """Streams whose headers are not complete, and since when."""
        self._receiving: set[int] = set()
        """Streams whose headers are complete, and which have not ended."""
        self._next = 0
        """The stream after the last one that was used."""
        self._ended = False
        self._idle_since = time.monotonic()
        self._stalling = StallDetector()
        self.engine.raise_stream_limit(connection.listener.streams_max)

    def on_event(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamReset | events.StopSendingReceived):
            self._disconnect(event.stream_id)
        for part in self.framing.handle_event(event):
            if isinstance(part, HeadersReceived):
                self._on_headers(part.stream_id, part.headers, part.stream_ended)
            elif isinstance(part, DataReceived) and (exchange := self._exchanges.get(part.stream_id)) is not None:
                exchange.on_body(part.data, part.stream_ended)
        if isinstance(event, events.StreamDataReceived):
            self._watch(event.stream_id, is_request=not event.stream_id & 3, has_ended=event.end_stream)
        elif isinstance(event, events.StreamReset):
            self._watch(event.stream_id, is_request=not event.stream_id & 3, has_ended=True)

    def _disconnect(self, stream_id: int) -> None:
        if (exchange := self._exchanges.get(stream_id)) is not None:
            exchange.disconnect()

    def _watch(self, stream_id: int, *, is_request: bool, has_ended: bool) -> None:
        buffered, announced = self.framing.buffered(stream_id)
        if announced > self.limits.headers_bytes or buffered > (
            self.limits.headers_bytes + PIECE_BYTES if is_request else CONTROL_BYTES_MAX
        ):
            self.connection.close_with(ErrorCode.H3_EXCESSIVE_LOAD, "too many bytes before a complete frame")
        if not is_request:
            return
        self._next = max(self._next, stream_id + 4)
        if has_ended:
            self._awaiting_headers.pop(stream_id, None)
            self._receiving.discard(stream_id)
        elif stream_id not in self._receiving:
            self._awaiting_headers.setdefault(stream_id, time.monotonic())

    def _on_headers(self, stream_id: int, headers: Headers, is_complete: bool) -> None:
        if not any(name == b":method" for name, _ in headers):
            # Trailers. The request may have been answered already.
            if is_complete and (existing := self._exchanges.get(stream_id)) is not None:
                existing.on_body(b"", True)
            return
        self._awaiting_headers.pop(stream_id, None)
        self._receiving.add(stream_id)
        if self._ended:
            self.framing.reset(stream_id, ErrorCode.H3_REQUEST_REJECTED)
            return
        exchange = self._exchanges[stream_id] = Exchange(self, stream_id)
        status = exchange.begin(headers, is_complete)
        if status is not None:
            exchange.refuse(status)

    def remove(self, exchange: Exchange) -> None:
        if self._exchanges.get(exchange.stream_id) is exchange:
            del self._exchanges[exchange.stream_id]
        self.engine.unfreeze_window(exchange.stream_id)
        self._idle_since = time.monotonic()
        self.connection.schedule_flush()

    # ------------------------------------------------------------------------------------- called by the connection

    def on_acknowledged(self) -> None:
        for exchange in list(self._exchanges.values()):
            exchange.on_acknowledged()

    def overdue(self, now: float) -> str | None:
        limits = self.limits
        if any(now > since + limits.headers_time for since in self._awaiting_headers.values()):
            return "a request takes too long to arrive"
        for exchange in list(self._exchanges.values()):
            exchange.check(now)
        if self._has_stalled(now):
            return "it does not read what it was sent"
        if not self._exchanges and now > self._idle_since + limits.idle_time:
            self.connection.drain()
        return None

    def _has_stalled(self, now: float) -> bool:
        unsent, taken = self.engine.unacknowledged_bytes, self.engine.acknowledged_bytes
        is_contended = self.connection.listener.budgets.is_contended
        return self._stalling.has_stalled(
            now, unsent, self.limits.answer_time, delivered=taken, is_contended=is_contended
        )

    def drain(self) -> None:
        if not self._ended:
            self._ended = True
            self.framing.go_away(self._next)
            for stream_id in self._awaiting_headers:
                self.framing.reset(stream_id, ErrorCode.H3_REQUEST_REJECTED)
            self._awaiting_headers.clear()

    @property
    def is_idle(self) -> bool:
        return not self._exchanges

    def close(self) -> None:
        self._ended = True
        for exchange in list(self._exchanges.values()):
            exchange.disconnect()
