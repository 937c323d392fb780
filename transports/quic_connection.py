"""One client over QUIC: what its streams say becomes requests, in the order in which they were opened.

A stream carries one request and, when that is answered, its answer, and ends in both directions. Whose turn it is: the
requests of a connection begin in the order of their streams, each when it is whole, and a few may be in hand at once; a
stranger has one at a time, so that what follows a login finds it done. What a connection is, logged in and a member of
groups, it is for all of its streams.

What a client may send is decided by transports/admission, and by the windows of quic_engine.py besides.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Protocol

from aioquic.quic import events
from aioquic.quic.packet import QuicErrorCode, QuicFrameType

from whippet.app.config.formats import host_and_port
from whippet.app.errors import Code, CommandError
from whippet.app.model.identity import Login
from whippet.app.model.sessions import Session, Transport
from whippet.storage.batch import Readable
from whippet.transports import conversation, eager
from whippet.transports.admission.budget import FREE_BYTES, RECLAIMED, STEP_BYTES_MAX, Account, Claim
from whippet.transports.admission.frame_intake import RATE, PartialFrame
from whippet.transports.admission.stall_detector import StallDetector
from whippet.transports.conversation import BEGINNING_BYTES, Conversation
from whippet.transports.datagrams import PeerAddress
from whippet.transports.http3 import Http3
from whippet.transports.quic_engine import HTTP3, Engine
from whippet.transports.reservations import DeferredWork, Reservation

if TYPE_CHECKING:
    from whippet.transports.quic import QuicListener

_log = logging.getLogger(__name__)

IN_HAND_MAX = 8
"""Requests of one connection that are being carried out."""
ANSWER_BYTES_MAX = 10_000_000
"""Official clients take no more, with the header of the answer."""
HEAD_BYTES = 256
"""The beginning of a frame that is enough to refuse it, in every protocol."""
AT_ONCE_BYTES_MAX = 64 << 10
"""A request that comes whole in one piece, and is no larger, is carried out where it stands."""
NO_ERROR, PROTOCOL_ERROR, OVERDUE = 0, 1, 2
"""What a connection is closed with."""
SMALL_BYTES_MAX = 4 << 10
"""An answer up to this size does not wait for those before it to be taken."""
LINGER_SECONDS = 2.0
"""How long the last answers may not get through; a client that looks at its socket only when it asks hears nothing."""
UNFINISHED = 3
"""What a stream is reset with that ends before its request does."""


class Request:
    """What has come on one stream."""

    __slots__ = (
        "_reservation",
        "answer",
        "arriving",
        "began_at",
        "claim",
        "filled",
        "fin",
        "frame",
        "is_deferred",
        "length",
        "part",
        "refusal",
        "stream_id",
        "talk",
    )

    def __init__(self, talk: Binary, stream_id: int, now: float) -> None:
        self.talk = talk
        self.stream_id = stream_id
        self.began_at = now
        """Or when it got the room that it had to wait for."""
        self.part = b""
        """Its beginning, as long as its length is not known."""
        self.length = 0
        self.filled = 0
        """As much as there is of one that is read past."""
        self.claim: Claim | None = None
        self.arriving: PartialFrame | None = None
        self.frame: memoryview | None = None
        """All of it."""
        self.refusal: list[Readable] | None = None
        """The response, decided already: what comes is read past."""
        self.fin = False
        self.is_deferred = False
        """It is answered while others are."""
        self.answer: deque[memoryview] = deque()
        """What is still to be handed to the engine."""
        self._reservation: Reservation | None = None

    @property
    def is_whole(self) -> bool:
        return self.frame is not None or (self.refusal is not None and self.filled == self.length)

    @property
    def is_waiting(self) -> bool:
        """For room."""
        return self.claim is not None and self.claim.is_waiting

    def is_late(self, now: float, seconds_max: float) -> bool:
        arrived = self.filled if self.arriving is None else self.arriving.filled
        return not (self.is_whole or self.is_waiting) and now > self.began_at + seconds_max + arrived / RATE

    def on_room(self, granted: int) -> None:
        assert self.arriving is not None
        self.arriving.on_room(granted)
        self.began_at = time.monotonic()
        self.talk.on_room(self, self.arriving)

    def on_reclaimed(self) -> None:
        self.talk.on_reclaimed()

    def response_reservation(self) -> Reservation:
        if self._reservation is None:
            self._reservation = Reservation(self.talk.responses(), self.talk.on_reclaimed)
        return self._reservation

    def defer(self, work: DeferredWork) -> None:
        self.is_deferred = True
        self.talk.defer(self, work)

    def settle(self) -> None:
        """Its response has to be handed over piece by piece."""
        self.response_reservation().hold(sum(map(len, self.answer)))

    def leave(self) -> None:
        """The client is gone; what is in hand comes to its end all the same."""
        if self._reservation is not None:
            self._reservation.disconnect()

    def release(self) -> None:
        """Nothing is left to be handed over."""
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None


class Speaker(Protocol):
    """What is spoken on a connection: a binary protocol, or HTTP/3."""

    OVER: int
    """What a connection is closed with on which all was said."""
    OVERDUE: int
    """And one that is not worth keeping."""

    def on_event(self, event: events.QuicEvent) -> None: ...

    def on_taken(self) -> None:
        """Something may have been acknowledged."""

    def overdue(self, now: float) -> str | None: ...

    def end(self) -> None:
        """No more requests; those in hand are answered."""

    @property
    def is_done(self) -> bool:
        """Nothing is in hand."""

    def close(self) -> None:
        """The connection is gone."""


class Connection:
    """Datagrams, events and the timer of one engine. All methods run on the event loop."""

    def __init__(self, listener: QuicListener, engine: Engine, peer: PeerAddress) -> None:
        self.listener = listener
        self.engine = engine
        self.session = Session(
            Transport.QUIC, host_and_port(*peer[:2]), listener.gateway.clock(), self.end, listener.address.host
        )
        self.ids: set[bytes] = set()
        """By which its datagrams are known."""
        self.is_established = False
        self.is_http = False
        self.is_counted = False
        """By the listener, as one that is through its handshake."""
        self.ending = False
        self.has_answers = False
        """They can be sent."""
        self._is_answered_soon = False
        self._parting = StallDetector()
        self._untaken: Reservation | None = None
        """The room of what the engine has been handed and the client has not taken, as of the last look."""
        self._speaker: Speaker | None = None
        self._begun_at = self._said_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._gone = False

    # -------------------------------------------------------------------------------------------------- datagrams, time

    def receive(self, datagram: bytes, peer: PeerAddress, now: float) -> None:
        engine = self.engine
        try:
            engine.receive_datagram(datagram, peer, now)
            while (event := engine.next_event()) is not None:
                self._on_event(event)
        except Exception:  # noqa: BLE001 -- whatever a datagram does to its connection, it does to no other
            _log.exception("%s: a datagram ended in a defect", self.session.address)
            self.lose()

    def settle(self, now: float) -> None:
        """Acts on what has happened, sends what there is to send, and knows when to look again."""
        if self._gone:
            return
        try:
            self._settle(now)
        except Exception:  # noqa: BLE001 -- as above
            _log.exception("%s: the connection ended in a defect", self.session.address)
            self.lose()

    def _settle(self, now: float) -> None:
        engine = self.engine
        while (event := engine.next_event()) is not None:
            self._on_event(event)
        if self._is_answered_soon:
            self._is_answered_soon = False
            if not self.has_answers:
                # What is said then is said together with what would be said now.
                self.touch()
                return
        speaker = self._speaker
        if speaker is not None and not self._gone:
            speaker.on_taken()
            if self.ending and speaker.is_done and not engine.all_unsent:
                # What is still to be said goes first.
                self._transmit(now)
                engine.close(speaker.OVER)
        self._transmit(now)
        if engine.is_over:
            self.lose()
            return
        if not self._gone:
            self._set_timer(now)

    def _transmit(self, now: float) -> None:
        self.has_answers = False
        datagrams: list[bytes] = []
        to: PeerAddress | None = None
        send = self.listener.send
        for datagram, peer in self.engine.datagrams_to_send(now):
            if peer != to and datagrams:
                assert to is not None
                send(datagrams, to)
                datagrams = []
            to = peer
            datagrams.append(datagram)
        if datagrams and to is not None:
            send(datagrams, to)
            self._said_at = now

    def _set_timer(self, now: float) -> None:
        """A timer that is early finds that out when it fires: most are moved on and on."""
        at = self.engine.get_timer()
        if self._timer is not None:
            if at is not None and self._timer_at <= at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer_at = at
            self._timer = asyncio.get_running_loop().call_later(max(at - now, 0.001), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now = time.monotonic()
        at = self.engine.get_timer()
        if at is not None and at <= now:
            try:
                self.engine.handle_timer(now)
            except Exception:  # noqa: BLE001 -- as above
                _log.exception("%s: a timer ended in a defect", self.session.address)
                self.lose()
                return
            self.settle(now)
        elif not self._gone:
            self._set_timer(now)

    def look(self, now: float, silence_max: float) -> None:
        """Asked at intervals: whether it is worth keeping, and whether it has to be told that we are here."""
        try:
            self._count_untaken()
            reason = self.overdue(now)
        except Exception:  # noqa: BLE001 -- as above
            _log.exception("%s: its deadlines ended in a defect", self.session.address)
            self.lose()
            return
        if reason is not None:
            _log.info("%s: closed, because %s", self.session.address, reason)
            self.cut(reason)
        elif self.is_established and silence_max and now - self._said_at > silence_max:
            self.engine.send_ping(0)
            self.touch()

    def _count_untaken(self) -> None:
        """What the engine keeps until the client has taken it shares the memory of responses."""
        unsent = self.engine.all_unsent
        if self._untaken is None:
            if unsent <= FREE_BYTES:
                return
            self._untaken = Reservation(self.listener.budgets.responses_to(self.session), partial(self.cut, RECLAIMED))
        self._untaken.claim.move(self.listener.budgets.responses_to(self.session))
        self._untaken.hold(unsent)

    # ------------------------------------------------------------------------------------------------------- events

    def _on_event(self, event: events.QuicEvent) -> None:
        if type(event) is events.StreamDataReceived and self._speaker is not None:
            self._speaker.on_event(event)
        elif isinstance(event, events.ConnectionIdIssued):
            self.listener.know(self, event.connection_id)
        elif isinstance(event, events.ConnectionIdRetired):
            self.listener.unknow(self, event.connection_id)
        elif isinstance(event, events.HandshakeCompleted):
            self.is_established = True
            self.is_http = event.alpn_protocol == HTTP3
            if self.listener.welcome(self):
                self._begin()
            else:
                reason = "too many connections"
                self.engine.close(QuicErrorCode.CONNECTION_REFUSED, QuicFrameType.PADDING, reason)
        elif self._speaker is not None:
            self._speaker.on_event(event)

    def _begin(self) -> None:
        application = self.listener.application
        if self.is_http and application is not None:
            self._speaker = Http3(self, application)
        else:
            self._speaker = Binary(self)
        if self.ending:
            self.end()

    def await_answer(self) -> None:
        """Somebody is at it, who may have come to an end in the next turn of the loop."""
        self._is_answered_soon = True

    def touch(self) -> None:
        """There is something to send or to do, soon."""
        self.listener.touch(self)

    # --------------------------------------------------------------------------------------------------------- the end

    def overdue(self, now: float) -> str | None:
        speaker, engine = self._speaker, self.engine
        if speaker is not None and self.ending and speaker.is_done:
            unsent, taken = engine.all_unsent, engine.taken_bytes
            is_gone = self._parting.has_stalled(now, unsent, LINGER_SECONDS, taken=taken, enough=1)
            return "it does not take the last answers" if is_gone else None
        if speaker is not None:
            return speaker.overdue(now)
        if now - self._begun_at > self.listener.limits.silence_before_login:
            return "its handshake takes too long"
        return None

    def end(self) -> None:
        """No more requests; those in hand are answered, then the connection closes."""
        self.ending = True
        if self._speaker is not None:
            self._speaker.end()
        else:
            self.abort(NO_ERROR, "")
        self.touch()

    def cut(self, reason: str) -> None:
        """It is not worth keeping."""
        self.abort(OVERDUE if self._speaker is None else self._speaker.OVERDUE, reason)

    def abort(self, code: int, reason: str) -> None:
        """Says so and is gone."""
        if not self._gone:
            self.engine.close(code, reason_phrase=reason)
            self.touch()

    def lose(self) -> None:
        """Gone without a word, or after the last one."""
        if self._gone:
            return
        self._gone = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._untaken is not None:
            self._untaken.close()
        self.listener.farewell(self)
        if self._speaker is not None:
            self._speaker.close()
            self._speaker = None


class Binary:
    """The binary protocols."""

    OVER, OVERDUE = NO_ERROR, OVERDUE

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._engine = connection.engine
        self._listener = connection.listener
        self._session = connection.session
        self._claim = Claim(connection.listener.budgets.requests_of(connection.session))
        """Of requests that came whole."""
        self._login: Login | None = None
        """Of the user whose account the requests are on."""
        self._conversation: Conversation | None = None
        """From the first bytes of the first stream on: they say which protocol this is."""
        self._opened = 0
        """The stream that is opened next."""
        self._arriving: dict[int, Request] = {}
        """Those that have not begun, in the order in which their streams were opened."""
        self._in_hand: set[Request] = set()
        self._late: set[Request] = set()
        """Those that are answered while others are."""
        self._answering: dict[int, Request] = {}
        """Those whose answers the engine has not got completely."""
        self._stopping = False
        """Nothing more is received."""
        self._ended = False
        """Nor does any request begin any more."""
        self._is_closed = False
        self._has_logged_in = False
        self._silent_since = time.monotonic()
        self._stalling = StallDetector()

    # ------------------------------------------------------------------------------------------------------ receiving

    def on_event(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived):
            if event.stream_id & 3:
                self._connection.abort(PROTOCOL_ERROR, "requests come on bidirectional streams")
            elif not (self._stopping or self._ended):
                self._on_data(event.stream_id, event.data, event.end_stream)
        elif isinstance(event, events.StreamReset):
            if not event.stream_id & 3 and (request := self._request(event.stream_id)) is not None:
                self._drop(request)
        elif isinstance(event, events.StopSendingReceived):
            if (taken_back := self._answering.pop(event.stream_id, None)) is not None:
                taken_back.release()
            # Somebody else may have its place.
            self._begin()

    def _request(self, stream_id: int) -> Request | None:
        """What is arriving on this stream; None when nothing is, any more."""
        if stream_id >= self._opened:
            now = time.monotonic()
            # One that is opened opens all before it.
            for opened in range(self._opened, stream_id + 4, 4):
                self._arriving[opened] = Request(self, opened, now)
            self._opened = stream_id + 4
        return self._arriving.get(stream_id)

    def _on_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        if fin and stream_id == self._opened and not self._arriving and self._is_next(data):
            # As a rule: all of a small request at once, and its turn.
            self._opened += 4
            whole = Request(self, stream_id, 0.0)
            whole.frame, whole.fin = memoryview(bytearray(data)), True
            self._claim.count(len(data))
            self._carry_out(whole)
            return
        request = self._request(stream_id)
        if request is None:
            return
        if request.arriving is not None:
            self._fill(request, request.arriving, data)
        elif request.refusal is not None:
            request.filled = min(request.filled + len(data), request.length)
        elif data and request.frame is None:
            self._take_apart(request, request.part + data)
        request.fin = request.fin or fin
        if request.is_whole:
            self._begin()
        elif request.fin:
            self._drop(request)

    def _is_next(self, data: bytes) -> bool:
        """It is a whole request and nothing else, small, and can be carried out."""
        talk = self._conversation
        if talk is None or not 0 < len(data) <= AT_ONCE_BYTES_MAX or not self._has_a_hand():
            return False
        view = memoryview(data)
        try:
            return talk.measure(view) == len(data) and talk.refused(view, len(data)) is None
        except CommandError:
            # Which is looked into and said where requests are taken apart.
            return False

    def _take_apart(self, request: Request, data: bytes) -> None:
        talk = self._conversation
        if talk is None:
            if len(data) < BEGINNING_BYTES:
                request.part = data
                return
            listener = self._listener
            talk = self._conversation = conversation.begin(
                listener.gateway, self._session, data[:BEGINNING_BYTES], listener.header_size, ANSWER_BYTES_MAX
            )
        view = memoryview(data)
        try:
            length = talk.measure(view)
        except CommandError as lost:
            _log.info("%s: %s", self._session.address, lost)
            self._ended = True
            self._connection.abort(PROTOCOL_ERROR, "this is no request")
            return
        request.part = b""
        if not length:
            request.part = data
            return
        request.length = length
        if (code := talk.refused(view, length)) is not None:
            request.refusal = talk.refuse(view, code)
            request.filled = min(len(data), length)
            return
        request.claim = Claim(self._listener.budgets.requests_of(self._session), request)
        # What comes after the end of a frame means nothing.
        request.arriving = PartialFrame(request.claim, length, view[:length])
        self._allow(request, request.arriving)
        self._look(request, request.arriving)

    def _fill(self, request: Request, arriving: PartialFrame, data: bytes) -> None:
        missing = arriving.length - arriving.filled
        arriving.fill(memoryview(data)[:missing])
        self._look(request, arriving)

    def _look(self, request: Request, arriving: PartialFrame) -> None:
        if arriving.is_whole:
            arriving.claim.stop_waiting()
            request.frame, request.arriving = arriving.finish(), None
            return
        # The window is moved on before it is used up.
        is_ahead = arriving.reserved - arriving.filled > min(arriving.filled, STEP_BYTES_MAX) // 2
        if not (is_ahead or arriving.claim.is_waiting or arriving.reserved == arriving.length):
            arriving.ask()
            self._allow(request, arriving)

    def _allow(self, request: Request, arriving: PartialFrame) -> None:
        """The window of the stream goes as far as there is room for the request."""
        self._engine.allow(request.stream_id, arriving.reserved)
        self._engine.hold(request.stream_id)

    def responses(self) -> Account:
        return self._listener.budgets.responses_to(self._session)

    def on_room(self, request: Request, arriving: PartialFrame) -> None:
        """It goes on in a turn of its own: others wait for theirs."""
        self._allow(request, arriving)
        asyncio.get_running_loop().call_soon(self._go_on)

    def on_reclaimed(self) -> None:
        self._connection.cut(RECLAIMED)

    def _go_on(self) -> None:
        self._begin()
        self._connection.touch()

    def _drop(self, request: Request) -> None:
        """It was taken back, or ends before it is whole: there is nothing to answer."""
        self._give_up(request)
        self._begin()

    def _give_up(self, request: Request) -> None:
        del self._arriving[request.stream_id]
        self._give_back(request)
        if self._engine.can_be_written(request.stream_id):
            self._engine.reset_stream(request.stream_id, UNFINISHED)

    def _give_back(self, request: Request) -> None:
        self._engine.release(request.stream_id)
        frame, request.frame, request.arriving = request.frame, None, None
        if request.claim is not None:
            request.claim.close()
        elif frame is not None:
            self._claim.release(len(frame))

    # ------------------------------------------------------------------------------------------------------ answering

    def _begin(self) -> None:
        """Whose turn it is. One that waits for room does not hold up those after it, which may have what it needs."""
        while self._arriving and not self._ended and self._has_a_hand():
            for request in self._arriving.values():
                if request.is_whole:
                    break
                if not request.is_waiting:
                    return
            else:
                return
            del self._arriving[request.stream_id]
            if request.refusal is not None:
                self._say(request, request.refusal)
            else:
                self._carry_out(request)

    def _carry_out(self, request: Request) -> None:
        self._in_hand.add(request)
        try:
            is_done = eager.begin(self._answer(request), self._answered_later, request)
        except BaseException:
            self._answered(request)
            raise
        if is_done:
            self._answered(request)
        else:
            self._connection.await_answer()

    def _has_a_hand(self) -> bool:
        if len(self._answering) >= IN_HAND_MAX:
            return False
        return len(self._in_hand) < (1 if self._session.login is None else IN_HAND_MAX)

    async def _answer(self, request: Request) -> None:
        talk = self._conversation
        assert talk is not None and request.frame is not None
        buffers = await talk.answer(request.frame, request)
        if not request.is_deferred:
            self._say(request, _bounded(talk, request.frame, buffers))

    def defer(self, request: Request, work: DeferredWork) -> None:
        talk = self._conversation
        assert talk is not None and request.frame is not None
        self._late.add(request)
        head = memoryview(bytes(request.frame[:HEAD_BYTES]))
        asyncio.get_running_loop().create_task(self._respond_later(request, talk, head, work))

    async def _respond_later(self, request: Request, talk: Conversation, head: memoryview, work: DeferredWork) -> None:
        try:
            buffers = await work(request)
        finally:
            self._late.discard(request)
        self._say(request, _bounded(talk, head, buffers))
        self._connection.touch()

    def _answered_later(self, request: Request) -> None:
        self._answered(request)
        self._go_on()

    def _answered(self, request: Request) -> None:
        self._in_hand.discard(request)
        self._give_back(request)
        if self._session.login is not self._login:
            self._login = self._session.login
            if self._conversation is not None and self._conversation.successor is not None:
                self._conversation = self._conversation.successor
            self._claim.move(self._listener.budgets.requests_of(self._session))
        if self._is_closed:
            request.release()
            if not self._in_hand:
                self._claim.close()
        if self._session.login is not None and not self._has_logged_in:
            self._has_logged_in = True
            self._engine.allow_streams(self._listener.streams_max)
        if self._session.login is None:
            self._silent_since = time.monotonic()
        if self._conversation is not None and self._conversation.over and not self._ended:
            self._connection.end()

    def _say(self, request: Request, buffers: list[Readable]) -> None:
        stream_id = request.stream_id
        if self._is_closed or not self._engine.can_be_written(stream_id):
            request.release()
            return
        if not request.fin and self._engine.is_being_received(stream_id):
            self._engine.stop_stream(stream_id, NO_ERROR)
        self._connection.has_answers = True
        size = sum(map(len, buffers))
        if not self._answering and (size <= SMALL_BYTES_MAX or self._has_room_for(size)):
            self._engine.send_stream_data(stream_id, b"".join(buffers), end_stream=True)
            request.release()
            return
        request.answer.extend(map(memoryview, buffers))
        request.settle()
        self._answering[stream_id] = request
        self._hand_over(request, self._engine.all_unsent)

    def _has_room_for(self, size: int) -> bool:
        return size + self._engine.all_unsent <= self._listener.send_window

    def _hand_over(self, request: Request, unsent: int) -> int:
        """As much of an answer as the window has room for; returns how much is unsent now."""
        answer, window = request.answer, self._listener.send_window
        while answer and unsent < window:
            pieces = []
            room = window - unsent
            while answer and room > 0:
                piece = answer.popleft()
                if len(piece) > room:
                    answer.appendleft(piece[room:])
                    piece = piece[:room]
                pieces.append(piece)
                room -= len(piece)
            unsent = window - room
            octets = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._engine.send_stream_data(request.stream_id, octets, end_stream=not answer)  # type: ignore[arg-type]
        if not answer:
            self._answering.pop(request.stream_id, None)
            request.release()
        return unsent

    def on_taken(self) -> None:
        if not self._answering:
            return
        unsent = self._engine.all_unsent
        for request in list(self._answering.values()):
            unsent = self._hand_over(request, unsent)
        self._begin()

    # -------------------------------------------------------------------------------------------------------- the end

    def overdue(self, now: float) -> str | None:
        if self._has_stalled(now):
            return "it does not take what it was sent"
        if any(request.is_late(now, self._listener.limits.frame_time) for request in self._arriving.values()):
            return "a request takes too long to arrive"
        is_silent = self._session.login is None and not self._in_hand and not self._arriving
        if is_silent and now > self._silent_since + self._listener.limits.silence_before_login:
            return "it is silent and has not logged in"
        return None

    def _has_stalled(self, now: float) -> bool:
        engine = self._engine
        untaken = engine.all_unsent + sum(sum(map(len, request.answer)) for request in self._answering.values())
        seconds_max, is_contended = self._listener.stalled_seconds, self._listener.budgets.is_contended
        return self._stalling.has_stalled(
            now, untaken, seconds_max, taken=engine.taken_bytes, is_contended=is_contended
        )

    def end(self) -> None:
        """A request that has arrived is carried out when its turn comes, unless one before it has not: that will not be
        carried out, and the order of requests is kept."""
        self._stopping = True
        self._ended = self._ended or (self._conversation is not None and self._conversation.over)
        is_next_missing = self._ended
        for request in list(self._arriving.values()):
            is_next_missing = is_next_missing or not (request.is_whole or request.is_waiting)
            if is_next_missing or not request.is_whole:
                self._give_up(request)

    @property
    def is_done(self) -> bool:
        return not (self._in_hand or self._answering or (self._arriving and not self._ended))

    def close(self) -> None:
        self._ended = True
        for request in [*self._arriving.values()]:
            self._give_back(request)
        self._arriving.clear()
        for request in self._answering.values():
            request.release()
        self._answering.clear()
        for request in (*self._in_hand, *self._late):
            request.leave()
        self._is_closed = True
        if not self._in_hand:
            self._claim.close()
        if self._conversation is not None:
            self._conversation.close()


def _bounded(talk: Conversation, frame: memoryview, buffers: list[Readable]) -> list[Readable]:
    """The response, or a refusal if official clients would not accept one of this size."""
    if sum(map(len, buffers)) > ANSWER_BYTES_MAX:
        return talk.refuse(frame, Code.INVALID_SIZE_BYTES)
    return buffers
