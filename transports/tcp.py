"""The binary protocol over TCP, with or without TLS: frames off the socket, in order, responses onto it, in order.

How a frame is received: reads go into a scratch buffer that all connections share, because a read is taken apart before
the next one can happen. A frame that is not whole then gets a buffer of its own, and the rest of it is read straight
into that. Commands of one connection are carried out one after the other by a task that lives while there are any.

What bounds memory: the size of a frame, of all frames together, the number that one connection may send ahead; and a
client that does not take its responses is not read from, and after a while not kept. What bounds time: a request that
has begun must go on, and a stranger must ask for something.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np

from whippet.app.config.formats import Address
from whippet.app.config.system import Limits
from whippet.app.errors import CommandError
from whippet.app.gateway import Gateway
from whippet.app.model.sessions import Session, Transport
from whippet.storage.batch import Readable
from whippet.transports import closing, conversation, listening
from whippet.transports.conversation import BEGINNING_BYTES, Conversation
from whippet.transports.handshakes import Handshakes
from whippet.transports.tcp_sockets import limit_farewell, prepare_accepted, prepare_listener

_log = logging.getLogger(__name__)

MAPPED = "::ffff:"
"""Before an IPv4 address where a socket speaks both."""
SCRATCH_BYTES = 256 << 10
AHEAD_MAX = 128
"""Requests that a connection may send before their turn; then it is not read from."""
STALLED_SECONDS = 60.0
"""How long a client may take nearly nothing of what it was sent."""
TAKEN_BYTES_MIN = 1 << 20
"""What it has to take in that time, if there is so much; a slow reader of a large answer is none that has stalled."""
SWEEP_SECONDS = 1.0
FULL_SAID_SECONDS = 60.0
"""How often the log is told, at most, that there are too many connections."""
HTTP_METHODS = frozenset((b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"PRI "))
QUICKACK = getattr(socket, "TCP_QUICKACK", None)
"""Linux has it; elsewhere an acknowledgement comes when it comes."""
TLS_HELLO = (b"\x16\x03\x01", b"\x16\x03\x03")
"""How TLS begins. As a length it is more than a stranger may send."""


class FramesBudget:
    """Bytes of all requests in hand. Who does not fit waits its turn, not read from meanwhile."""

    def __init__(self, limit: int) -> None:
        self.used = 0
        self._limit = limit
        self._waiting: OrderedDict[Callable[[], None], int] = OrderedDict()

    def take(self, size: int, resume: Callable[[], None]) -> bool:
        """False: there is no room yet, and `resume` is called when it has been taken."""
        if self._waiting or not self._fits(size):
            self._waiting[resume] = size
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        self.used -= size
        while self._waiting and self._fits(next(iter(self._waiting.values()))):
            resume, wanted = self._waiting.popitem(last=False)
            self.used += wanted
            resume()

    def forget(self, resume: Callable[[], None]) -> None:
        """Who has waited does not any more."""
        if self._waiting.pop(resume, None) is not None:
            self.give_back(0)

    def _fits(self, size: int) -> bool:
        return not self.used or self.used + size <= self._limit


class Connection(asyncio.BufferedProtocol):
    """One client. All methods run on the event loop.

    What else carries a stream of bytes derives from this: it says how they are received, sent and ended.
    """

    TRANSPORT = Transport.TCP

    __slots__ = (
        "_ahead",
        "_aside",
        "_conversation",
        "_deadline",
        "_ended",
        "_eof",
        "_filled",
        "_frame",
        "_lingers_until",
        "_listener",
        "_part",
        "_session",
        "_skip",
        "_skip_answer",
        "_stalled_since",
        "_transport",
        "_untaken",
        "_waiting",
        "_wanted",
        "_working",
        "_writable",
    )

    def __init__(self, listener: Connections) -> None:
        self._listener = listener
        self._transport = cast(asyncio.Transport, None)
        self._session = cast(Session, None)
        self._conversation: Conversation | None = None
        """From the first bytes on: they say which protocol this is."""
        self._part = b""
        """The beginning of a frame whose length is not known, or for which there is no room yet."""
        self._frame: memoryview | None = None
        self._filled = 0
        self._wanted = 0
        self._skip = 0
        self._skip_answer: list[Readable] = []
        self._waiting = False
        """For room for the frame that `_part` begins."""
        self._aside: memoryview | None = None
        """What was read when there were enough requests ahead already."""
        self._ahead: deque[memoryview | list[Readable]] = deque()
        """Frames that are still to be answered, and answers to those that were read past."""
        self._working: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._stalled_since = 0.0
        self._untaken = 0
        self._deadline = 0.0
        self._ended = False
        self._eof = False
        self._lingers_until = 0.0
        """All was said, and the client is given so long to hear it; what it says is thrown away."""

    # ------------------------------------------------------------------------------------------------- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        listener = self._listener
        if not listener.welcome(self):
            self._transport.abort()
            self._ended = True
            return
        gateway = listener.gateway
        reached_at = transport.get_extra_info("sockname")
        self._session = Session(
            self.TRANSPORT,
            text_of(transport.get_extra_info("peername")),
            gateway.clock(),
            self.end,
            reached_at[0].removeprefix(MAPPED) if reached_at else "",
        )
        self._deadline = time.monotonic() + listener.limits.silence_before_login

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._listener.farewell(self)
        self._stop_waiting()
        if self._frame is not None:
            self._frame = None
            self._listener.budget.give_back(self._wanted)
        if self._aside is not None:
            self._listener.budget.give_back(len(self._aside))
            self._aside = None
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        if self._conversation is not None:
            self._conversation.close()

    def eof_received(self) -> bool:
        """A client that has said its last word still hears the answers to what it has asked."""
        self._eof = True
        if self._working is None:
            return False
        self._ended = True
        # TLS cannot be half closed; it closes when what is written until now is on its way.
        return self._transport.get_extra_info("sslcontext") is None

    def end(self) -> None:
        """No more requests; those in hand are answered, then the connection closes."""
        if self._ended:
            return
        self._ended = True
        self._stop_waiting()
        if self._working is None:
            # A client that is not waiting for an answer is not waited for.
            self._close(is_over=True)
        else:
            self._transport.pause_reading()

    def _close(self, *, is_over: bool) -> None:
        """Everything is answered. `is_over`: whatever else the client says, no answer can get lost by that."""
        if not (self._lingers_until or self._transport.is_closing()):
            self._lingers_until = closing.close(self._transport, time.monotonic(), is_over=is_over or self._eof)

    def _send(self, buffers: list[Readable]) -> None:
        self._transport.writelines(buffers)

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self._stalled_since = 0.0
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def overdue(self, now: float) -> str | None:
        """Why this connection is not worth keeping; None when it is."""
        if self._has_stalled(now):
            return "it does not take what it was sent"
        if self._lingers_until:
            self._lingers_until = closing.until(self._transport, self._lingers_until, now)
            return "it does not end the connection" if now > self._lingers_until else None
        if self._deadline and now > self._deadline:
            if self._is_receiving:
                return "a request takes too long to arrive"
            return "it is silent and has not logged in"
        return None

    @property
    def _is_receiving(self) -> bool:
        return self._frame is not None or bool(self._part) or bool(self._skip)

    def _has_stalled(self, now: float) -> bool:
        """Asked at intervals. A connection that is closed but still has something to say counts as any other."""
        untaken = self._transport.get_write_buffer_size()
        if not untaken:
            self._stalled_since = 0.0
        elif not self._stalled_since or self._untaken - untaken >= TAKEN_BYTES_MIN:
            self._stalled_since, self._untaken = now, untaken
        return bool(untaken) and now - self._stalled_since > self._listener.stalled_seconds

    def abort(self) -> None:
        self._ended = True
        self._stop_waiting()
        self._transport.abort()

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting = False
            self._listener.budget.forget(self._again)

    # ------------------------------------------------------------------------------------------------- receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None and not self._lingers_until:
            return self._frame[self._filled :]
        return self._listener.scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._lingers_until:
            return
        if self._frame is not None:
            self._filled += nbytes
            if self._filled == self._wanted:
                frame, self._frame = self._frame, None
                self._deadline = 0.0
                self._queue(frame)
            return
        self.hear(self._listener.scratch[:nbytes])

    def hear(self, data: memoryview) -> None:
        """Bytes that belong to no frame that is known already; they may lie in the scratch buffer."""
        if self._part:
            data = memoryview(self._part + bytes(data))
            self._part = b""
        self._take_apart(data)

    def _take_apart(self, data: memoryview) -> None:
        position, size = 0, len(data)
        while position < size and not self._ended:
            if len(self._ahead) >= AHEAD_MAX:
                self._set_aside(data[position:])
                return
            if self._skip:
                position += self._skip_some(size - position)
                continue
            left = size - position
            rest = data[position:]
            talk = self._conversation or self._greet(rest)
            if talk is None:
                return
            try:
                length = talk.measure(rest)
            except CommandError as lost:
                _log.info("%s: %s; what follows cannot be told apart", self.address, lost)
                self.end()
                return
            if not length:
                self._keep(rest)
                return
            if (code := talk.refused(rest, length)) is not None:
                self._skip, self._skip_answer = length, talk.refuse(rest, code)
                self._start_deadline(0)
                continue
            if left >= length:
                # Small, and the scratch buffer is needed for the next read: a copy of its own.
                self._listener.budget.used += length
                self._queue(memoryview(bytearray(rest[:length])))
                position += length
                continue
            if self._listener.budget.take(length, self._again):
                self._begin(length, rest)
            else:
                self._part = bytes(rest)
                self._waiting = True
                self._deadline = 0.0
                self._transport.pause_reading()
            return

    def _skip_some(self, there: int) -> int:
        """The time that this may take is earned by what arrives: whoever announces much has not sent it."""
        skipped = min(self._skip, there)
        self._skip -= skipped
        self._deadline += skipped / (1 << 20)
        if not self._skip:
            self._queue(self._skip_answer)
        return skipped

    def _greet(self, data: memoryview) -> Conversation | None:
        """None: too little was said, or nothing that is spoken on this port; who can be told so is told."""
        beginning = bytes(data[:BEGINNING_BYTES])
        if len(beginning) < BEGINNING_BYTES:
            self._keep(data)
        elif beginning in HTTP_METHODS:
            self._transport.write(self._listener.wrong_port())
            self.end()
        elif beginning.startswith(TLS_HELLO):
            _log.info("%s: speaks TLS, which is off here (tcp.tls.enabled)", self.address)
            self.end()
        else:
            listener = self._listener
            self._conversation = conversation.begin(listener.gateway, self._session, beginning, listener.header_size)
        return self._conversation

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

    def _keep(self, part: memoryview) -> None:
        """The beginning of a header."""
        self._acknowledge()
        self._part = bytes(part)
        if not self._deadline:
            self._start_deadline(0)

    def _set_aside(self, rest: memoryview) -> None:
        """For later: a read may hold thousands of small requests, and a request costs much more than its bytes."""
        self._listener.budget.used += len(rest)
        # A part of what was set aside before needs no copy.
        self._aside = memoryview(bytes(rest)) if rest.obj is self._listener.scratch.obj else rest
        self._transport.pause_reading()

    def _take_up(self) -> None:
        """There is room for more requests ahead: first for those that were set aside."""
        aside, self._aside = self._aside, None
        if aside is not None:
            self._take_apart(aside)
            self._listener.budget.give_back(len(aside))
        self._read_on()

    def _read_on(self) -> None:
        if not self._ended and not self._waiting and self._aside is None and len(self._ahead) < AHEAD_MAX:
            self._transport.resume_reading()

    def _begin(self, length: int, there: memoryview) -> None:
        """There is room for the frame, of which this is the first part."""
        # Not zeroed: that takes time, and memory for what was announced and has not come.
        self._frame = np.empty(length, dtype=np.uint8).data
        self._frame[: len(there)] = there
        self._filled, self._wanted = len(there), length
        self._acknowledge()
        self._start_deadline(length)

    def _again(self) -> None:
        """The frame that had to wait has got its room."""
        part, self._part = memoryview(self._part), b""
        self._waiting = False
        assert self._conversation is not None
        self._begin(self._conversation.measure(part), part)
        self._read_on()

    def _start_deadline(self, length: int) -> None:
        self._deadline = time.monotonic() + self._listener.limits.frame_time + length / (1 << 20)

    # ------------------------------------------------------------------------------------------------- answering

    def _queue(self, asked: memoryview | list[Readable]) -> None:
        self._deadline = 0.0
        self._ahead.append(asked)
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        elif len(self._ahead) >= AHEAD_MAX:
            self._transport.pause_reading()

    async def _work(self) -> None:
        talk = self._conversation
        assert talk is not None
        try:
            while self._ahead:
                asked = self._ahead.popleft()
                if isinstance(asked, list):
                    buffers = asked
                else:
                    size = len(asked)
                    buffers = await talk.answer(asked)
                    self._listener.budget.give_back(size)
                if self._transport.is_closing():
                    break
                self._send(buffers)
                if self._writable is not None:
                    await self._writable
                if talk.over:
                    self._ended = True
                    break
                if len(self._ahead) == AHEAD_MAX // 2 and not self._ended:
                    self._take_up()
                    # Whoever sends thousands of requests at once shares the loop with all others.
                    await asyncio.sleep(0)
        finally:
            self._working = None
            for asked in self._ahead:
                if not isinstance(asked, list):
                    self._listener.budget.give_back(len(asked))
            self._ahead.clear()
            if self._ended:
                self._close(is_over=False)
            elif self._session.login is None and not self._is_receiving:
                self._deadline = time.monotonic() + self._listener.limits.silence_before_login


class Member(Protocol):
    """Somebody who is connected."""

    @property
    def address(self) -> str: ...

    def overdue(self, now: float) -> str | None:
        """Why this connection is not worth keeping; None when it is."""

    def end(self) -> None:
        """No more requests; those in hand are answered, then the connection closes."""

    def abort(self) -> None: ...


class Connections:
    """Everyone who is connected in one way: how many there may be, what they share, how long they may take."""

    def __init__(
        self, gateway: Gateway, budget: FramesBudget | None = None, *, stalled_seconds: float = STALLED_SECONDS
    ) -> None:
        """`budget` is shared with whoever else receives frames."""
        self.gateway = gateway
        self.stalled_seconds = stalled_seconds
        forced = gateway.config.tcp.message_header
        self.header_size = None if forced == "auto" else int(forced)
        self.limits: Limits = gateway.config.system.limits
        self.budget = budget or FramesBudget(self.limits.frames_bytes)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._connections: set[Member] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._empty: asyncio.Future[None] | None = None
        self._full_said_at = float("-inf")

    def start_sweeping(self, name: str) -> None:
        self._sweeper = asyncio.create_task(self._sweep(), name=name)

    def welcome(self, connection: Member) -> bool:
        if not self.has_room():
            return False
        self._connections.add(connection)
        return True

    def has_room(self, more: int = 0) -> bool:
        if len(self._connections) + more < self.limits.connections:
            return True
        now = time.monotonic()
        if now - self._full_said_at > FULL_SAID_SECONDS:
            self._full_said_at = now
            _log.warning("connections are refused: system.limits.connections = %d", self.limits.connections)
        return False

    def count_connections(self) -> int:
        return len(self._connections)

    def farewell(self, connection: Member) -> None:
        self._connections.discard(connection)
        if self._empty is not None and not self._connections and not self._empty.done():
            self._empty.set_result(None)

    def wrong_port(self) -> bytes:
        port = self.gateway.addresses.http
        where = f"HTTP is on port {port}" if port else "HTTP is turned off"
        text = f"This port speaks the binary protocol; {where}.\n"
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
        return f"{head}Connection: close\r\n\r\n{text}".encode()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.close_overdue(time.monotonic())

    def close_overdue(self, now: float) -> None:
        for connection in list(self._connections):
            reason = connection.overdue(now)
            if reason is not None:
                _log.info("%s: closed, because %s", connection.address, reason)
                connection.abort()

    async def stop(self, seconds_max: float) -> None:
        """Lets the commands in hand finish, closes all connections."""
        for connection in list(self._connections):
            connection.end()
        if self._connections:
            self._empty = asyncio.get_running_loop().create_future()
            done, _ = await asyncio.wait([self._empty], timeout=seconds_max)
            if not done:
                _log.warning("%d connections did not end in time and are cut", len(self._connections))
                for connection in list(self._connections):
                    connection.abort()
        # Until now it looks after those who do not take their answers or do not go.
        if self._sweeper is not None:
            self._sweeper.cancel()


class TcpConnection(Connection):
    """A client over TCP itself, on a socket as `tcp.socket` wants it."""

    __slots__ = ("_farewell",)

    def __init__(self, listener: Connections) -> None:
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


class TcpListener(Connections):
    """The listening socket and everyone connected through it. Made by `listen`, ended by `stop`."""

    def __init__(
        self, gateway: Gateway, budget: FramesBudget | None = None, *, stalled_seconds: float = STALLED_SECONDS
    ) -> None:
        super().__init__(gateway, budget, stalled_seconds=stalled_seconds)
        self.address = Address("", 0)
        self._server: asyncio.Server | None = None
        self._handshakes: Handshakes | None = None

    async def listen(self, address: Address, setting: str, tls: ssl.SSLContext | None) -> None:
        config = self.gateway.config.tcp
        listener = await listening.listen(address, setting, ipv6=config.ipv6)
        prepare_listener(listener, config.socket)
        self.address = listening.effective(listener)
        if tls is not None:
            seconds_max = self.limits.silence_before_login
            self._handshakes = Handshakes(listener, tls, lambda: TcpConnection(self), self.has_room, seconds_max)
        else:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: TcpConnection(self), sock=listener, backlog=listening.BACKLOG_CONNECTIONS
            )
        self.start_sweeping("tcp deadlines")

    def welcome(self, connection: Member) -> bool:
        # Whose handshake was waited for had room when it began.
        if self._handshakes is None:
            return super().welcome(connection)
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


def text_of(peer: Any) -> str:
    host, port = peer[:2] if peer else ("?", 0)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
