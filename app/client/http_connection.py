"""The client's connection over HTTP/1.1, with or without TLS: one that is kept open, and carries requests back to back.

The server executes the requests of a connection in their order, so a command does the same as over TCP. Only a login
holds back what comes after it, because the token that it returns belongs into the next request. The token is renewed
before it ends. A group membership is a lease (http_leases.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

import httptools

from whippet.app.client.address import Destination
from whippet.app.client.connection import Connection, Disconnected
from whippet.app.client.http_commands import (
    NOT_FOUND,
    QUERIES,
    Answer,
    Exchange,
    compressed,
    is_refusal,
    lifetime,
    log_in,
    log_in_with_token,
    prepare,
    refresh,
    refusal,
)
from whippet.app.client.http_leases import CONFLICT, Key, Leases
from whippet.app.client.outstanding import disconnected
from whippet.app.client.tcp import enable_keepalive, open_stream
from whippet.app.commands import requests
from whippet.app.commands.responses import LoggedIn
from whippet.app.errors import Code, CommandError

IN_PROGRESS_MAX = 32
"""Requests on the wire without a response. The server accepts 64."""
JOINED_BYTES = 64 << 10
RENEWED_AFTER = 0.8
"""The part of its lifetime after which a token is exchanged for another one."""
FAREWELL_S = 1.0
"""How long a connection that is closed waits until its leases are given back."""

Pending = tuple[Exchange, "asyncio.Future[Any]", bool]
"""An exchange, who waits for it, and whether a 404 is an answer."""


class HttpConnection(asyncio.Protocol):
    """Created by `connect`. All methods run on the event loop."""

    transport = "http"

    def __init__(self, destination: Destination, leases: Leases) -> None:
        self.leases = leases
        self._address = destination.address
        self._compression = destination.compression
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, None)
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._unsent: deque[Pending] = deque()
        self._sent: deque[Pending] = deque()
        self._token: str | None = None
        self._renewal: asyncio.TimerHandle | None = None
        self._writable = True
        self._drained: asyncio.Future[None] | None = None
        self._commits: set[asyncio.Task[None]] = set()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._reason: str | None = None

    # --------------------------------------------------------------------------------------------------- for the client

    @property
    def is_open(self) -> bool:
        return not self._closed.done() and not self._transport.is_closing()

    def request(self, request: requests.Request) -> asyncio.Future[Any]:
        try:
            key = self.leases.of_commit(request)
            if key is not None:
                commit = self._loop.create_task(self._commit(key, cast(requests.StoreConsumerOffset, request)))
                self._commits.add(commit)
                commit.add_done_callback(self._commits.discard)
                return commit
            if isinstance(request, requests.SyncConsumerGroup) and self.leases.exchange(request) is None:
                # Not a member.
                nothing: asyncio.Future[Any] = self._loop.create_future()
                nothing.set_result(None)
                return nothing
            exchange = self._session(request) or self.leases.exchange(request) or prepare(request)
            if self._compression is not None and isinstance(request, requests.SendMessages):
                exchange = compressed(exchange, self._compression)
        except CommandError as refused:
            future: asyncio.Future[Any] = self._loop.create_future()
            future.set_exception(refused)
            return future
        if type(request) is requests.Ping and self._token is not None:
            # A lease that has lapsed is noticed by the next poll.
            for renewal in self.leases.renew():
                self._begin(renewal).add_done_callback(_ignore)
        return self._begin(exchange, none_if_missing=type(request) in QUERIES)

    async def drained(self) -> None:
        if self._unsent or not self._writable:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)

    async def close(self) -> None:
        if self.is_open and self._token is not None and len(self.leases):
            # Other members get the partitions at once, as when a connection ends.
            given_back = [self._begin(exchange) for exchange in self.leases.give_back()]
            await asyncio.wait(given_back, timeout=FAREWELL_S)
            for future in given_back:
                if not future.cancel():
                    future.exception()
        self._transport.close()
        await asyncio.shield(self._closed)

    # --------------------------------------------------------------------------------------------------------- sessions

    def _session(self, request: requests.Request) -> Exchange | None:
        if isinstance(request, requests.LoginUser):
            return log_in(request, self._logged_in)
        if isinstance(request, requests.LoginWithPersonalAccessToken):
            return log_in_with_token(request, self._logged_in)
        if isinstance(request, requests.LogoutUser):
            return Exchange("DELETE", "/users/logout", self._logged_out, changes_session=True)
        return None

    def _logged_in(self, answer: Answer) -> LoggedIn:
        body = answer.json
        self._end_renewal()
        self._token = token = body["access_token"]["token"]
        seconds = lifetime(token)
        if seconds is not None:
            self._renewal = self._loop.call_later(seconds * RENEWED_AFTER, self._renew, token)
        return LoggedIn(body["user_id"])

    def _logged_out(self, answer: Answer) -> None:
        self._end_renewal()
        self._token = None

    def _renew(self, token: str) -> None:
        if self.is_open and self._token == token:
            # If it is refused, so is the next request, which somebody waits for.
            self._begin(refresh(token, self._logged_in)).add_done_callback(_ignore)

    def _end_renewal(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None

    async def _commit(self, key: Key, request: requests.StoreConsumerOffset) -> None:
        """If the group has changed, looks up whether the partition is still this member's."""
        while True:
            try:
                await self._begin(self.leases.commit(key, request))
            except _Stale:
                await self._begin(self.leases.look_up(key))
                if not self.leases.owns(key, request.partition_id):
                    raise CommandError(Code.CONSUMER_GROUP_PARTITION_NOT_OWNED) from None
            else:
                return

    # ---------------------------------------------------------------------------------------------- requests, responses

    def _begin(self, exchange: Exchange, *, none_if_missing: bool = False) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self.is_open:
            future.set_exception(self._disconnected())
            return future
        self._unsent.append((exchange, future, none_if_missing))
        self._write()
        return future

    def _write(self) -> None:
        sent = self._sent
        while self._unsent and self._writable and len(sent) < IN_PROGRESS_MAX:
            if sent and sent[-1][0].changes_session:
                return
            exchange, future, none_if_missing = self._unsent.popleft()
            head = exchange.head(self._address, self._token)
            if len(head) + sum(map(len, exchange.body)) <= JOINED_BYTES:
                self._transport.write(b"".join((head, *exchange.body)))
            else:
                self._transport.write(head)
                for part in exchange.body:
                    self._transport.write(part)
            # The body is not needed any more.
            sent.append((exchange._replace(body=()), future, none_if_missing))
        if self._drained is not None and not self._unsent and self._writable:
            self._drained.set_result(None)
            self._drained = None

    def _receive(self, answer: Answer) -> None:
        exchange, future, none_if_missing = self._sent.popleft()
        if future.done() and not exchange.changes_session:
            return
        try:
            result = _result(exchange, answer, none_if_missing=none_if_missing)
        except (CommandError, _Stale) as refused:
            if isinstance(refused, Disconnected):
                self._reason = self._reason or refused.detail
                self._transport.close()
            if not future.done():
                future.set_exception(refused)
        else:
            if not future.done():
                future.set_result(result)

    def _disconnected(self) -> Disconnected:
        return disconnected(self._address, self._reason)

    # --------------------------------------------------------------------------------------- callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        enable_keepalive(transport.get_extra_info("socket"))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._reason = self._reason or str(exc)
        self._end_renewal()
        self._closed.set_result(None)
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        pending = (*self._sent, *self._unsent)
        self._sent.clear()
        self._unsent.clear()
        for _, future, _ in pending:
            if not future.done():
                future.set_exception(self._disconnected())

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._write()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._reason = self._reason or "the server sent bytes that are no response"
            self._transport.abort()
            return
        if not self._transport.is_closing():
            self._write()

    # ------------------------------------------------------------------------------------------ callbacks of the parser

    def on_message_begin(self) -> None:
        self._headers = {}
        self._body = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        answer = Answer(status, self._headers, b"".join(self._body))
        self._body = []
        if not self._sent:
            self._reason = self._reason or f"the server has ended it: {refusal(answer)}"
            return
        keeps_open = self._parser.should_keep_alive()
        self._receive(answer)
        if not keeps_open:
            self._transport.close()


class _Stale(Exception):
    """The group has changed since the lease was looked up."""


def _result(exchange: Exchange, answer: Answer, *, none_if_missing: bool) -> Any:
    if is_refusal(answer) and not exchange.handles_refusals and not (none_if_missing and answer.status == NOT_FOUND):
        raise refusal(answer)
    if exchange.handles_refusals and answer.status == CONFLICT:
        raise _Stale
    try:
        return exchange.decode(answer)
    except (ValueError, LookupError, TypeError) as error:
        sentence = f"the response to {exchange.method} {exchange.path.partition('?')[0]} cannot be decoded: {error!r}"
        raise CommandError(Code.INVALID_FORMAT, sentence) from error


def _ignore(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


async def connect(destination: Destination, previous: Connection | None = None) -> HttpConnection:
    """Does not log in. The leases of the previous connection are kept. OSError and ssl.SSLError are raised as
    Disconnected."""
    leases = previous.leases if isinstance(previous, HttpConnection) else Leases()
    return await open_stream(destination, lambda: HttpConnection(destination, leases))
