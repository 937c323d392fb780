"""Tails: messages as Server-Sent Events, for as long as the client stays connected.

1. A tail is a cursor and a feed. It writes pieces of the feed onto the connection, and takes the next piece when the
   connection has room. A slow client falls behind and reads at its own pace; a stalled one receives its cursor after
   everything that it has not read, and is disconnected.
2. The id of an event is the cursor after it. `EventSource` sends it by itself in `Last-Event-ID` when it reconnects.
   The first thing that is sent is an id, so that even a client that has received no message keeps its position.
3. The last event is called `end` and contains the reason and the cursor: `EventSource` reconnects whatever the reason.
4. The client must stay entitled to read the topic: its token, its permission and the topic are checked again every
   second. When all sessions of the user end, or the server stops, the tail ends at once.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from whippet.app.commands import requests
from whippet.app.commands.messages import ReadPositions
from whippet.app.config.listeners import HttpReaders
from whippet.app.errors import CommandError, of_storage
from whippet.app.quota import Limit, Quota
from whippet.app.shared_feeds import Cursor, Piece, SharedFeed, SharedFeeds
from whippet.storage.errors import StorageError
from whippet.transports.admission.budget import FREE_BYTES
from whippet.transports.http.errors import limit_reached
from whippet.transports.http.forms.events import EventFormat, chunk, event_encoder, event_id
from whippet.transports.http.forms.request_bodies import until_disconnected
from whippet.transports.http.forms.responses import NO_STORE, VIEW, Headers
from whippet.transports.http.operation import Call
from whippet.transports.http.serving import authentication
from whippet.transports.http.serving.protocol import CONNECTION, Protocol
from whippet.transports.http.serving.tail_writers import AsgiWriter, ConnectionWriter, TailWriter
from whippet.transports.reservations import POLL_BYTES_MIN

_log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
CHECKED_AT_ONCE = 32
"""Tails to check before yielding to the event loop."""
RETRY_MS = 1000
HEADERS: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    NO_STORE,
    # A proxy that buffers would make a tail useless.
    (b"x-accel-buffering", b"no"),
    (b"connection", b"close"),
    VIEW,
)
HEARTBEAT = b":\n\n"


class Tail:
    def __init__(self, tails: Tails, call: Call, followed: ReadPositions, form: EventFormat) -> None:
        self.call = call
        self.login = call.login
        self._tails = tails
        self._followed = followed
        self._form = form
        self._numbers = tuple([partition.place.partition for partition in followed.partitions])
        self._position = followed.start
        """Where the client is once it has read everything that was written."""
        self._epochs = tuple([partition.epoch for partition in followed.partitions])
        self._is_disconnected = False
        self._ending: tuple[str, str] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._writer: TailWriter | None = None
        self._sent_at = self._read_at = asyncio.get_running_loop().time()
        self._written = self._written_before = self._delivered = 0

    async def run(self, send: Send) -> None:
        call, self._task = self.call, asyncio.current_task()
        connection: Protocol | None = call.scope.get(CONNECTION)
        writer = self._writer = AsgiWriter(send) if connection is None else ConnectionWriter(connection)
        watching = asyncio.get_running_loop().create_task(self._watch())
        call.session.end = self.end_with_sessions
        call.api.gateway.sessions.add(call.session)
        try:
            await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": list(HEADERS)})
            await self._write(
                writer, b"retry: %d\nid: %b\n\n" % (RETRY_MS, event_id(self._numbers, self._position, self._epochs))
            )
            if call.api.draining.done():
                self.drain()
            await self._go_on(writer)
        except asyncio.CancelledError:
            if self._ending is None and not self._is_disconnected:
                raise
            asyncio.current_task().uncancel()  # type: ignore[union-attr]
        except StorageError as error:
            self._ending = "gone", str(of_storage(error))
        except Exception:  # noqa: BLE001 -- a bug; the client gets an event, and reconnects
            _log.exception("%s: a tail failed because of a defect", call.session.address)
            self._ending = "error", "Internal server error"
        finally:
            self._task = None
            watching.cancel()
            call.api.gateway.sessions.remove(call.session)
            self._tails.leave(self)
        if not self._is_disconnected and writer.can_finish():
            await self._send_end(writer, send)

    async def _go_on(self, writer: TailWriter) -> None:
        encode = event_encoder(self._form, self._followed.partitions, is_framed=writer.is_framed)
        name = self._form, writer.is_framed
        feed = self._tails.feeds.join(name, self._followed.partitions, encode)
        try:
            cursor = feed.cursor(self._position, self._epochs)
            while True:
                if feed.has_more(cursor):
                    await self.call.response_reservation().reserve(POLL_BYTES_MIN)
                piece = await feed.next_piece(cursor)
                self._advance(cursor, piece)
                self._hold(len(piece.content))
                await writer.write(piece.content)
                self._hold(writer.unsent_bytes)
                if isinstance(writer, ConnectionWriter):
                    await self._follow(writer, feed, cursor)
        finally:
            self._tails.feeds.leave(name, feed)

    async def _follow(self, writer: ConnectionWriter, feed: SharedFeed[bytes], cursor: Cursor) -> None:
        """Serves a client that keeps up: a piece costs a call, and no turn of the event loop."""
        push, advance = writer.push, self._advance

        def take(piece: Piece[bytes]) -> int | None:
            advance(cursor, piece)
            return len(piece.content) if push(piece.content) else None

        await feed.follow(cursor, take)
        await writer.room()

    def _hold(self, size: int) -> None:
        """Reserves memory for what the client has not read."""
        if size > FREE_BYTES or self.call.reservation is not None:
            self.call.response_reservation().hold(size)

    def _advance(self, cursor: Cursor, piece: Piece[bytes]) -> None:
        self._position, self._epochs = piece.position, cursor.epochs
        self._written += len(piece.content)

    async def _watch(self) -> None:
        await until_disconnected(self.call.receive)
        self._is_disconnected = True
        if self._task is not None:
            self._task.cancel()

    async def _write(self, writer: TailWriter, octets: bytes) -> None:
        octets = chunk(octets) if writer.is_framed else octets
        self._written += len(octets)
        await writer.write(octets)

    async def _send_end(self, writer: TailWriter, send: Send) -> None:
        code, reason = self._ending or ("error", "")
        offsets = {number: at - 1 if at else None for number, at in zip(self._numbers, self._position, strict=True)}
        last = event_id(self._numbers, self._position, self._epochs)
        data = msgspec.json.encode({"code": code, "reason": reason, "cursor": last.decode(), "last_offsets": offsets})
        event = b"id: %b\nevent: end\ndata: %b\n\n" % (last, data)
        await send({"type": "http.response.body", "body": event, "more_body": False})

    def end(self, code: str, reason: str) -> None:
        if self._ending is None and self._task is not None:
            self._ending = code, reason
            self._task.cancel()

    def drain(self) -> None:
        self.end("stopping", "The server is stopping")

    def end_with_sessions(self) -> None:
        self.end("unauthenticated", "All sessions of the user have ended")

    def check(self, now: float, limits: HttpReaders) -> None:
        """Detects a client that has stalled, and sends a heartbeat if nothing else was sent."""
        writer = self._writer
        if writer is None:
            return
        unsent = writer.unsent_bytes
        self._hold(unsent)
        delivered = writer.delivered_bytes
        if not unsent or delivered > self._delivered:
            self._delivered, self._read_at = delivered, now
        elif now - self._read_at > limits.stall_time:
            self.end("stalled", "The client stopped reading; resume at the cursor")
            return
        if self._written != self._written_before or unsent:
            self._written_before, self._sent_at = self._written, now
        elif now - self._sent_at > limits.heartbeat:
            octets = chunk(HEARTBEAT) if writer.is_framed else HEARTBEAT
            self._written += len(octets)
            writer.write_heartbeat(octets)

    async def check_entitlement(self) -> None:
        call = self.call
        try:
            caller = await authentication.authenticate(call.api, call.authorization, call.session)
            if call.caller is None or caller.user is not call.caller.user:
                self.end("unauthenticated", "The token belongs to another user now")
                return
            followed: ReadPositions = await call.execute(follow_request(call))
        except CommandError as error:
            self.end(error.code.name.lower(), str(error))
        else:
            if followed.partitions != self._followed.partitions:
                self.end("changed", "The topic has other partitions now")


def follow_request(
    call: Call, start: requests.Strategy | None = None, consumer: requests.Consumer | None = None
) -> requests.FollowMessages:
    partition = call.query.number
    return requests.FollowMessages(
        call.stream, call.topic, None if partition == "all" else int(partition), start, consumer
    )


class TailResponse(Response):
    """The response of the route: a tail in place of a body."""

    status_code = 200

    def __init__(self, tail: Tail) -> None:
        self._tail = tail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._tail.run(send)


class Tails:
    """All tails of a server. They are checked together, once a second, so that none needs a timer of its own."""

    def __init__(self, limits: HttpReaders) -> None:
        self.feeds = SharedFeeds()
        self._limits = limits
        self.places = Quota(
            "tails",
            Limit("http.readers.tails", limits.tails),
            Limit("http.readers.tails_per_user", limits.tails_per_user),
            partial(limit_reached, "too_many_tails"),
        )
        self._tails: set[Tail] = set()
        self._sweeping: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._tails)

    def open(self, call: Call, followed: ReadPositions, form: EventFormat) -> TailResponse:
        tail = Tail(self, call, followed, form)
        self.places.reserve(tail.login)
        self._tails.add(tail)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep(), name="tails")
        return TailResponse(tail)

    def leave(self, tail: Tail) -> None:
        if tail in self._tails:
            self._tails.remove(tail)
            self.places.release(tail.login)

    def drain(self) -> None:
        for tail in list(self._tails):
            tail.drain()

    def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()

    async def _sweep(self) -> None:
        limits = self._limits
        seconds = min(SWEEP_SECONDS, limits.stall_time / 4, limits.heartbeat / 4)
        while True:
            await asyncio.sleep(seconds)
            # Not in this frame: a task that lives on keeps its last local variables alive.
            await self._check_all()

    async def _check_all(self) -> None:
        loop = asyncio.get_running_loop()
        for number, tail in enumerate(list(self._tails)):
            if number % CHECKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            tail.check(loop.time(), self._limits)
            try:
                await tail.check_entitlement()
            except Exception:  # noqa: BLE001 -- logged with its traceback; the other tails must go on
                _log.exception("a tail could not be checked")
