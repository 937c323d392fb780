"""The binary protocols over TCP, with or without TLS: reads frames and writes responses, both in order.

transports/admission decides what a client may send. Reads go into a scratch buffer that all connections share, because
each read is parsed before the next one. The rest of an incomplete request is read straight into its own buffer. A
coroutine executes the requests of a connection one after the other, at once as far as they need not wait. A client that
does not take its responses is not read from, and after a while closed.
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
from whippet.storage.errors import StorageError
from whippet.storage.long_reads import PIECE_BYTES, LongRead
from whippet.transports import eager, lingering_close, listening
from whippet.transports.admission.budget import FREE_BYTES, RECLAIMED
from whippet.transports.admission.budgets import Budgets
from whippet.transports.admission.frame_intake import QUEUE_MAX, FrameIntake
from whippet.transports.admission.stall_detector import STALLED_SECONDS, StallDetector
from whippet.transports.connections import IPV4_MAPPED_PREFIX, Connections, TrackedConnection, peer_address
from whippet.transports.conversation import PREAMBLE_BYTES, Conversation, create_conversation
from whippet.transports.deliveries import delivered_bytes
from whippet.transports.reservations import DeferredResponder, DeferredWork, Reservation
from whippet.transports.tcp_sockets import limit_farewell, prepare_accepted, prepare_listener
from whippet.transports.tls_handshakes import TlsHandshakes

_log = logging.getLogger(__name__)

HTTP_METHODS = frozenset((b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"PRI "))
QUICKACK = getattr(socket, "TCP_QUICKACK", None)
"""Only Linux has it; elsewhere acknowledgements are delayed."""
TLS_HELLO = (b"\x16\x03\x01", b"\x16\x03\x03")
"""The first bytes of TLS. Read as a length, they exceed what a client may send before a login."""


class Connection(asyncio.BufferedProtocol):
    """One client. All methods run on the event loop.

    Connections over other byte streams derive from this class, and override how bytes are received, sent and ended.
    """

    TRANSPORT = Transport.TCP

    sends_long_reads = True

    __slots__ = (
        "_awaits_deferred",
        "_conversation",
        "_deferred",
        "_ended",
        "_has_eof",
        "_intake",
        "_is_sending_long",
        "_is_working",
        "_lingers_until",
        "_listener",
        "_login",
        "_reservation",
        "_session",
        "_silent_since",
        "_stall",
        "_transport",
        "_writable",
    )

    def __init__(self, listener: Connections[Any]) -> None:
        self._listener = listener
        self._transport = cast(asyncio.Transport, None)
        self._session = cast(Session, None)
        self._intake = cast(FrameIntake, None)
        self._conversation: Conversation | None = None
        """Created when the first bytes show the protocol."""
        self._login: Login | None = None
        """The user whose account the requests are counted in."""
        self._is_working = False
        """Requests are being executed, one after the other."""
        self._writable: asyncio.Future[None] | None = None
        self._reservation: Reservation | None = None
        """Holds the memory of a response that the client has not taken."""
        self._deferred: set[DeferredResponder] = set()
        """Receivers of responses that are sent out of order."""
        self._is_sending_long: asyncio.Future[None] | None = None
        """Done when the response is sent that is being read meanwhile."""
        self._stall = StallDetector()
        self._silent_since = 0.0
        self._ended = False
        self._has_eof = False
        self._awaits_deferred = False
        """The client has half-closed the connection, which stays open until the deferred responses are sent."""
        self._lingers_until = 0.0
        """The deadline for the client to close its side after everything was sent; what it sends is discarded."""

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
            reached_at[0].removeprefix(IPV4_MAPPED_PREFIX) if reached_at else "",
        )
        account = listener.budgets.requests_of(self._session)
        self._intake = FrameIntake(account, self._start_conversation, self._resume_reading, self._reclaimed)
        self._silent_since = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._listener.remove(self)
        if self._intake is not None:
            self._intake.drop()
        if self._reservation is not None:
            # The task releases what the current request holds.
            self._reservation.disconnect()
            if not self._is_working:
                self._reservation.close()
        for responder in self._deferred:
            responder.reservation.disconnect()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        if self._conversation is not None:
            self._conversation.close()

    def eof_received(self) -> bool:
        """A client that has closed its sending side still receives the responses to its requests."""
        self._has_eof = True
        if self._conversation is not None:
            self._conversation.half_close()
        if not (self._is_working or self._deferred):
            return False
        self._awaits_deferred = not self._ended
        self._stop_intake()
        # TLS cannot be half-closed; it closes once everything written so far is sent.
        return self._transport.get_extra_info("sslcontext") is None

    def drain(self) -> None:
        """Accepts no more requests; the connection closes when those in progress are answered."""
        awaited_deferred, self._awaits_deferred = self._awaits_deferred, False
        if self._ended:
            if awaited_deferred and not self._is_working:
                self._close(is_over=True)
            return
        self._stop_intake()
        if self._intake.queue and not self._is_working:
            self._work()
        elif not self._is_working:
            # The client does not wait for a response, so there is no need to wait for the client.
            self._close(is_over=True)
        if self._is_working:
            self._transport.pause_reading()

    def _stop_intake(self) -> None:
        self._ended = True
        self._intake.close()

    def _close(self, *, is_over: bool) -> None:
        """Closes the connection after everything is answered. `is_over`: whatever else the client sends, no response
        can get lost."""
        if not (self._lingers_until or self._transport.is_closing()):
            self._lingers_until = lingering_close.close(
                self._transport, time.monotonic(), is_over=is_over or self._has_eof
            )

    def _send(self, buffers: list[Readable]) -> None:
        self._transport.writelines(buffers)

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self._stall.reset()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def overdue(self, now: float) -> str | None:
        """Returns the reason to close the connection, or None."""
        listener, unsent = self._listener, self._transport.get_write_buffer_size()
        if self._stall.has_stalled(
            now,
            unsent,
            listener.stalled_seconds,
            delivered=delivered_bytes(self._transport) if unsent else 0,
            is_contended=listener.budgets.is_contended,
        ):
            return "it does not read what it was sent"
        if self._lingers_until:
            self._lingers_until = lingering_close.extend(self._transport, self._lingers_until, now)
            return "it does not close the connection" if now > self._lingers_until else None
        intake, limits = self._intake, self._listener.limits
        if intake.is_late(now, limits.frame_time):
            return "a request takes too long to arrive"
        is_silent = self._session.login is None and not self._is_working and not intake.is_unfinished
        if is_silent and now > self._silent_since + limits.silence_before_login:
            return "it is silent and has not logged in"
        return None

    def abort(self) -> None:
        if self._intake is not None:
            self._stop_intake()
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
        # While other claims of the account wait, read no more than what needs no grant.
        return scratch[:FREE_BYTES] if intake.claim.account.waiting else scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._lingers_until:
            return
        intake = self._intake
        arriving = intake.arriving
        if arriving is not None and arriving.filled < arriving.reserved:
            intake.received(nbytes)
            if intake.is_unfinished:
                self._start_clock()
            self._after_receive()
        else:
            self._receive(self._listener.scratch[:nbytes])

    def _receive(self, data: memoryview) -> None:
        if self._begin_send(data):
            return
        intake = self._intake
        try:
            intake.receive(data)
        except CommandError as invalid:
            self._end_after(invalid)
            return
        if intake.is_unfinished:
            self._acknowledge()
            self._start_clock()
        self._after_receive()

    def _begin_send(self, data: memoryview) -> bool:
        """Executes the send of a single message, which is all that the client has sent, in fewer steps than other
        requests take. Returns False if this is something else."""
        conversation, reservation = self._conversation, self._reservation
        if (
            conversation is None
            or self._is_working
            or self._writable is not None
            or not self._intake.is_empty
            or (reservation is not None and reservation.claim.held)
        ):
            return False
        response = conversation.begin_send(data, self._end_send)
        if response is None:
            return False
        if response:
            self._send(response)
        else:
            self._is_working = True
        return True

    def _end_send(self, response: list[Readable]) -> None:
        """Called in the middle of the work of a partition, so that whatever else there is to do has to wait."""
        conversation = self._conversation
        assert conversation is not None
        try:
            if not self._transport.is_closing():
                self._send(response)
        except Exception:  # noqa: BLE001 -- it must not reach those that wait for the same partition
            _log.exception("%s: closed, because a response could not be sent", self.address)
            self.abort()
        self._ended = self._ended or conversation.is_over
        if self._ended or self._intake.queue:
            self._listener.loop.call_soon(self._work)
        else:
            self._is_working = False

    def _end_after(self, invalid: CommandError) -> None:
        """The next request cannot be found: answers those before it, then closes the connection."""
        _log.info("%s: %s; the next request cannot be found", self.address, invalid)
        self.drain()

    def _start_clock(self) -> None:
        """The deadline of an unfinished request counts from here, or from when it got memory."""
        intake = self._intake
        if not intake.began_at:
            intake.began_at = time.monotonic()

    def _after_receive(self) -> None:
        intake = self._intake
        if intake.queue and not self._is_working:
            self._work()
        if not (self._ended or intake.can_read):
            self._transport.pause_reading()

    def _work(self) -> None:
        self._is_working = True
        eager.start(self._process_queue(), Connection._on_worked, self)

    def _on_worked(self) -> None:
        """`_process_queue` does everything itself, also when it fails."""

    def _start_conversation(self, data: memoryview) -> Conversation | None:
        """Returns None if there are too few bytes, or if they are of no protocol of this port; HTTP clients get an
        answer."""
        beginning = bytes(data[:PREAMBLE_BYTES])
        if len(beginning) < PREAMBLE_BYTES:
            return None
        if beginning in HTTP_METHODS:
            self._transport.write(self._wrong_port())
            self.drain()
            return None
        if beginning.startswith(TLS_HELLO):
            _log.info("%s: closed a TLS connection, because TLS is off (tcp.tls.enabled)", self.address)
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
        """Acknowledges the first part of a frame at once.

        Official clients send a frame of more than 8 KiB in two writes and leave Nagle's algorithm on: their kernel
        keeps the second one back until the first is acknowledged, which ours would delay by 40 ms.
        """
        if QUICKACK is not None:
            self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)

    def _resume_reading(self) -> None:
        if not self._ended and self._intake.can_read:
            self._transport.resume_reading()

    # ------------------------------------------------------------------------------------------------ responding

    async def _process_queue(self) -> None:
        conversation, intake, session = self._conversation, self._intake, self._session
        assert conversation is not None
        queue, claim = intake.queue, intake.claim
        try:
            while queue:
                request = queue.popleft()
                if isinstance(request, list):
                    buffers = request
                else:
                    intake.in_progress = size = len(request)
                    buffers = await conversation.respond(request, self)
                    intake.in_progress = 0
                    claim.release(size)
                    if session.login is not self._login:
                        self._change_account()
                        conversation = self._conversation or conversation
                if self._transport.is_closing():
                    break
                if buffers and type(cast(object, buffers[-1])) is LongRead:
                    await self._send_long(buffers)
                elif buffers:
                    self._send(buffers)
                if self._writable is not None:
                    self.response_reservation().hold(self._transport.get_write_buffer_size())
                    await self._writable
                if self._reservation is not None and self._reservation.claim.held:
                    self._reservation.release()
                if conversation.is_over:
                    self._ended = True
                    break
                if len(queue) == QUEUE_MAX // 2 and not self._ended:
                    self._resume_parsing()
                    # A client that sends thousands of requests at once shares the event loop with all others.
                    await asyncio.sleep(0)
        finally:
            self._is_working = False
            if intake.in_progress:
                # Executing the request has failed.
                claim.release(intake.in_progress)
                intake.in_progress = 0
            if self._reservation is not None and self._transport.is_closing():
                self._reservation.close()
            if self._ended:
                intake.drop()
                if conversation.is_over or not (self._awaits_deferred and self._deferred):
                    self._close(is_over=False)
            elif session.login is None:
                self._silent_since = time.monotonic()

    def _resume_parsing(self) -> None:
        try:
            self._intake.resume_parsing()
        except CommandError as invalid:
            self._end_after(invalid)
        self._resume_reading()

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

    async def _send_long(self, buffers: list[Readable]) -> None:
        """Sends a response that ends with a long read, which is read meanwhile. Its length has been sent, so if it
        cannot be read to its end, the connection is closed."""
        *first, last = buffers
        long = cast(LongRead, last)
        self.response_reservation().hold(2 * PIECE_BYTES)
        self._is_sending_long = asyncio.get_running_loop().create_future()
        ahead = long.next_piece()
        try:
            self._send(first)
            while ahead is not None:
                piece = await ahead
                ahead = long.next_piece()
                await self._until_writable()
                if self._transport.is_closing():
                    return
                self._send([piece])
        except StorageError as failed:
            _log.warning("%s: closed in the middle of a response: %s", self.address, failed)
            self.abort()
        except BaseException:
            self.abort()
            raise
        finally:
            if ahead is not None:
                ahead.cancel()
            self._is_sending_long.set_result(None)
            self._is_sending_long = None

    async def _until_writable(self) -> None:
        """Returns when the connection is writable or lost."""
        while self._writable is not None and not self._writable.done():
            await self._writable

    async def _until_free(self) -> None:
        """Returns when a response can be sent that is out of order, or the connection is lost."""
        await self._until_writable()
        while self._is_sending_long is not None:
            await self._is_sending_long
            await self._until_writable()

    def defer(self, work: DeferredWork) -> None:
        responder = DeferredResponder(Reservation(self._listener.budgets.responses_to(self._session), self._reclaimed))
        self._deferred.add(responder)
        self._listener.loop.create_task(self._respond_deferred(work, responder))

    async def _respond_deferred(self, work: DeferredWork, responder: DeferredResponder) -> None:
        try:
            buffers = await work(responder)
            # Another response may be in progress, or have filled the socket by then.
            await self._until_free()
            if buffers and not self._transport.is_closing():
                self._send(buffers)
                responder.reservation.hold(sum(map(len, buffers)))
                await self._until_writable()
        finally:
            self._deferred.discard(responder)
            responder.reservation.close()
            if self._awaits_deferred and not self._deferred and not self._is_working:
                self._close(is_over=True)


class TcpConnection(Connection):
    """A client over TCP itself, whose socket follows `tcp.socket`."""

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
    """The listening socket and its connections. Opened by `listen`, closed by `stop`."""

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
        # A TLS connection was admitted when its handshake began.
        if self._handshakes is None:
            return super().admit(connection)
        self._connections.add(connection)
        return True

    def has_room(self, more: int = 0) -> bool:
        return super().has_room(more + (0 if self._handshakes is None else len(self._handshakes)))

    async def stop(self, seconds_max: float) -> None:
        """Accepts no new connections and drains those that are open."""
        if self._server is not None:
            self._server.close()
        if self._handshakes is not None:
            self._handshakes.stop()
        await super().stop(seconds_max)
