"""The 0.9 binary protocol; see transports/conversation.py. It keeps the client's registration, and sends the same
response again when a request is repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import xxhash

from whippet.app.commands import groups
from whippet.app.commands.direct_sends import send
from whippet.app.commands.registry import execute
from whippet.app.commands.requests import PollMessages, SendMessages
from whippet.app.errors import Code, CommandError, on_the_wire
from whippet.app.gateway import Gateway
from whippet.app.model.modern_replay import ReplayCache
from whippet.app.model.sessions import Registration, Session
from whippet.app.version import MODERN_IGGY_VERSION
from whippet.storage.batch import Limits, Readable
from whippet.transports import login_checks
from whippet.transports.classic_conversation import UNAUTHENTICATED_FRAME_BYTES
from whippet.transports.login_checks import Evicted
from whippet.transports.next_conversation import NextConversation
from whippet.transports.reservations import Responder, held_and_long, reserve_poll, wait_for_poll
from whippet.transports.send_checks import check_send, is_small
from whippet.transports.wire import generations, numbered_sends
from whippet.transports.wire.modern import frames, registration, requests, responses
from whippet.transports.wire.modern.frames import HEADER_BYTES, Reason
from whippet.transports.wire.modern.operations import (
    CODES,
    LOGINS,
    LOGOUT,
    MEMBERSHIPS,
    OF_CODE,
    OF_ONE_PARTITION,
    PLAIN,
    READ,
    REGISTER,
    SEND_MESSAGES,
)
from whippet.transports.wire.next.operations import BIND_SESSION

if TYPE_CHECKING:
    from whippet.transports.conversation import Conversation

_log = logging.getLogger(__name__)

BODY_BYTES_MAX = 10 * 1024 * 1024
"""The limit for every request but sends, whose limit is configured."""
REMEMBERED_BYTES_MAX = 4096
"""Longer responses are not remembered. They are rare: a topic with a hundred partitions, or a user with permissions for
as many streams."""
DIGESTED_BYTES = 2048
"""The beginning of a send holds the destination and the header of the batch, with the checksum of everything in it."""

NO_READS = LOGINS | {BIND_SESSION}

RENUMBERED = {Code.NOT_RESOLVED_CONSUMER: Code.CONSUMER_GROUP_PARTITION_NOT_OWNED}
"""Errors that have another number since 0.9."""
NOT_DONE = frozenset(
    {
        Code.ERROR,
        Code.STALE_CLIENT,
        Code.UNAUTHENTICATED,
        Code.TRANSIENT_NOT_COMMITTED,
        Code.TRANSIENT_NOT_ACCEPTED,
        Code.CANNOT_SAVE_MESSAGES_TO_SEGMENT,
        Code.DISK_FULL,
        Code.CANNOT_SYNC_FILE,
        Code.IO_ERROR,
    }
)
"""A client that repeats a request after one of these errors wants it to be tried again."""


class ModernConversation:
    measure = staticmethod(frames.measure)

    def __init__(self, gateway: Gateway, session: Session) -> None:
        self.session = session
        self.is_over = False
        self.successor: Conversation | None = None
        self.poll_bytes_max = gateway.store.options.read_bytes_max
        self._closed = False
        """Requests may still be in progress, or may just have arrived; nobody receives their responses."""
        self._gateway = gateway
        self._replay_cache: ReplayCache | None = None
        self._limits = Limits.of(gateway.store.options)
        self._frame_bytes_max = gateway.config.system.limits.frame_bytes
        gateway.sessions.add(session)

    def refusal(self, data: memoryview, length: int) -> Code | None:
        body = length - HEADER_BYTES
        if body > UNAUTHENTICATED_FRAME_BYTES and self.session.login is None:
            return Code.UNAUTHENTICATED
        if length > self._frame_bytes_max:
            return Code.INVALID_COMMAND
        if body > BODY_BYTES_MAX:
            header = frames.request_of(data)
            if header.operation != SEND_MESSAGES and (header.operation, header.code) != (READ, numbered_sends.CODE):
                return Code.INVALID_COMMAND
        return None

    def encode_refusal(self, data: memoryview, code: Code) -> list[Readable]:
        return frames.reply(frames.request_of(data), 0, status=code)

    def begin_send(self, frame: memoryview, respond: Callable[[list[Readable]], None]) -> None:
        """Leaves all requests to `respond`, because the response to a numbered one has to be remembered."""

    async def respond(self, frame: memoryview, to: Responder) -> list[Readable]:
        header = frames.request_of(frame)
        self.session.last_heartbeat = self._gateway.clock()
        try:
            return await self._respond(header, frame, to)
        except Evicted as evicted:
            return frames.eviction(header.client, evicted.reason)
        except CommandError as refused:
            return self._refusal(header, refused)
        except Exception:  # noqa: BLE001 -- an unexpected error is logged once, here, and closes no connection
            _log.exception("%s: operation %d failed with an unexpected error", self.session.address, header.operation)
            return _failure(header)

    def _refusal(self, header: frames.Request, refused: CommandError) -> list[Readable]:
        _log.debug("%s: operation %d, code %d: %s", self.session.address, header.operation, header.code, refused)
        if refused.code is Code.STALE_CLIENT:
            self.is_over = True
            return frames.eviction(header.client, Reason.STALE_CLIENT)
        code = on_the_wire(RENUMBERED.get(refused.code, refused.code))
        if header.operation in PLAIN or header.operation not in CODES:
            return frames.reply(header, 0, status=code)
        return frames.reply(header, self._gateway.operations, frames.refusal(code))

    async def _respond(self, header: frames.Request, frame: memoryview, to: Responder) -> list[Readable]:
        if self._closed:
            raise CommandError(Code.DISCONNECTED)
        if header.client == frames.NOBODY:
            self.is_over = True
            raise CommandError(Code.INVALID_COMMAND, "the client id is missing")
        operation, body = header.operation, frame[HEADER_BYTES:]
        if operation == REGISTER and (version := login_checks.protocol_version(body)) is not None:
            if not login_checks.is_supported(self._gateway, version):
                return login_checks.refuse_version(self._gateway, self.session, header.client, version)
            if generations.of(version).has_resumable_sessions:
                return await self._try_successor(frame, to)
        if header.checksum != frames.NOBODY and int.from_bytes(header.checksum, "little") != _digest(body):
            raise CommandError(Code.INVALID_FORMAT, "the checksum of the body does not match")
        if operation == REGISTER:
            return await self._register(header, body)
        registered = self.session.registration
        if operation == READ:
            if header.code in NO_READS:
                if header.code == BIND_SESSION:
                    return await self._try_successor(frame, to)
                raise Evicted(Reason.MALFORMED_LOGIN)
            if header.code in OF_CODE:
                raise CommandError(Code.INVALID_COMMAND, f"command {header.code} has an operation of its own")
            if header.session and registered is not None:
                _check(header, registered)
                if header.session < registered.number:
                    raise Evicted(Reason.SESSION_TOO_LOW)
            return await self._execute(header, header.code, body, 0 if registered is None else registered.number, to)
        code = CODES.get(operation)
        if code is None:
            raise CommandError(Code.INVALID_COMMAND, f"operation {operation} does not exist")
        if registered is None:
            if operation == LOGOUT:
                return frames.reply(header, 0)
            raise Evicted(Reason.NO_SESSION)
        _check(header, registered)
        return await self._once(header, code, body, to)

    async def _once(self, header: frames.Request, code: int, body: memoryview, to: Responder) -> list[Readable]:
        """Repeats the earlier response if this request number was used before."""
        cache = self._replay_cache
        assert cache is not None
        session, number, operation = header.session, header.number, header.operation
        append = operation == SEND_MESSAGES
        counted = header.checksum != frames.NOBODY or operation not in OF_ONE_PARTITION
        digest = _digest(body[:DIGESTED_BYTES] if append else body)
        before = cache.find(session, number, operation, digest, append=append, counted=counted)
        if before is not None:
            return await asyncio.shield(before)
        if session != cache.session:
            raise Evicted(Reason.SESSION_TOO_LOW)
        slot = cache.start(number, operation, digest, counted=counted)
        reply: list[Readable] | None = None
        done = False
        try:
            self._gateway.operations += 1
            reply = await self._execute(header, code, body, self._gateway.operations, to)
            done = True
        except CommandError as refused:
            reply = self._refusal(header, refused)
            # A refused append has stored nothing, and may succeed if it is repeated.
            done = not append and refused.code not in NOT_DONE
        finally:
            if reply is None or not done:
                cache.discard(session, number, counted=counted)
            elif sum(map(len, reply)) > REMEMBERED_BYTES_MAX:
                cache.evict(session, number, counted=counted)
            slot.set_result(reply or _failure(header))
        if self.session.registration is None:
            self._gateway.replay_caches.remove(cache)
            self._replay_cache = None
        return reply

    async def _execute(
        self, header: frames.Request, code: int, body: memoryview, operation_number: int, to: Responder
    ) -> list[Readable]:
        request = requests.decode(code, body)
        if type(request) is SendMessages and not is_small(request):
            request = await check_send(self._gateway, self.session, request, self._limits)
        if type(request) is PollMessages:
            room = to.response_reservation()
            held, long = held_and_long(to, self.poll_bytes_max)
            request = reserve_poll(request, room, held, long) or await wait_for_poll(request, room, long)
        gateway, session = self._gateway, self.session
        answer: Any = await (
            send(gateway, session, request) if isinstance(request, SendMessages) else execute(gateway, session, request)
        )
        content = responses.encode(code, answer)
        if header.operation not in PLAIN:
            content = frames.results(content)
        return frames.reply(header, operation_number, content)

    async def _try_successor(self, frame: memoryview, to: Responder) -> list[Readable]:
        """Passes a login with a newer protocol version to the next conversation."""
        successor = NextConversation(self._gateway, self.session, self)
        reply = await successor.respond(frame, to)
        if self._closed or self.successor is not None:
            # The connection is lost by now, or another conversation has taken it over: the session waits for its
            # client.
            successor.close()
        elif successor.is_bound:
            self._leave()
            self.session.registration = None
            self.successor = successor
        return reply

    async def _register(self, header: frames.Request, body: memoryview) -> list[Readable]:
        if header.session or header.number:
            raise Evicted(Reason.MALFORMED_LOGIN)
        try:
            registration_request = registration.decode(body)
        except CommandError as unreadable:
            _log.debug("%s: cannot decode a registration: %s", self.session.address, unreadable)
            raise Evicted(Reason.MALFORMED_LOGIN) from unreadable
        try:
            logged_in = await execute(self._gateway, self.session, registration_request.login)
        except CommandError as refused:
            raise login_checks.refused_login(refused) from refused
        login = self.session.login
        if self._closed or login is None:
            raise CommandError(Code.DISCONNECTED)
        self._leave()
        self._gateway.operations += 1
        number = self._gateway.operations
        self._replay_cache = self._gateway.replay_caches.register(header.client, login.mark, number, MEMBERSHIPS)
        self.session.registration = Registration(header.client, number)
        answer = registration.Registered(
            logged_in.user_id,
            number,
            login_checks.oldest_of_generation(self._gateway, registration_request.protocol),
            MODERN_IGGY_VERSION,
        )
        return frames.reply(header, number, frames.results(registration.encode_response(answer)))

    def _leave(self) -> None:
        """Ends the current session; its group memberships are not those of the next one."""
        groups.leave_all(self._gateway, self.session)
        self.session.attached = None
        if self._replay_cache is not None:
            self._gateway.replay_caches.disconnect(self._replay_cache)
            self._replay_cache = None

    def half_close(self) -> None:
        """Requests in progress are answered as usual."""

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._leave()
        self._gateway.sessions.remove(self.session)
        if self.successor is not None:
            self.successor.close()


def _failure(header: frames.Request) -> list[Readable]:
    return frames.reply(header, 0, status=Code.ERROR)


def _check(header: frames.Request, registered: Registration) -> None:
    """The session fields of a header are not trusted, but a client that has them wrong must be told."""
    if header.session > registered.number or header.client != registered.client:
        raise Evicted(Reason.NO_SESSION)


def _digest(body: memoryview) -> int:
    return xxhash.xxh3_64_intdigest(body)
