"""WebSocket connections for the channel of browsers: whole text messages in, whole text messages out.

transports/admission decides what a client may send. A coroutine answers the messages one after the other, and becomes
a task only if it has to wait. Writers wait until there is room, so that a connection never buffers more than that plus
one message. A client that does not read what it is sent is closed, without affecting others.
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
from whippet.transports import eager, lingering_close
from whippet.transports.admission.budget import FREE_BYTES, RECLAIMED
from whippet.transports.admission.frame_intake import QUEUE_MAX
from whippet.transports.admission.stall_detector import StallDetector
from whippet.transports.admission.text_intake import TextIntake
from whippet.transports.connections import IPV4_MAPPED_PREFIX, peer_address
from whippet.transports.deliveries import delivered_bytes
from whippet.transports.reservations import Reservation
from whippet.transports.websocket import framing
from whippet.transports.websocket.binary_connection import READ_BYTES, incoming
from whippet.transports.websocket.framing import BINARY, CLOSE, JOINED_BYTES_MAX, PING, PONG, TEXT, Violation

if TYPE_CHECKING:
    from whippet.transports.websocket.channel import Channel
    from whippet.transports.websocket.listener import WebSockets

_log = logging.getLogger(__name__)

ROOM_BYTES = 256 << 10
"""Writers wait while this much is unsent."""
UNAUTHENTICATED_MESSAGE_BYTES = 64 << 10
"""More is never needed to sign in."""
UNAUTHORIZED = 3000
"""The code that is registered for WebSocket."""


class Gone(Exception):
    """The client is gone."""


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
        """The user whose account the messages are counted in."""
        self._is_answering = False
        """Messages are being answered, one after the other."""
        self._worker: asyncio.Task[None] | None = None
        """The task that answers them, if one had to wait; kept so that it is not collected."""
        self.is_full = False
        """Writers have to wait in `room`."""
        self._pinged_with: bytes | None = None
        """The last ping that arrived while its answer could not be sent; only that one is answered."""
        self._writers: list[asyncio.Future[None]] = []
        self._close_frame: tuple[int | None, str] = (CloseCode.GOING_AWAY, "")
        self._closed_by_client = False
        self._has_eof = False
        self._ended = False
        self._lingers_until = 0.0
        self._received_at = 0.0
        self._pinged_at = 0.0
        self._silent_since = 0.0
        self._stall = StallDetector()
        self._unsent_reservation: Reservation | None = None
        """Holds the memory of everything sent that the client has not taken."""

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
            self._on_session_ended,
            at[0].removeprefix(IPV4_MAPPED_PREFIX) if at else "",
        )
        # Browsers answer WebSocket pings by themselves; a client that does not is closed after `silence_time`.
        self.session.is_watched = True
        self._intake = TextIntake(
            listener.budgets.requests_of(self.session), self._resume_reading, self.close_for_others
        )
        self._received_at = self._silent_since = time.monotonic()
        self._channel = listener.open_channel(self)
        if self._authorization is not None:
            # Nothing may be sent before the response to the upgrade.
            self._is_answering = True
            self._worker = asyncio.get_running_loop().create_task(self._process_queue())

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._listener.remove(self)
        if self._intake is not None:
            self._intake.drop()
        if not self.gone.done():
            self.gone.set_result(None)
        self._wake_writers()
        if self._unsent_reservation is not None:
            self._unsent_reservation.close()
        if self._channel is not None:
            self._channel.close()

    def eof_received(self) -> bool:
        self._has_eof = True
        if not self._is_answering or self._lingers_until:
            return False
        self._ended = True
        return self._transport.get_extra_info("sslcontext") is None

    @property
    def address(self) -> str:
        return self.session.address

    def drain(self) -> None:
        """Accepts no more commands; the connection closes when those in progress are answered."""
        self._end(client_receives=not self._closed_by_client)

    def end_with(self, code: int, reason: str) -> None:
        """Drains the connection, but ends polls that wait for messages."""
        if not self._ended:
            self._close_frame = (code, reason)
            self._channel.abandon_polls()
            self._end(client_receives=True)

    def _end(self, *, client_receives: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self._intake.claim.stop_waiting()
        self._channel.end_subscriptions(client_receives=client_receives)
        if not client_receives:
            self._channel.abandon_polls()
        if self._is_working:
            self._transport.pause_reading()
        else:
            self._close()

    @property
    def _is_working(self) -> bool:
        return self._is_answering or self._channel.is_polling

    def poll_answered(self) -> None:
        """Called when a poll that was executed out of order is answered."""
        if self._ended and not self._is_working:
            self._close()

    def _on_session_ended(self) -> None:
        self.end_with(UNAUTHORIZED, "all sessions of the user have ended")

    def _close(self) -> None:
        if self._lingers_until or self._transport.is_closing():
            return
        is_over = self._closed_by_client or self._has_eof
        self._transport.write(framing.close(*self._close_frame))
        self._lingers_until = lingering_close.close(self._transport, time.monotonic(), is_over=is_over)

    def abort(self) -> None:
        self._ended = True
        self._intake.claim.stop_waiting()
        self._transport.abort()

    def close_for_others(self) -> None:
        """Closes the connection, because others need the memory that it holds."""
        _log.info("%s: closed, because %s", self.address, RECLAIMED)
        self.abort()

    # ------------------------------------------------------------------------------------------------- deadlines

    def overdue(self, now: float) -> str | None:
        unsent = self._count_unsent()
        if self._stall.has_stalled(
            now,
            unsent,
            self._stalled_seconds,
            delivered=delivered_bytes(self._transport) if unsent else 0,
            enough=1,
            is_contended=self._listener.budgets.is_contended,
        ):
            return "it does not read what it was sent"
        if self._lingers_until:
            self._lingers_until = lingering_close.extend(self._transport, self._lingers_until, now)
            return "it does not close the connection" if now > self._lingers_until else None
        limits = self._listener.limits
        if self._intake.is_late(now, limits.frame_time):
            return "a message takes too long to arrive"
        is_stranger = self.session.login is None and not self._is_answering
        if is_stranger and now - self._silent_since > limits.silence_before_login:
            return "it is silent and has not signed in"
        if now - self._received_at > self._limits.silence_time:
            return "it does not answer pings"
        if now - max(self._received_at, self._pinged_at) > self._limits.ping_time and not self._ended:
            self._pinged_at = now
            self._transport.write(framing.header(PING, 0))
        return None

    # ------------------------------------------------------------------------------------------------- receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        size = FREE_BYTES if self._intake.claim.account.waiting else self._read_bytes
        return self._listener.scratch[:size]

    def buffer_updated(self, nbytes: int) -> None:
        self._received_at = time.monotonic()
        self._parse(self._listener.scratch[:nbytes])
        if not (self._ended or self._intake.can_read):
            self._transport.pause_reading()

    def _parse(self, data: memoryview) -> None:
        if self._ended:
            return
        violation = None
        try:
            whole = self._incoming.whole(data, TEXT)
            if whole is not None:
                self._gather(whole, is_last=True)
            else:
                self._gather_all(data)
        except Violation as violated:
            violation = violated
        if self._intake.queue:
            self._answer()
        if violation is not None:
            _log.info("%s: closed, because %s", self.address, violation)
            self.end_with(violation.code, violation.reason)
        elif self._closed_by_client:
            self.drain()

    def _gather_all(self, data: memoryview) -> None:
        for opcode, content, is_last in self._incoming.pieces(data):
            if opcode >= CLOSE:
                self._control(opcode, content)
                if self._closed_by_client:
                    return
            elif opcode == BINARY:
                raise Violation(CloseCode.UNSUPPORTED_DATA, "messages must be text")
            else:
                self._gather(content, is_last=is_last)
                if len(self._intake.queue) >= QUEUE_MAX:
                    self._keep_unparsed(data[self._incoming.position :])
                    return
        # Checks the announced length before the payload arrives.
        self._check_size()

    def _control(self, opcode: int, content: memoryview) -> None:
        if opcode == PING:
            if self.is_full:
                self._pinged_with = bytes(content)
            else:
                self._pong(content)
        elif opcode == CLOSE:
            self._close_frame = (framing.close_code(content), "")
            self._closed_by_client = True

    def _pong(self, content: Readable) -> None:
        self._transport.write(framing.header(PONG, len(content)) + content)

    def _gather(self, content: memoryview, *, is_last: bool) -> None:
        intake = self._intake
        self._check_size(len(content))
        try:
            intake.gather(content, self._bytes_max, is_last=is_last)
        except UnicodeDecodeError:
            raise Violation(CloseCode.INVALID_DATA, "a text message is not UTF-8") from None
        if not is_last and not intake.began_at:
            intake.began_at = self._received_at

    @property
    def _bytes_max(self) -> int:
        return self._message_bytes_max if self.session.login is not None else UNAUTHENTICATED_MESSAGE_BYTES

    def _check_size(self, more: int = 0) -> None:
        size, limit = self._intake.size + more, self._bytes_max
        if size > limit or self._incoming.left > limit - size:
            raise Violation(CloseCode.MESSAGE_TOO_BIG, f"a message has more than {limit} bytes")

    def _keep_unparsed(self, rest: memoryview) -> None:
        """Keeps bytes for later: a read may hold thousands of small commands, and a command costs much more than its
        bytes."""
        if rest:
            # Bytes that were kept before need no copy.
            is_read = rest.obj is self._listener.scratch.obj
            self._intake.keep_unparsed(memoryview(bytearray(rest)) if is_read else rest)

    def _resume_parsing(self) -> None:
        """The queue has room for more commands: first for those that were kept."""
        unparsed = self._intake.take_unparsed()
        if unparsed is not None:
            self._parse(unparsed)
        self._resume_reading()

    def _resume_reading(self) -> None:
        if not self._ended and self._intake.can_read:
            self._transport.resume_reading()

    # ------------------------------------------------------------------------------------------------ responding

    def _answer(self) -> None:
        if not self._is_answering:
            self._is_answering = True
            rest = eager.begin(self._process_queue())
            if rest is not None:
                self._worker = asyncio.get_running_loop().create_task(rest)

    async def _process_queue(self) -> None:
        try:
            if self._authorization is not None:
                authorization, self._authorization = self._authorization, None
                await self._channel.sign_in(authorization)
                self._change_account()
            intake = self._intake
            while intake.queue and not self.gone.done():
                text = intake.queue.popleft()
                intake.in_progress = len(text)
                try:
                    await self._channel.handle(text)
                finally:
                    intake.claim.release(intake.in_progress)
                    intake.in_progress = 0
                if self.session.login != self._login:
                    self._change_account()
                if len(intake.queue) == QUEUE_MAX // 2:
                    self._resume_parsing()
                    # A client that sends thousands of commands at once shares the event loop with all others.
                    await asyncio.sleep(0)
        except Gone:
            pass
        finally:
            self._is_answering = False
            self._silent_since = time.monotonic()
            if self._ended:
                self._intake.drop()
                if not self._is_working:
                    self._close()
            else:
                self._resume_reading()

    def _change_account(self) -> None:
        """The client has signed in or out."""
        self._login = self.session.login
        self._intake.claim.move(self._listener.budgets.requests_of(self.session))
        if self._unsent_reservation is not None:
            self._unsent_reservation.claim.move(self._listener.budgets.responses_to(self.session))

    # ------------------------------------------------------------------------------------------------- sending

    async def send(self, *parts: Readable) -> None:
        """Sends one message, when there is room for it."""
        await self.room()
        self.push(*parts)

    async def room(self) -> None:
        """Waits until there is room."""
        while self.is_full and not self.gone.done():
            writer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._writers.append(writer)
            await writer
        if not self._is_heard:
            raise Gone

    def response_reservation(self) -> Reservation:
        """Returns a reservation for what is pushed without a request."""
        return Reservation(self._listener.budgets.responses_to(self.session))

    @property
    def _is_heard(self) -> bool:
        return not (self.gone.done() or self._lingers_until or self._transport.is_closing())

    def push(self, *parts: Readable) -> bool:
        """Sends one message without waiting; returns whether there is room for another one."""
        if not self._is_heard:
            return False
        size = sum(map(len, parts))
        head = framing.header(TEXT, size)
        if size <= JOINED_BYTES_MAX:
            self._transport.write(b"".join((head, *parts)))
        else:
            self._transport.writelines((head, *parts))
        if self.is_full:
            self._count_unsent()
        return not self.is_full

    def _count_unsent(self) -> int:
        unsent = self._transport.get_write_buffer_size()
        if not self.gone.done():
            if self._unsent_reservation is None and unsent > FREE_BYTES:
                self._unsent_reservation = Reservation(
                    self._listener.budgets.responses_to(self.session), self.close_for_others
                )
            if self._unsent_reservation is not None:
                self._unsent_reservation.hold(unsent)
        return unsent

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._stall.reset()
        self._count_unsent()
        content, self._pinged_with = self._pinged_with, None
        if content is not None and self._is_heard:
            self._pong(content)
        self._wake_writers()

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            if not writer.done():
                writer.set_result(None)
