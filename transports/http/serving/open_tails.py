"""Tails: messages as Server-Sent Events, for as long as the reader stays.

1. A tail is a cursor and a feed. What the feed gives is written onto the connection as it is; the next piece is asked
   for when the connection has room. A slow reader falls behind and reads from where it is, at its own pace; one that
   takes nothing at all is told where it is, behind what it has not taken yet, and dropped.
2. The id of an event is the cursor behind it: `3:43` says that offset 43 of partition 3 comes next, and with several
   partitions all of them are in it. `EventSource` says it again by itself when it comes back, in `Last-Event-ID`. The
   first thing that is sent is an id, so that not even a reader that was sent nothing yet loses its place.
3. The last event is called `end` and says why, and where: `EventSource` comes back by itself, whatever the reason.
4. Whoever opens a tail may read the topic, and goes on doing so: once a second his token, his permission and the topic
   are looked at again. That all sessions of the user end, and that the server stops, is heard at once.
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
from whippet.transports.http.forms.events import Form, chunk, encoder, id_of
from whippet.transports.http.forms.responses import NO_STORE, VIEW, Headers
from whippet.transports.http.operation import Call
from whippet.transports.http.serving import authentication
from whippet.transports.http.serving.protocol import CONNECTION, Protocol
from whippet.transports.http.serving.tail_writers import AsgiWriter, ConnectionWriter, TailWriter, until_disconnected
from whippet.transports.reservations import POLL_BYTES_MIN

_log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
SWEPT_TOGETHER = 32
"""After so many tails were looked at, others get their turn."""
RETRY_MS = 1000
HEADERS: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    NO_STORE,
    # A proxy that gathers what it passes on would make a tail useless.
    (b"x-accel-buffering", b"no"),
    (b"connection", b"close"),
    VIEW,
)
HEARTBEAT = b":\n\n"


# ------------------------------------------------------------------------------------------------- a tail


class Tail:
    def __init__(self, tails: Tails, call: Call, followed: ReadPositions, form: Form) -> None:
        self.call = call
        self.login = call.login
        self._tails = tails
        self._followed = followed
        self._form = form
        self._numbers = tuple([partition.place.partition for partition in followed.partitions])
        self._told = followed.start
        """Where the reader is once it has taken all that was written."""
        self._is_lost = False
        self._ending: tuple[str, str] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._outlet: TailWriter | None = None
        self._spoke_at = self._took_at = asyncio.get_running_loop().time()
        self._written = self._heard = self._taken = 0

    async def run(self, send: Send) -> None:
        call, self._task = self.call, asyncio.current_task()
        connection: Protocol | None = call.scope.get(CONNECTION)
        writer = self._outlet = AsgiWriter(send) if connection is None else ConnectionWriter(connection)
        watching = asyncio.get_running_loop().create_task(self._watch())
        call.session.end = self.removed
        call.api.gateway.sessions.add(call.session)
        try:
            await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": list(HEADERS)})
            await self._write(writer, b"retry: %d\nid: %b\n\n" % (RETRY_MS, id_of(self._numbers, self._told)))
            if call.api.parting.done():
                self.part()
            await self._go_on(writer)
        except asyncio.CancelledError:
            if self._ending is None and not self._is_lost:
                raise
            asyncio.current_task().uncancel()  # type: ignore[union-attr]
        except StorageError as error:
            self._ending = "gone", str(of_storage(error))
        except Exception:  # noqa: BLE001 -- a defect of ours; the reader is told, and comes back
            _log.exception("%s: a tail ended in a defect", call.session.address)
            self._ending = "error", "Internal server error"
        finally:
            self._task = None
            watching.cancel()
            call.api.gateway.sessions.remove(call.session)
            self._tails.leave(self)
        if not self._is_lost and writer.can_say_more():
            await self._say_goodbye(writer, send)

    async def _go_on(self, writer: TailWriter) -> None:
        encode = encoder(self._form, self._numbers, is_framed=writer.is_framed)
        name = self._form, writer.is_framed
        feed = self._tails.feeds.join(name, self._followed.partitions, encode)
        try:
            cursor = feed.cursor(self._told)
            while True:
                if feed.has_more(cursor):
                    await self.call.response_reservation().reserve(POLL_BYTES_MIN)
                piece = await feed.next_piece(cursor)
                self._note(piece)
                self._hold(len(piece.content))
                await writer.write(piece.content)
                self._hold(writer.untaken_bytes)
                if isinstance(writer, ConnectionWriter):
                    await self._stay(writer, feed, cursor)
        finally:
            self._tails.feeds.leave(name, feed)

    async def _stay(self, writer: ConnectionWriter, feed: SharedFeed[bytes], cursor: Cursor) -> None:
        """As long as the reader keeps up: it costs a call for a piece, and no turn of the event loop."""
        push, note = writer.push, self._note

        def take(piece: Piece[bytes]) -> int | None:
            note(piece)
            return len(piece.content) if push(piece.content) else None

        await feed.follow(cursor, take)
        await writer.room()

    def _hold(self, size: int) -> None:
        """Shares the memory of responses with so much that the reader has not taken."""
        if size > FREE_BYTES or self.call.turn is not None:
            self.call.response_reservation().hold(size)

    def _note(self, piece: Piece[bytes]) -> None:
        self._told = piece.position
        self._written += len(piece.content)

    async def _watch(self) -> None:
        await until_disconnected(self.call.receive)
        self._is_lost = True
        if self._task is not None:
            self._task.cancel()

    async def _write(self, writer: TailWriter, octets: bytes) -> None:
        octets = chunk(octets) if writer.is_framed else octets
        self._written += len(octets)
        await writer.write(octets)

    async def _say_goodbye(self, writer: TailWriter, send: Send) -> None:
        code, reason = self._ending or ("error", "")
        offsets = {number: at - 1 if at else None for number, at in zip(self._numbers, self._told, strict=True)}
        last = id_of(self._numbers, self._told)
        said = msgspec.json.encode({"code": code, "reason": reason, "cursor": last.decode(), "last_offsets": offsets})
        event = b"id: %b\nevent: end\ndata: %b\n\n" % (last, said)
        await send({"type": "http.response.body", "body": event, "more_body": False})

    # --------------------------------------------------------------------------------------------- what ends a tail

    def end(self, code: str, reason: str) -> None:
        if self._ending is None and self._task is not None:
            self._ending = code, reason
            self._task.cancel()

    def part(self) -> None:
        self.end("stopping", "The server is stopping")

    def removed(self) -> None:
        self.end("unauthenticated", "All sessions of the user have ended")

    def check(self, now: float, limits: HttpReaders) -> None:
        """What the client has taken, and whether it would hear from us otherwise."""
        writer = self._outlet
        if writer is None:
            return
        untaken = writer.untaken_bytes
        self._hold(untaken)
        taken = self._written - untaken
        if not untaken or taken > self._taken:
            self._taken, self._took_at = taken, now
        elif now - self._took_at > limits.stall_time:
            self.end("stalled", "What was sent was not taken; what comes next is at the cursor")
            return
        if self._written != self._heard or untaken:
            self._heard, self._spoke_at = self._written, now
        elif now - self._spoke_at > limits.heartbeat:
            octets = chunk(HEARTBEAT) if writer.is_framed else HEARTBEAT
            self._written += len(octets)
            writer.beat(octets)

    async def check_right(self) -> None:
        call = self.call
        try:
            caller = await authentication.authenticate(call.api, call.authorization)
            if call.caller is None or caller.user is not call.caller.user:
                self.end("unauthenticated", "The token is another user's now")
                return
            followed: ReadPositions = await call.execute(following(call))
        except CommandError as error:
            self.end(error.code.name.lower(), str(error))
        else:
            if followed.partitions != self._followed.partitions:
                self.end("changed", "The topic has other partitions now")


def following(
    call: Call, start: requests.Strategy | None = None, consumer: requests.Consumer | None = None
) -> requests.FollowMessages:
    partition = call.query.number
    return requests.FollowMessages(
        call.stream, call.topic, None if partition == "all" else int(partition), start, consumer
    )


class Events(Response):
    """The answer of the route: a tail in place of a body."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._tail.run(send)


