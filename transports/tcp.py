"""The binary protocol over TCP, with or without TLS: frames off the socket, in order, responses onto it, in order.

What a client may send is decided by transports/admission; this reads and writes as that says. Reads go into a scratch
buffer that all connections share, because a read is taken apart before the next one can happen. The rest of a request
that is not whole is read straight into its own buffer. Commands of one connection are carried out one after the other
by a task that lives while there are any. A client that does not take its responses is not read from, and after a while
not kept.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from typing import Any, cast

from whippet.app.config.formats import Address
from whippet.app.errors import CommandError
from whippet.app.gateway import Gateway
from whippet.app.model.identity import Login
from whippet.app.model.sessions import Session, Transport
from whippet.storage.batch import Readable
from whippet.transports import lingering_close, listening
from whippet.transports.admission.budget import FREE_BYTES, RECLAIMED
from whippet.transports.admission.budgets import Budgets
from whippet.transports.admission.frame_intake import AHEAD_MAX, FrameIntake
from whippet.transports.admission.stall_detector import STALLED_SECONDS, StallDetector
from whippet.transports.connections import MAPPED, Connections, TrackedConnection, peer_address
from whippet.transports.conversation import PREAMBLE_BYTES, Conversation, create_conversation
from whippet.transports.reservations import DeferredResponder, DeferredWork, Reservation
from whippet.transports.tcp_sockets import limit_farewell, prepare_accepted, prepare_listener
from whippet.transports.tls_handshakes import TlsHandshakes

_log = logging.getLogger(__name__)

HTTP_METHODS = frozenset((b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"PRI "))
QUICKACK = getattr(socket, "TCP_QUICKACK", None)
"""Linux has it; elsewhere an acknowledgement comes when it comes."""
TLS_HELLO = (b"\x16\x03\x01", b"\x16\x03\x03")
"""How TLS begins. As a length it is more than a stranger may send."""


class Connection(asyncio.BufferedProtocol):
    """One client. All methods run on the event loop.

    What else carries a stream of bytes derives from this: it says how they are received, sent and ended.
    """

    TRANSPORT = Transport.TCP

    __slots__ = (
        "_awaits_late",
        "_conversation",
        "_ended",
        "_eof",
        "_intake",
        "_late",
        "_lingers_until",
        "_listener",
        "_login",
        "_reservation",
        "_session",
        "_silent_since",
        "_stalling",
        "_transport",
        "_working",
        "_writable",
    )

    def __init__(self, listener: Connections[Any]) -> None:
        self._listener = listener
        self._transport = cast(asyncio.Transport, None)
        self._session = cast(Session, None)
        self._intake = cast(FrameIntake, None)
        self._conversation: Conversation | None = None
        """From the first bytes on: they say which protocol this is."""
        self._login: Login | None = None
        """Of the user whose account the requests are on."""
        self._working: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._reservation: Reservation | None = None
        """The room of a response that the client has not taken."""
        self._late: set[DeferredResponder] = set()
        """Responses that come out of their turn."""
        self._stalling = StallDetector()
        self._silent_since = 0.0
        self._ended = False
        self._eof = False
        self._awaits_late = False
        """The client has half-closed the connection, which stays open until the responses out of turn are sent."""
        self._lingers_until = 0.0
        """All was said, and the client is given so long to hear it; what it says is thrown away."""

    # ------------------------------------------------------------------------------------------------- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        listener = self._listener
        if not listener.admit(self):
            self._transport.abort()
            self._ended = True
            return
        gateway = listener.gateway
        reached_at = transport.get_extra_info("sockname")
        self._session = Session(
            self.TRANSPORT,
            peer_address(transport.get_extra_info("peername")),
            gateway.clock(),
            self.drain,
            reached_at[0].removeprefix(MAPPED) if reached_at else "",
        )
        account = listener.budgets.requests_of(self._session)
        self._intake = FrameIntake(account, self._greet, self._read_on, self._reclaimed)
        self._silent_since = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._listener.remove(self)
        if self._intake is not None:
            self._intake.drop()
        if self._reservation is not None:
            # What is in hand ends with its task.
            self._reservation.disconnect()
            if self._working is None:
                self._reservation.close()
        for late in self._late:
            late.reservation.disconnect()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        if self._conversation is not None:
            self._conversation.close()

    def eof_received(self) -> bool:
        """A client that has said its last word still hears the answers to what it has asked."""
        self._eof = True
        if self._conversation is not None:
            self._conversation.half_close()
        if self._working is None and not self._late:
            return False
        self._awaits_late = not self._ended
        self._say_no_more()
        # TLS cannot be half closed; it closes when what is written until now is on its way.
        return self._transport.get_extra_info("sslcontext") is None

    def drain(self) -> None:
        """No more requests; those in hand are answered, then the connection closes."""
        awaited_late, self._awaits_late = self._awaits_late, False
        if self._ended:
            if awaited_late and self._working is None:
                self._close(is_over=True)
            return
        self._say_no_more()
        if self._working is None:
            # A client that is not waiting for an answer is not waited for.
            self._close(is_over=True)
        else:
            self._transport.pause_reading()

    def _say_no_more(self) -> None:
        self._ended = True
        self._intake.close()

    def _close(self, *, is_over: bool) -> None:
        """Everything is answered. `is_over`: whatever else the client says, no answer can get lost by that."""
        if not (self._lingers_until or self._transport.is_closing()):
            self._lingers_until = lingering_close.close(self._transport, time.monotonic(), is_over=is_over or self._eof)

    def _send(self, buffers: list[Readable]) -> None:
        self._transport.writelines(buffers)

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self._stalling.reset()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def overdue(self, now: float) -> str | None:
        """Why this connection is not worth keeping; None when it is."""
        untaken = self._transport.get_write_buffer_size()
        listener = self._listener
        if self._stalling.has_stalled(
            now, untaken, listener.stalled_seconds, is_contended=listener.budgets.is_contended
        ):
            return "it does not take what it was sent"
        if self._lingers_until:
            self._lingers_until = lingering_close.until(self._transport, self._lingers_until, now)
            return "it does not end the connection" if now > self._lingers_until else None
        intake, limits = self._intake, self._listener.limits
        if intake.is_late(now, limits.frame_time):
            return "a request takes too long to arrive"
        is_silent = self._session.login is None and self._working is None and not intake.is_unfinished
        if is_silent and now > self._silent_since + limits.silence_before_login:
            return "it is silent and has not logged in"
        return None

    def abort(self) -> None:
        if self._intake is not None:
            self._say_no_more()
        self._transport.abort()

    def _reclaimed(self) -> None:
        _log.info("%s: closed, because %s", self.address, RECLAIMED)
        self.abort()

    # ------------------------------------------------------------------------------------------------- receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        intake = self._intake
        arriving = intake.arriving
        if arriving is not None and arriving.filled < arriving.reserved:
            assert arriving.frame is not None
            return arriving.frame[arriving.filled : arriving.reserved]
        scratch = self._listener.scratch
        # While others of the same account wait, nobody reads more than what needs no room.
        return scratch[:FREE_BYTES] if intake.claim.account.waiting else scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._lingers_until:
            return
        intake = self._intake
        arriving = intake.arriving
        if arriving is not None and arriving.filled < arriving.reserved:
            intake.received(nbytes)
            if intake.is_unfinished:
                self._note_beginning()
            self._go_on()
        else:
            self._hear(self._listener.scratch[:nbytes])

    def _hear(self, data: memoryview) -> None:
        intake = self._intake
        try:
            intake.receive(data)
        except CommandError as lost:
            self._go_on()
            self._lose(lost)
            return
        if intake.is_unfinished:
            self._acknowledge()
            self._note_beginning()
        self._go_on()

    def _lose(self, lost: CommandError) -> None:
        """No request begins where the next one should: those before it are answered, then the connection ends."""
        _log.info("%s: %s; what follows cannot be told apart", self.address, lost)
        self.drain()

    def _note_beginning(self) -> None:
        """The time that an unfinished request may take is counted from here, or from when it got room."""
        intake = self._intake
        if not intake.began_at:
            intake.began_at = time.monotonic()

    def _go_on(self) -> None:
        """Something was received."""
        intake = self._intake
        if intake.ahead and self._working is None:
            self._working = self._listener.loop.create_task(self._work())
        if not (self._ended or intake.can_read):
            self._transport.pause_reading()

    def _greet(self, data: memoryview) -> Conversation | None:
        """None: too little was said, or nothing that is spoken on this port; who can be told so is told."""
        beginning = bytes(data[:PREAMBLE_BYTES])
        if len(beginning) < PREAMBLE_BYTES:
            return None
        if beginning in HTTP_METHODS:
            self._transport.write(self._wrong_port())
            self.drain()
            return None
        if beginning.startswith(TLS_HELLO):
            _log.info("%s: speaks TLS, which is off here (tcp.tls.enabled)", self.address)
            self.drain()
            return None
        listener = self._listener
        self._conversation = create_conversation(listener.gateway, self._session, beginning, listener.header_size)
        return self._conversation

    def _wrong_port(self) -> bytes:
        port = self._listener.gateway.addresses.http
        where = f"HTTP is on port {port}" if port else "HTTP is turned off"
        text = f"This port speaks the binary protocol; {where}.\n"
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
        return f"{head}Connection: close\r\n\r\n{text}".encode()

    @property
    def address(self) -> str:
        return self._session.address

    def _acknowledge(self) -> None:
        """Tells the client's kernel at once that the first part of a frame is here.

        The official clients send a frame of more than 8 KiB in two writes and leave Nagle's algorithm on: their kernel
        keeps the second one back until the first is acknowledged, which ours would put off for 40 ms.
        """
        if QUICKACK is not None:
            self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)

    def _read_on(self) -> None:
        if not self._ended and self._intake.can_read:
            self._transport.resume_reading()

    # ------------------------------------------------------------------------------------------------- answering

    async def _work(self) -> None:
        talk, intake, session = self._conversation, self._intake, self._session
        assert talk is not None
        ahead, claim = intake.ahead, intake.claim
        try:
            while ahead:
                asked = ahead.popleft()
                if isinstance(asked, list):
                    buffers = asked
                else:
                    intake.in_hand = size = len(asked)
                    buffers = await talk.respond(asked, self)
                    intake.in_hand = 0
                    claim.release(size)
                    if session.login is not self._login:
                        self._change_account()
                        talk = self._conversation or talk
                if self._transport.is_closing():
                    break
                if buffers:
                    self._send(buffers)
                if self._writable is not None:
                    self.response_reservation().hold(self._transport.get_write_buffer_size())
                    await self._writable
                if self._reservation is not None and self._reservation.claim.held:
                    self._reservation.release()
                if talk.is_over:
                    self._ended = True
                    break
                if len(ahead) == AHEAD_MAX // 2 and not self._ended:
                    try:
                        intake.take_up()
                    except CommandError as lost:
                        self._lose(lost)
                    self._read_on()
                    # Whoever sends thousands of requests at once shares the loop with all others.
                    await asyncio.sleep(0)
        finally:
            self._working = None
            if intake.in_hand:
                # The answer has failed.
                claim.release(intake.in_hand)
                intake.in_hand = 0
            if self._reservation is not None and self._transport.is_closing():
                self._reservation.close()
            if self._ended:
                intake.drop()
                if talk.is_over or not (self._awaits_late and self._late):
                    self._close(is_over=False)
            elif session.login is None:
                self._silent_since = time.monotonic()

    def _change_account(self) -> None:
        """The client has logged in or out."""
        self._login = self._session.login
        if self._conversation is not None and self._conversation.successor is not None:
            self._conversation = self._conversation.successor
        budgets = self._listener.budgets
        self._intake.claim.move(budgets.requests_of(self._session))
        if self._reservation is not None:
            self._reservation.claim.move(budgets.responses_to(self._session))

    def response_reservation(self) -> Reservation:
        if self._reservation is None:
            self._reservation = Reservation(self._listener.budgets.responses_to(self._session), self._reclaimed)
        return self._reservation

    async def _until_writable(self) -> None:
        """Or until the client is gone."""
        while self._writable is not None and not self._writable.done():
            await self._writable

    def defer(self, work: DeferredWork) -> None:
        late = DeferredResponder(Reservation(self._listener.budgets.responses_to(self._session), self._reclaimed))
        self._late.add(late)
        self._listener.loop.create_task(self._respond_later(work, late))

    async def _respond_later(self, work: DeferredWork, late: DeferredResponder) -> None:
        try:
            buffers = await work(late)
            # Somebody else may have filled the socket by then.
            await self._until_writable()
            if buffers and not self._transport.is_closing():
                self._send(buffers)
                late.reservation.hold(sum(map(len, buffers)))
                await self._until_writable()
        finally:
            self._late.discard(late)
            late.reservation.close()
            if self._awaits_late and not self._late and self._working is None:
                self._close(is_over=True)


class TcpConnection(Connection):
    """A client over TCP itself, on a socket as `tcp.socket` wants it."""

    __slots__ = ("_farewell",)

    def __init__(self, listener: Connections[Any]) -> None:
        super().__init__(listener)
        self._farewell: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        prepare_accepted(transport, self._listener.gateway.config.tcp.socket)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._farewell is not None:
            self._farewell.cancel()

    def _close(self, *, is_over: bool) -> None:
        if self._farewell is None:
            self._farewell = limit_farewell(self._transport, self._listener.gateway.config.tcp.socket)
        super()._close(is_over=is_over)


class TcpListener(Connections[TrackedConnection]):
    """The listening socket and everyone connected through it. Made by `listen`, ended by `stop`."""

    def __init__(
        self, gateway: Gateway, budgets: Budgets | None = None, *, stalled_seconds: float = STALLED_SECONDS
    ) -> None:
        super().__init__(gateway, budgets, stalled_seconds=stalled_seconds)
        self.address = Address("", 0)
        self._server: asyncio.Server | None = None
        self._handshakes: TlsHandshakes | None = None

    async def listen(self, address: Address, setting: str, tls: ssl.SSLContext | None) -> None:
        config = self.gateway.config.tcp
        listener = await listening.listen(address, setting, ipv6=config.ipv6)
        prepare_listener(listener, config.socket)
        self.address = listening.effective(listener)
        if tls is not None:
            seconds_max = self.limits.silence_before_login
            self._handshakes = TlsHandshakes(listener, tls, lambda: TcpConnection(self), self.has_room, seconds_max)
        else:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: TcpConnection(self), sock=listener, backlog=listening.BACKLOG_CONNECTIONS
            )
        self.start_sweeping("tcp deadlines")

    def admit(self, connection: TrackedConnection) -> bool:
        # Whose handshake was waited for had room when it began.
        if self._handshakes is None:
            return super().admit(connection)
        self._connections.add(connection)
        return True

    def has_room(self, more: int = 0) -> bool:
        return super().has_room(more + (0 if self._handshakes is None else len(self._handshakes)))

    async def stop(self, seconds_max: float) -> None:
        """Accepts nobody any more, lets the commands in hand finish, closes all connections."""
        if self._server is not None:
            self._server.close()
        if self._handshakes is not None:
            self._handshakes.stop()
        await super().stop(seconds_max)
