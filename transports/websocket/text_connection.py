"""Messages of text over WebSocket, for the channel of browsers: whole ones in, whole ones out.

What a client may send is decided by transports/admission; this reads and writes as that says. Messages are answered one
after the other by a task that lives while there are any. Whoever writes waits until there is room, so that a connection
never has more to send than that and one message. A client that does not take what it is sent is cut off, and nobody
else notices.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, cast

from websockets.frames import CloseCode

from whippet.app.model.identity import Login
from whippet.app.model.sessions import Session, Transport
from whippet.storage.batch import Readable
from whippet.transports import lingering_close
from whippet.transports.admission.budget import FREE_BYTES, RECLAIMED
from whippet.transports.admission.frame_intake import AHEAD_MAX
from whippet.transports.admission.stall_detector import StallDetector
from whippet.transports.admission.text_intake import TextIntake
from whippet.transports.connections import MAPPED, peer_address
from whippet.transports.reservations import Reservation
from whippet.transports.websocket import framing
from whippet.transports.websocket.binary_connection import READ_BYTES, incoming
from whippet.transports.websocket.framing import BINARY, CLOSE, PING, PONG, TEXT, Violation

if TYPE_CHECKING:
    from whippet.transports.websocket.channel import Channel
    from whippet.transports.websocket.listener import WebSockets

_log = logging.getLogger(__name__)

ROOM_BYTES = 256 << 10
"""With so much still to be sent, whoever wants to send more waits."""
JOINED_BYTES_MAX = 32 << 10
"""Up to here one buffer is quicker than several."""
UNAUTHENTICATED_MESSAGE_BYTES = 64 << 10
"""Nobody needs more to sign in."""
UNAUTHORIZED = 3000
"""As it is registered for WebSocket."""


class Gone(Exception):
    """Nobody hears what is said."""


class TextConnection(asyncio.BufferedProtocol):
    """One client. All methods run on the event loop."""

    def __init__(self, listener: WebSockets, authorization: bytes | None) -> None:
        self._listener = listener
        self._authorization = authorization
        config = listener.gateway.config
        self._incoming = incoming(config.websocket)
        self._read_bytes = config.websocket.read_buffer_size or READ_BYTES
        self._message_bytes_max = config.http.max_request_size
        self._limits = config.websocket.channel
        self._stalled_seconds = config.http.readers.stall_time
        self._transport = cast(asyncio.Transport, None)
        self.session = cast(Session, None)
        self._channel = cast("Channel", None)
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._intake = cast(TextIntake, None)
        self._login: Login | None = None
        """Of the user whose account the messages are on."""
        self._working: asyncio.Task[None] | None = None
        self.is_full = False
        """Whoever wants to say more waits for `room`."""
        self._pinged_with: bytes | None = None
        """The last ping that came while there was no room for its answer: that one is enough."""
        self._writers: list[asyncio.Future[None]] = []
        self._goodbye: tuple[int | None, str] = (CloseCode.GOING_AWAY, "")
        self._closed_by_client = False
        self._eof = False
        self._ended = False
        self._lingers_until = 0.0
        self._heard_at = 0.0
        self._pinged_at = 0.0
        self._silent_since = 0.0
        self._stalling = StallDetector()
        self._untaken: Reservation | None = None
        """The room of what the client has not taken of all that was sent."""

    # ------------------------------------------------------------------------------------------------- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        listener = self._listener
        if not listener.admit(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(ROOM_BYTES)
        at = transport.get_extra_info("sockname")
        self.session = Session(
            Transport.WEBSOCKET,
            peer_address(transport.get_extra_info("peername")),
            listener.gateway.clock(),
            self._removed,
            at[0].removeprefix(MAPPED) if at else "",
        )
        # A browser answers the pings of WebSocket by itself, and who does not is closed after `silence_time`.
        self.session.is_watched = True
        self._intake = TextIntake(listener.budgets.requests_of(self.session), self._read_on, self.give_way)
        self._heard_at = self._silent_since = time.monotonic()
        self._channel = listener.open_channel(self)
        if self._authorization is not None:
            self._begin_to_work()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._listener.remove(self)
        if self._intake is not None:
            self._intake.drop()
        if not self.gone.done():
            self.gone.set_result(None)
        self._wake_writers()
        if self._untaken is not None:
            self._untaken.close()
        if self._channel is not None:
            self._channel.close()

    def eof_received(self) -> bool:
        self._eof = True
        if self._working is None or self._lingers_until:
            return False
        self._ended = True
        return self._transport.get_extra_info("sslcontext") is None

    @property
    def address(self) -> str:
        return self.session.address

    def drain(self) -> None:
        """No more commands; those in hand are answered, then the connection closes."""
        self._end(is_heard=not self._closed_by_client)

    def end_with(self, code: int, reason: str) -> None:
        """The same, but polls that wait for messages are not answered any more."""
        if not self._ended:
            self._goodbye = (code, reason)
            self._channel.abandon_polls()
            self._end(is_heard=True)

    def _end(self, *, is_heard: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self._intake.claim.stop_waiting()
        self._channel.part(is_heard=is_heard)
        if not is_heard:
            self._channel.abandon_polls()
        if self._is_working:
            self._transport.pause_reading()
        else:
            self._close()

    @property
    def _is_working(self) -> bool:
        return self._working is not None or self._channel.is_polling

    def poll_answered(self) -> None:
        """One that was carried out apart from the other commands."""
        if self._ended and not self._is_working:
            self._close()

    def _removed(self) -> None:
        self.end_with(UNAUTHORIZED, "all sessions of the user have ended")

    def _close(self) -> None:
        if self._lingers_until or self._transport.is_closing():
            return
        is_over = self._closed_by_client or self._eof
        self._transport.write(framing.close(*self._goodbye))
        self._lingers_until = lingering_close.close(self._transport, time.monotonic(), is_over=is_over)

    def abort(self) -> None:
        self._ended = True
        self._intake.claim.stop_waiting()
        self._transport.abort()

    def give_way(self) -> None:
        """Others need the memory that a command or a response of this connection holds."""
        _log.info("%s: closed, because %s", self.address, RECLAIMED)
        self.abort()

    # ------------------------------------------------------------------------------------------------- deadlines

    def overdue(self, now: float) -> str | None:
        untaken = self._count_untaken()
        is_contended = self._listener.budgets.is_contended
        if self._stalling.has_stalled(now, untaken, self._stalled_seconds, enough=1, is_contended=is_contended):
            return "it does not take what it was sent"
        if self._lingers_until:
            self._lingers_until = lingering_close.until(self._transport, self._lingers_until, now)
            return "it does not end the connection" if now > self._lingers_until else None
        limits = self._listener.limits
        if self._intake.is_late(now, limits.frame_time):
            return "a message takes too long to arrive"
        is_stranger = self.session.login is None and self._working is None
        if is_stranger and now - self._silent_since > limits.silence_before_login:
            return "it is silent and has not signed in"
        if now - self._heard_at > self._limits.silence_time:
            return "it does not answer pings"
        if now - max(self._heard_at, self._pinged_at) > self._limits.ping_time and not self._ended:
            self._pinged_at = now
            self._transport.write(framing.header(PING, 0))
        return None

    # ------------------------------------------------------------------------------------------------- receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        size = FREE_BYTES if self._intake.claim.account.waiting else self._read_bytes
        return self._listener.scratch[:size]

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_at = time.monotonic()
        self._take_apart(self._listener.scratch[:nbytes])
        if not (self._ended or self._intake.can_read):
            self._transport.pause_reading()

    def _take_apart(self, data: memoryview) -> None:
        if self._ended:
            return
        try:
            for opcode, content, is_last in self._incoming.pieces(data):
                if opcode >= CLOSE:
                    self._control(opcode, content)
                    if self._closed_by_client:
                        self.drain()
                        return
                elif opcode == BINARY:
                    self.end_with(CloseCode.UNSUPPORTED_DATA, "messages are text here")
                    return
                else:
                    self._gather(content, is_last=is_last)
                    if len(self._intake.ahead) >= AHEAD_MAX:
                        self._set_aside(data[self._incoming.position :])
                        return
            # What a header has announced need not have begun to come.
            self._check_size()
        except Violation as violated:
            _log.info("%s: closed, because %s", self.address, violated)
            self.end_with(violated.code, violated.reason)

    def _control(self, opcode: int, content: memoryview) -> None:
        if opcode == PING:
            if self.is_full:
                self._pinged_with = bytes(content)
            else:
                self._pong(content)
        elif opcode == CLOSE:
            self._goodbye = (framing.close_code(content), "")
            self._closed_by_client = True

    def _pong(self, content: Readable) -> None:
        self._transport.write(framing.header(PONG, len(content)) + content)

    def _gather(self, content: memoryview, *, is_last: bool) -> None:
        intake = self._intake
        self._check_size(len(content))
        try:
            intake.gather(content, self._bytes_max, is_last=is_last)
        except UnicodeDecodeError:
            raise Violation(CloseCode.INVALID_DATA, "a text is not UTF-8") from None
        if is_last:
            self._begin_to_work()
        elif not intake.began_at:
            intake.began_at = self._heard_at

    @property
    def _bytes_max(self) -> int:
        return self._message_bytes_max if self.session.login is not None else UNAUTHENTICATED_MESSAGE_BYTES

    def _check_size(self, more: int = 0) -> None:
        size, limit = self._intake.size + more, self._bytes_max
        if size > limit or self._incoming.left > limit - size:
            raise Violation(CloseCode.MESSAGE_TOO_BIG, f"a message has more than {limit} bytes")

    def _set_aside(self, rest: memoryview) -> None:
        """For later: a read may hold thousands of small commands, and a command costs much more than its bytes."""
        if rest:
            # A part of what was set aside before needs no copy.
            is_read = rest.obj is self._listener.scratch.obj
            self._intake.set_aside(memoryview(bytearray(rest)) if is_read else rest)

    def _take_up(self) -> None:
        """There is room for more commands ahead: first for those that were set aside."""
        aside = self._intake.take_aside()
        if aside is not None:
            self._take_apart(aside)
        self._read_on()

    def _read_on(self) -> None:
        if not self._ended and self._intake.can_read:
            self._transport.resume_reading()

    # ------------------------------------------------------------------------------------------------- answering

    def _begin_to_work(self) -> None:
        if self._working is None:
            self._working = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            if self._authorization is not None:
                authorization, self._authorization = self._authorization, None
                await self._channel.sign_in(authorization)
                self._change_account()
            intake = self._intake
            while intake.ahead and not self.gone.done():
                text = intake.ahead.popleft()
                intake.in_hand = len(text)
                try:
                    await self._channel.hear(text)
                finally:
                    intake.claim.release(intake.in_hand)
                    intake.in_hand = 0
                if self.session.login != self._login:
                    self._change_account()
                if len(intake.ahead) == AHEAD_MAX // 2:
                    self._take_up()
                    # Whoever sends thousands of commands at once shares the loop with all others.
                    await asyncio.sleep(0)
        except Gone:
            pass
        finally:
            self._working = None
            self._silent_since = time.monotonic()
            if self._ended:
                self._intake.drop()
                if not self._is_working:
                    self._close()
            else:
                self._read_on()

    def _change_account(self) -> None:
        """The client has signed in or out."""
        self._login = self.session.login
        self._intake.claim.move(self._listener.budgets.requests_of(self.session))
        if self._untaken is not None:
            self._untaken.claim.move(self._listener.budgets.responses_to(self.session))

    # ------------------------------------------------------------------------------------------------- sending

    async def send(self, *parts: Readable) -> None:
        """As one message, when there is room for it."""
        await self.room()
        self.push(*parts)

    async def room(self) -> None:
        """Waits until there is some."""
        while self.is_full and not self.gone.done():
            writer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._writers.append(writer)
            await writer
        if not self._is_heard:
            raise Gone

    def response_reservation(self) -> Reservation:
        """Makes room for something that is sent without being asked for each time."""
        return Reservation(self._listener.budgets.responses_to(self.session))

    @property
    def _is_heard(self) -> bool:
        return not (self.gone.done() or self._lingers_until or self._transport.is_closing())

    def push(self, *parts: Readable) -> bool:
        """As one message, without waiting for room; whether there is some for another one."""
        if not self._is_heard:
            return False
        size = sum(map(len, parts))
        head = framing.header(TEXT, size)
        if size <= JOINED_BYTES_MAX:
            self._transport.write(b"".join((head, *parts)))
        else:
            self._transport.writelines((head, *parts))
        if self.is_full:
            self._count_untaken()
        return not self.is_full

    def _count_untaken(self) -> int:
        untaken = self._transport.get_write_buffer_size()
        if not self.gone.done():
            if self._untaken is None and untaken > FREE_BYTES:
                self._untaken = Reservation(self._listener.budgets.responses_to(self.session), self.give_way)
            if self._untaken is not None:
                self._untaken.hold(untaken)
        return untaken

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._stalling.reset()
        self._count_untaken()
        content, self._pinged_with = self._pinged_with, None
        if content is not None and self._is_heard:
            self._pong(content)
        self._wake_writers()

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            if not writer.done():
                writer.set_result(None)