class Tails:
    """All of a server. Looked at together, once a second, so that none needs a timer of its own."""

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

    def open(self, call: Call, followed: ReadPositions, form: Form) -> Events:
        tail = Tail(self, call, followed, form)
        self.places.reserve(tail.login)
        self._tails.add(tail)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep(), name="tails")
        return Events(tail)

    def leave(self, tail: Tail) -> None:
        if tail in self._tails:
            self._tails.remove(tail)
            self.places.release(tail.login)

    def part(self) -> None:
        for tail in list(self._tails):
            tail.part()

    def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()

    async def _sweep(self) -> None:
        limits = self._limits
        seconds = min(SWEEP_SECONDS, limits.stall_time / 4, limits.heartbeat / 4)
        while True:
            await asyncio.sleep(seconds)
            # Not here: what a task that stays has looked at last stays with it.
            await self._look_at_all()

    async def _look_at_all(self) -> None:
        loop = asyncio.get_running_loop()
        for number, tail in enumerate(list(self._tails)):
            if number % SWEPT_TOGETHER == 0:
                await asyncio.sleep(0)
            tail.check(loop.time(), self._limits)
            try:
                await tail.check_right()
            except Exception:  # noqa: BLE001 -- logged with its trace; the other tails must not suffer
                _log.exception("a tail could not be checked")
