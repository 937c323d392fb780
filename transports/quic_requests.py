"""The binary protocols over QUIC: each stream carries one request and its response, and then ends in both directions.

The requests of a connection start in the order of their streams, each as soon as it is complete, and several may be in
progress at once. Before a login it is one at a time, so that the requests after a login find it done. The login and the
group memberships belong to the connection, and so to all of its streams.

transports/admission decides what a client may send, within the windows of quic_windows.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING

from aioquic.quic import events

from whippet.app.errors import Code, CommandError
from whippet.app.model.identity import Login
from whippet.storage.batch import Readable
from whippet.transports import eager
from whippet.transports.admission.budget import RECLAIMED, STEP_BYTES_MAX, Account, Claim
from whippet.transports.admission.frame_intake import RATE, PartialFrame
from whippet.transports.admission.stall_detector import StallDetector
from whippet.transports.conversation import PREAMBLE_BYTES, Conversation, create_conversation
from whippet.transports.reservations import DeferredWork, Reservation

if TYPE_CHECKING:
    from whippet.transports.quic_connection import Connection

_log = logging.getLogger(__name__)

IN_PROGRESS_MAX = 8
"""Requests of one connection that are executed at the same time."""
RESPONSE_BYTES_MAX = 10_000_000
"""Official clients accept no more, including the header of the response."""
HEAD_BYTES = 256
"""The beginning of a frame that is enough to refuse it, in every protocol."""
INLINE_BYTES_MAX = 64 << 10
"""A request up to this size that arrives in one piece is executed at once."""
NO_ERROR, PROTOCOL_ERROR, OVERDUE = 0, 1, 2
"""The error codes that connections are closed with."""
SMALL_BYTES_MAX = 4 << 10
"""A response up to this size is sent even if earlier responses fill the window."""
UNFINISHED_REQUEST = 3
"""The error code that resets a stream whose request is incomplete."""


class StreamRequest:
    """The request on one stream, and its response."""

    __slots__ = (
        "_reservation",
        "arriving",
        "began_at",
        "claim",
        "filled",
        "fin",
        "frame",
        "head",
        "is_deferred",
        "length",
        "protocol",
        "refusal",
        "response",
        "stream_id",
    )

    sends_long_reads = False
    """Clients accept no responses that are too large to be held."""

    def __init__(self, protocol: BinaryProtocol, stream_id: int, now: float) -> None:
        self.protocol = protocol
        self.stream_id = stream_id
        self.began_at = now
        """When it began, or got the memory that it had to wait for."""
        self.head = b""
        """The first bytes, while the length is unknown."""
        self.length = 0
        self.filled = 0
        """Bytes received of a request that is skipped."""
        self.claim: Claim | None = None
        self.arriving: PartialFrame | None = None
        self.frame: memoryview | None = None
        """The complete request."""
        self.refusal: list[Readable] | None = None
        """The response, if it is decided before the request is complete; the rest of the request is skipped."""
        self.fin = False
        self.is_deferred = False
        """It is answered out of order."""
        self.response: deque[memoryview] = deque()
        """The part of the response that the engine has not been given yet."""
        self._reservation: Reservation | None = None

    @property
    def is_whole(self) -> bool:
        return self.frame is not None or (self.refusal is not None and self.filled == self.length)

    @property
    def is_waiting(self) -> bool:
        """It waits for memory."""
        return self.claim is not None and self.claim.is_waiting

    def is_late(self, now: float, seconds_max: float) -> bool:
        arrived = self.filled if self.arriving is None else self.arriving.filled
        return not (self.is_whole or self.is_waiting) and now > self.began_at + seconds_max + arrived / RATE

    def on_room(self, granted: int) -> None:
        assert self.arriving is not None
        self.arriving.on_room(granted)
        self.began_at = time.monotonic()
        self.protocol.on_room(self, self.arriving)

    def on_reclaimed(self) -> None:
        self.protocol.on_reclaimed()

    def response_reservation(self) -> Reservation:
        if self._reservation is None:
            self._reservation = Reservation(self.protocol.response_account(), self.protocol.on_reclaimed)
        return self._reservation

    def defer(self, work: DeferredWork) -> None:
        self.is_deferred = True
        self.protocol.defer(self, work)

    def hold_response(self) -> None:
        """Reserves memory for a response that is sent piece by piece."""
        self.response_reservation().hold(sum(map(len, self.response)))

    def disconnect(self) -> None:
        """The client is gone; the request is still executed to its end."""
        if self._reservation is not None:
            self._reservation.disconnect()

    def release_response(self) -> None:
        """Nothing is left to send."""
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None


class BinaryProtocol:
    """The requests of one connection."""

    DONE_CODE, OVERDUE_CODE = NO_ERROR, OVERDUE

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._engine = connection.engine
        self._listener = connection.listener
        self._session = connection.session
        self._claim = Claim(connection.listener.budgets.requests_of(connection.session))
        """Holds the bytes of requests that arrived in one piece."""
        self._login: Login | None = None
        """The user whose account the requests are counted in."""
        self._conversation: Conversation | None = None
        """Created when the first bytes of the first stream show the protocol."""
        self._next_stream_id = 0
        self._arriving: dict[int, StreamRequest] = {}
        """Requests that have not started, in the order in which their streams were opened."""
        self._in_progress: set[StreamRequest] = set()
        self._deferred: set[StreamRequest] = set()
        """Requests that are answered out of order."""
        self._responding: dict[int, StreamRequest] = {}
        """Requests whose responses the engine has only in part."""
        self._stopping = False
        """Nothing more is received."""
        self._ended = False
        """No further request starts."""
        self._is_closed = False
        self._has_logged_in = False
        self._silent_since = time.monotonic()
        self._stall = StallDetector()

    # ------------------------------------------------------------------------------------------------------ receiving

    def on_event(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived):
            if event.stream_id & 3:
                self._connection.close_with(PROTOCOL_ERROR, "requests have to be sent on bidirectional streams")
            elif not (self._stopping or self._ended):
                self._on_data(event.stream_id, event.data, event.end_stream)
        elif isinstance(event, events.StreamReset):
            if not event.stream_id & 3 and (request := self._request(event.stream_id)) is not None:
                self._abandon(request)
        elif isinstance(event, events.StopSendingReceived):
            if (unwanted := self._responding.pop(event.stream_id, None)) is not None:
                unwanted.release_response()
            # Another request may take its place.
            self._start_ready()

    def _request(self, stream_id: int) -> StreamRequest | None:
        """Returns the request that is arriving on a stream; None if it has started or was abandoned."""
        if stream_id >= self._next_stream_id:
            now = time.monotonic()
            # Opening a stream opens all streams before it.
            for opened in range(self._next_stream_id, stream_id + 4, 4):
                self._arriving[opened] = StreamRequest(self, opened, now)
            self._next_stream_id = stream_id + 4
        return self._arriving.get(stream_id)

    def _on_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        if fin and stream_id == self._next_stream_id and not self._arriving and self._can_run_at_once(data):
            # The usual case: a small request that arrives in one piece, when it is its turn.
            self._next_stream_id += 4
            whole = StreamRequest(self, stream_id, 0.0)
            whole.frame, whole.fin = memoryview(bytearray(data)), True
            self._claim.count(len(data))
            self._execute(whole)
            return
        request = self._request(stream_id)
        if request is None:
            return
        if request.arriving is not None:
            self._fill(request, request.arriving, data)
        elif request.refusal is not None:
            request.filled = min(request.filled + len(data), request.length)
        elif data and request.frame is None:
            self._parse(request, request.head + data)
        request.fin = request.fin or fin
        if request.is_whole:
            self._start_ready()
        elif request.fin:
            self._abandon(request)

    def _can_run_at_once(self, data: bytes) -> bool:
        """Whether this is exactly one small request that may start now."""
        conversation = self._conversation
        if conversation is None or not 0 < len(data) <= INLINE_BYTES_MAX or not self._can_start():
            return False
        view = memoryview(data)
        try:
            return conversation.measure(view) == len(data) and conversation.refusal(view, len(data)) is None
        except CommandError:
            # `_parse` reports it.
            return False

    def _parse(self, request: StreamRequest, data: bytes) -> None:
        conversation = self._conversation
        if conversation is None:
            if len(data) < PREAMBLE_BYTES:
                request.head = data
                return
            listener = self._listener
            conversation = self._conversation = create_conversation(
                listener.gateway, self._session, data[:PREAMBLE_BYTES], listener.header_size, RESPONSE_BYTES_MAX
            )
        view = memoryview(data)
        try:
            length = conversation.measure(view)
        except CommandError as invalid:
            _log.info("%s: %s", self._session.address, invalid)
            self._ended = True
            self._connection.close_with(PROTOCOL_ERROR, "this is not a request")
            return
        request.head = b""
        if not length:
            request.head = data
            return
        request.length = length
        if (code := conversation.refusal(view, length)) is not None:
            request.refusal = conversation.encode_refusal(view, code)
            request.filled = min(len(data), length)
            return
        request.claim = Claim(self._listener.budgets.requests_of(self._session), request)
        # Bytes after the end of the frame are ignored.
        request.arriving = PartialFrame(request.claim, length, view[:length])
        self._open_window(request, request.arriving)
        self._check_progress(request, request.arriving)

    def _fill(self, request: StreamRequest, arriving: PartialFrame, data: bytes) -> None:
        missing = arriving.length - arriving.filled
        arriving.fill(memoryview(data)[:missing])
        self._check_progress(request, arriving)

    def _check_progress(self, request: StreamRequest, arriving: PartialFrame) -> None:
        if arriving.is_whole:
            arriving.claim.stop_waiting()
            request.frame, request.arriving = arriving.finish(), None
            return
        # The window moves before it is used up.
        is_ahead = arriving.reserved - arriving.filled > min(arriving.filled, STEP_BYTES_MAX) // 2
        if not (is_ahead or arriving.claim.is_waiting or arriving.reserved == arriving.length):
            arriving.ask()
            self._open_window(request, arriving)

    def _open_window(self, request: StreamRequest, arriving: PartialFrame) -> None:
        """Opens the window of the stream as far as memory is reserved for the request."""
        self._engine.open_window(request.stream_id, arriving.reserved)
        self._engine.freeze_window(request.stream_id)

    def response_account(self) -> Account:
        return self._listener.budgets.responses_to(self._session)

    def on_room(self, request: StreamRequest, arriving: PartialFrame) -> None:
        """Continues in a later callback, because other claims wait for theirs."""
        self._open_window(request, arriving)
        asyncio.get_running_loop().call_soon(self._resume)

    def on_reclaimed(self) -> None:
        self._connection.give_up(RECLAIMED)

    def _resume(self) -> None:
        self._start_ready()
        self._connection.schedule_flush()

    def _abandon(self, request: StreamRequest) -> None:
        """The client has cancelled the request, or its stream ends early: there is nothing to respond to."""
        self._discard(request)
        self._start_ready()

    def _discard(self, request: StreamRequest) -> None:
        del self._arriving[request.stream_id]
        self._release(request)
        if self._engine.can_be_written(request.stream_id):
            self._engine.reset_stream(request.stream_id, UNFINISHED_REQUEST)

    def _release(self, request: StreamRequest) -> None:
        self._engine.unfreeze_window(request.stream_id)
        frame, request.frame, request.arriving = request.frame, None, None
        if request.claim is not None:
            request.claim.close()
        elif frame is not None:
            self._claim.release(len(frame))

    # ------------------------------------------------------------------------------------------------------ responding

    def _start_ready(self) -> None:
        """Starts the requests whose turn it is. A request that waits for memory does not hold up those after it,
        because they may hold the memory that it needs."""
        while self._arriving and not self._ended and self._can_start():
            for request in self._arriving.values():
                if request.is_whole:
                    break
                if not request.is_waiting:
                    return
            else:
                return
            del self._arriving[request.stream_id]
            if request.refusal is not None:
                self._send(request, request.refusal)
            else:
                self._execute(request)

    def _execute(self, request: StreamRequest) -> None:
        self._in_progress.add(request)
        try:
            is_done = eager.start(self._respond(request), self._finish_later, request)
        except BaseException:
            self._finish(request)
            raise
        if is_done:
            self._finish(request)
        else:
            self._connection.expect_response()

    def _can_start(self) -> bool:
        if len(self._responding) >= IN_PROGRESS_MAX:
            return False
        return len(self._in_progress) < (1 if self._session.login is None else IN_PROGRESS_MAX)

    async def _respond(self, request: StreamRequest) -> None:
        conversation = self._conversation
        assert conversation is not None and request.frame is not None
        buffers = await conversation.respond(request.frame, request)
        if not request.is_deferred:
            self._send(request, _bounded(conversation, request.frame, buffers))

    def defer(self, request: StreamRequest, work: DeferredWork) -> None:
        conversation = self._conversation
        assert conversation is not None and request.frame is not None
        self._deferred.add(request)
        head = memoryview(bytes(request.frame[:HEAD_BYTES]))
        asyncio.get_running_loop().create_task(self._respond_deferred(request, conversation, head, work))

    async def _respond_deferred(
        self, request: StreamRequest, conversation: Conversation, head: memoryview, work: DeferredWork
    ) -> None:
        try:
            buffers = await work(request)
        finally:
            self._deferred.discard(request)
        self._send(request, _bounded(conversation, head, buffers))
        self._connection.schedule_flush()

    def _finish_later(self, request: StreamRequest) -> None:
        self._finish(request)
        self._resume()

    def _finish(self, request: StreamRequest) -> None:
        self._in_progress.discard(request)
        self._release(request)
        if self._session.login is not self._login:
            self._login = self._session.login
            if self._conversation is not None and self._conversation.successor is not None:
                self._conversation = self._conversation.successor
            self._claim.move(self._listener.budgets.requests_of(self._session))
        if self._is_closed:
            request.release_response()
            if not self._in_progress:
                self._claim.close()
        if self._session.login is not None and not self._has_logged_in:
            self._has_logged_in = True
            self._engine.raise_stream_limit(self._listener.streams_max)
        if self._session.login is None:
            self._silent_since = time.monotonic()
        if self._conversation is not None and self._conversation.is_over and not self._ended:
            self._connection.drain()

    def _send(self, request: StreamRequest, buffers: list[Readable]) -> None:
        stream_id = request.stream_id
        if self._is_closed or not self._engine.can_be_written(stream_id):
            request.release_response()
            return
        if not request.fin and self._engine.is_being_received(stream_id):
            self._engine.stop_stream(stream_id, NO_ERROR)
        self._connection.has_responses = True
        size = sum(map(len, buffers))
        if not self._responding and (size <= SMALL_BYTES_MAX or self._fits_window(size)):
            self._engine.send_stream_data(stream_id, b"".join(buffers), end_stream=True)
            request.release_response()
            return
        request.response.extend(map(memoryview, buffers))
        request.hold_response()
        self._responding[stream_id] = request
        self._send_more(request, self._engine.unacknowledged_bytes)

    def _fits_window(self, size: int) -> bool:
        return size + self._engine.unacknowledged_bytes <= self._listener.send_window

    def _send_more(self, request: StreamRequest, unacknowledged: int) -> int:
        """Gives the engine as much of a response as fits the window; returns the bytes that are unacknowledged then."""
        response, window = request.response, self._listener.send_window
        while response and unacknowledged < window:
            pieces = []
            room = window - unacknowledged
            while response and room > 0:
                piece = response.popleft()
                if len(piece) > room:
                    response.appendleft(piece[room:])
                    piece = piece[:room]
                pieces.append(piece)
                room -= len(piece)
            unacknowledged = window - room
            octets = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._engine.send_stream_data(request.stream_id, octets, end_stream=not response)  # type: ignore[arg-type]
        if not response:
            self._responding.pop(request.stream_id, None)
            request.release_response()
        return unacknowledged

    def on_acknowledged(self) -> None:
        if not self._responding:
            return
        unacknowledged = self._engine.unacknowledged_bytes
        for request in list(self._responding.values()):
            unacknowledged = self._send_more(request, unacknowledged)
        self._start_ready()

    # -------------------------------------------------------------------------------------------------------- the end

    def overdue(self, now: float) -> str | None:
        if self._has_stalled(now):
            return "it does not read what it was sent"
        if any(request.is_late(now, self._listener.limits.frame_time) for request in self._arriving.values()):
            return "a request takes too long to arrive"
        is_silent = self._session.login is None and not self._in_progress and not self._arriving
        if is_silent and now > self._silent_since + self._listener.limits.silence_before_login:
            return "it is silent and has not logged in"
        return None

    def _has_stalled(self, now: float) -> bool:
        engine, listener = self._engine, self._listener
        unsent = sum(sum(map(len, request.response)) for request in self._responding.values())
        return self._stall.has_stalled(
            now,
            engine.unacknowledged_bytes + unsent,
            listener.stalled_seconds,
            delivered=engine.acknowledged_bytes,
            is_contended=listener.budgets.is_contended,
        )

    def drain(self) -> None:
        """Executes the requests that have arrived when it is their turn. An incomplete request ends this: it and all
        requests after it are dropped, so that the order is kept."""
        self._stopping = True
        self._ended = self._ended or (self._conversation is not None and self._conversation.is_over)
        is_next_missing = self._ended
        for request in list(self._arriving.values()):
            is_next_missing = is_next_missing or not (request.is_whole or request.is_waiting)
            if is_next_missing or not request.is_whole:
                self._discard(request)

    @property
    def is_idle(self) -> bool:
        return not (self._in_progress or self._responding or (self._arriving and not self._ended))

    def close(self) -> None:
        self._ended = True
        for request in [*self._arriving.values()]:
            self._release(request)
        self._arriving.clear()
        for request in self._responding.values():
            request.release_response()
        self._responding.clear()
        for request in (*self._in_progress, *self._deferred):
            request.disconnect()
        self._is_closed = True
        if not self._in_progress:
            self._claim.close()
        if self._conversation is not None:
            self._conversation.close()


def _bounded(conversation: Conversation, frame: memoryview, buffers: list[Readable]) -> list[Readable]:
    """Returns the response, or a refusal if official clients would not accept one of this size."""
    if sum(map(len, buffers)) > RESPONSE_BYTES_MAX:
        return conversation.encode_refusal(frame, Code.INVALID_SIZE_BYTES)
    return buffers
