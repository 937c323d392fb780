"""The 0.12 binary protocol; see transports/conversation.py. It starts with a login, or with the secret of a session
that was started on another connection.

1. The session belongs to the client, not to the connection, which it outlives with its login, its group memberships and
   the numbers of its requests. `app/model/resumable_sessions.py` keeps it.
2. A request that changes something is executed once for each number. If it is repeated, because the connection was lost
   before the reply arrived, the reply is repeated.
3. A poll or a fetch that has to wait is answered later; the requests after it do not wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import xxhash

from whippet.app.commands import deferred_polls, requests
from whippet.app.commands.direct_sends import send
from whippet.app.commands.registry import execute
from whippet.app.errors import Code, CommandError, on_the_wire
from whippet.app.gateway import Gateway
from whippet.app.long_poll import Deferred, LongPoll
from whippet.app.model.identity import Login
from whippet.app.model.next_replay import REQUESTS_MAX
from whippet.app.model.resumable_sessions import ResumableSession
from whippet.app.model.sessions import Session
from whippet.storage.batch import Limits, Readable
from whippet.transports import login_checks, reservations
from whippet.transports.login_checks import Evicted
from whippet.transports.reservations import Responder
from whippet.transports.send_checks import check_send, is_small
from whippet.transports.wire import generations
from whippet.transports.wire.generations import Generation
from whippet.transports.wire.modern import frames as modern_frames
from whippet.transports.wire.modern import registration as modern_registration
from whippet.transports.wire.modern.frames import HEADER_BYTES, NOBODY, Reason
from whippet.transports.wire.modern.operations import LOGINS, LOGOUT, PLAIN, READ, REGISTER, SEND_MESSAGES
from whippet.transports.wire.next import frames, polls, registration
from whippet.transports.wire.next.operations import (
    BIND_SESSION,
    CANCEL,
    CODES,
    OF_CODE,
    PARTITION_CODES,
    PARTITION_OPERATIONS,
    POLL,
)

if TYPE_CHECKING:
    from whippet.transports.conversation import Conversation

_log = logging.getLogger(__name__)

WAITING_MAX = REQUESTS_MAX
"""Waiting polls of one connection: as many as a client may have requests in flight."""
DIGESTED_BYTES = 2048
"""The beginning of a send holds the destination and the header of the batch, with the checksum of everything in it."""

RENUMBERED = {
    Code.NOT_RESOLVED_CONSUMER: Code.CONSUMER_GROUP_PARTITION_NOT_OWNED,
    Code.PRODUCER_FENCED: Code.PRODUCER_EPOCH_FENCED,
    Code.PRODUCER_SEQUENCE_PASSED: Code.PRODUCER_OUT_OF_ORDER,
    Code.REQUEST_ALREADY_APPLIED: Code.PRODUCER_OUT_OF_ORDER,
}
"""Errors that have another number in this protocol."""
NOT_DONE = frozenset(
    {
        Code.ERROR,
        Code.STALE_CLIENT,
        Code.UNAUTHENTICATED,
        Code.TRANSIENT_NOT_COMMITTED,
        Code.TRANSIENT_NOT_ACCEPTED,
        Code.PARTITION_RECREATED,
        Code.CANNOT_SAVE_MESSAGES_TO_SEGMENT,
        Code.DISK_FULL,
        Code.CANNOT_SYNC_FILE,
        Code.IO_ERROR,
    }
)
"""A client that repeats a request after one of these errors wants it to be tried again; the status tells it that
nothing was changed."""


class Outcome(NamedTuple):
    """What is remembered of a reply: everything that does not repeat the request."""

    operation_number: int
    body: tuple[Readable, ...]
    status: int = 0

    @property
    def is_final(self) -> bool:
        """The request was executed, or will be refused again."""
        return not self.status

    def reply(self, header: frames.Request) -> list[Readable]:
        return frames.reply(header, self.operation_number, self.body, self.status, is_committed=self.is_final)


class NextConversation:
    def __init__(self, gateway: Gateway, session: Session, before: Conversation) -> None:
        """`before` had the connection until now; frames look the same in both protocols, so it still reads them."""
        self.session = session
        self.is_over = False
        self.successor: Conversation | None = None
        self.poll_bytes_max = before.poll_bytes_max
        self.measure, self.refusal, self.encode_refusal = before.measure, before.refusal, before.encode_refusal
        self._predecessor = before
        self._gateway = gateway
        self._limits = Limits.of(gateway.store.options)
        self._generation: Generation = generations.GENERATIONS[-1]
        self._bound: ResumableSession | None = None
        self._waits: dict[int, LongPoll] = {}
        """Keyed by request number."""
        self._closed = self._half_closed = False

    @property
    def is_bound(self) -> bool:
        return self._bound is not None

    @property
    def _acting(self) -> Session:
        return self.session if self._bound is None else self._bound.session

    def begin_send(self, frame: memoryview, respond: Callable[[list[Readable]], None]) -> None:
        """Leaves all requests to `respond`, because the response to a numbered one has to be remembered."""

    async def respond(self, frame: memoryview, to: Responder) -> list[Readable]:
        header = frames.request_of(frame)
        self._acting.last_heartbeat = self._gateway.clock()
        try:
            return await self._respond(header, frame[HEADER_BYTES:], to)
        except Exception as error:  # noqa: BLE001 -- `_failed` logs unexpected errors
            return self._failed(header, error)
        finally:
            # A new password, or the session itself, may have ended the login meanwhile.
            self.session.login = self._acting.login

    def _failed(self, header: frames.Request, error: Exception) -> list[Readable]:
        if isinstance(error, CommandError):
            return self._refusal(header, error)
        if isinstance(error, Evicted):
            self.is_over = True
            return modern_frames.eviction(header.client, error.reason)
        _log.error(
            "%s: operation %d, code %d failed with an unexpected error",
            self.session.address,
            header.operation,
            header.code,
            exc_info=error,
        )
        return frames.reply(header, 0, status=Code.ERROR)

    def _refusal(self, header: frames.Request, refused: CommandError) -> list[Readable]:
        _log.debug("%s: operation %d, code %d: %s", self.session.address, header.operation, header.code, refused)
        if refused.code is Code.STALE_CLIENT:
            self.is_over = True
            return modern_frames.eviction(header.client, Reason.STALE_CLIENT)
        return frames.reply(header, 0, status=_code(refused))

    async def _respond(self, header: frames.Request, body: memoryview, to: Responder) -> list[Readable]:
        if self._closed:
            raise CommandError(Code.DISCONNECTED)
        if header.client == NOBODY:
            self.is_over = True
            raise CommandError(Code.INVALID_COMMAND, "the client id is missing")
        if header.operation == REGISTER:
            return await self._register(header, body)
        if header.operation == READ:
            return await self._read(header, body, to)
        code = CODES.get(header.operation)
        if code is None:
            raise CommandError(Code.INVALID_COMMAND, f"operation {header.operation} does not exist")
        if self._bound is None:
            raise CommandError(Code.UNAUTHENTICATED)
        self._check(header)
        return await self._once(self._bound, header, code, body)

    def _check(self, header: frames.Request) -> None:
        """The session fields of a header are not trusted, but a client that has them wrong must be told."""
        bound = self._bound
        if bound is None or (header.session, header.client) != (bound.number, bound.client):
            raise Evicted(Reason.NO_SESSION)

    # --------------------------------------------------------------------------------------------------------- writing

    async def _once(
        self, bound: ResumableSession, header: frames.Request, code: int, body: memoryview
    ) -> list[Readable]:
        """Repeats the earlier reply if this request number was used before."""
        number, operation, requests = header.number, header.operation, bound.requests
        mark: bytes | int = header.stamp
        if header.stamp == NOBODY:
            mark = xxhash.xxh3_64_intdigest(body[:DIGESTED_BYTES] if operation == SEND_MESSAGES else body)
        before = requests.find(number, operation, mark)
        if before is not None:
            outcome: Outcome = await asyncio.shield(before)
            return outcome.reply(header)
        answer = requests.start(number, operation, mark)
        outcome = Outcome(0, (), Code.ERROR)
        try:
            outcome = await self._change(bound, header, code, body)
        finally:
            if outcome.is_final:
                requests.finish(number, sum(map(len, outcome.body)))
            else:
                requests.discard(number)
            answer.set_result(outcome)
        if operation == LOGOUT and outcome.is_final:
            self._leave(bound)
        return outcome.reply(header)

    async def _change(self, bound: ResumableSession, header: frames.Request, code: int, body: memoryview) -> Outcome:
        gateway, operation = self._gateway, header.operation
        gateway.operations += 1
        operation_number = gateway.catalogue_version
        try:
            request = self._generation.decode(code, body)
            if type(request) is requests.SendMessages and not is_small(request):
                request = await check_send(gateway, bound.session, request, self._limits)
            if operation in PARTITION_OPERATIONS:
                deferred_polls.check_incarnation(gateway, bound.session.login, request, header.incarnation)
            if isinstance(request, requests.SendMessages):
                answer = await send(gateway, bound.session, request)
            else:
                answer = await execute(gateway, bound.session, request)
        except CommandError as refused:
            if operation in PLAIN or refused.code in NOT_DONE:
                return Outcome(0, (), _code(refused))
            return Outcome(operation_number, tuple(modern_frames.refusal(_code(refused))))
        content = self._generation.encode(code, answer)
        return Outcome(operation_number, tuple(content if operation in PLAIN else modern_frames.results(content)))

    # --------------------------------------------------------------------------------------------------------- reading

    async def _read(self, header: frames.Request, body: memoryview, to: Responder) -> list[Readable]:
        code, gateway = header.code, self._gateway
        if code == BIND_SESSION:
            return self._bind(header, body)
        if code in LOGINS:
            raise Evicted(Reason.MALFORMED_LOGIN)
        if code in OF_CODE:
            raise CommandError(Code.INVALID_COMMAND, f"command {code} has an operation of its own")
        if header.session:
            self._check(header)
        acting = self._acting
        if code == CANCEL:
            if acting.login is None:
                raise CommandError(Code.UNAUTHENTICATED)
            if (wait := self._waits.get(header.number)) is not None:
                wait.end()
            return []
        request = self._generation.decode(code, body)
        self._check_incarnation(header, request, acting)
        if not isinstance(request, Deferred):
            answer = await execute(gateway, acting, request)
            return frames.reply(header, 0, self._generation.encode(code, answer))
        if code != POLL:
            deferred_polls.check_deferral(request)
        wait = LongPoll(gateway, acting, request)
        if not await wait.is_needed():
            return await self._read_now(header, request, acting, to)
        return self._defer(header, request, acting, wait, to)

    async def _read_now(
        self, header: frames.Request, request: Deferred, acting: Session, to: Responder
    ) -> list[Readable]:
        """Responds with what can be read now."""
        if isinstance(request, requests.AwaitMessages):
            ready = await execute(self._gateway, acting, request)
            return frames.reply(header, 0, self._generation.encode(header.code, ready))
        reservation = to.response_reservation()
        most = self.poll_bytes_max
        if request.max_bytes is not None:
            most = min(most, request.max_bytes - deferred_polls.POLL_HEAD_BYTES)
        if isinstance(request, requests.FetchMessages):
            # The transport has to carry the section headers as well.
            most = min(most, self.poll_bytes_max - polls.SECTION.size * len(request.targets))
        long: int | None = None
        if isinstance(request, requests.PollMessages):
            most, long = reservations.held_and_long(to, most)
        granted = reservations.reserve_response(reservation, most)
        room = await reservation.wait() if granted is None else granted
        # The partition may have been recreated during the wait.
        self._check_incarnation(header, request, acting)
        request = msgspec.structs.replace(request, room=room)
        if long is not None:
            request = msgspec.structs.replace(request, long_room=long)
        answer = await execute(self._gateway, acting, request)
        return frames.reply(header, 0, self._generation.encode(header.code, answer))

    def _check_incarnation(self, header: frames.Request, request: requests.Request, acting: Session) -> None:
        if header.code in PARTITION_CODES:
            deferred_polls.check_incarnation(self._gateway, acting.login, request, header.incarnation)

    def _defer(
        self, header: frames.Request, request: Deferred, acting: Session, wait: LongPoll, to: Responder
    ) -> list[Readable]:
        login = acting.login
        assert login is not None
        if len(self._waits) >= WAITING_MAX or header.number in self._waits:
            raise CommandError(
                Code.TOO_MANY_WAITING_POLLS, f"{len(self._waits)} polls of this connection are already waiting"
            )
        self._gateway.waiting_polls.reserve(login, wait.partitions_count)
        self._waits[header.number] = wait
        if self._half_closed and wait.commits:
            wait.end()
        to.defer(partial(self._respond_deferred, header, request, acting, login, wait))
        return []

    async def _respond_deferred(
        self,
        header: frames.Request,
        request: Deferred,
        acting: Session,
        login: Login,
        wait: LongPoll,
        to: Responder,
    ) -> list[Readable]:
        count = wait.partitions_count
        try:
            await wait.until_ready()
            if self._closed:
                return []
            if wait.ended.done() and not isinstance(request, requests.AwaitMessages):
                # A client that has cancelled the poll does not look at messages any more, so none are delivered.
                request = msgspec.structs.replace(request, count=0)
            return await self._read_now(header, request, acting, to)
        except Exception as error:  # noqa: BLE001 -- `_failed` logs unexpected errors
            return self._failed(header, error)
        finally:
            self._gateway.waiting_polls.release(login, count)
            del self._waits[header.number]

    # --------------------------------------------------------------------------------------------- logging in, resuming

    async def _register(self, header: frames.Request, body: memoryview) -> list[Readable]:
        gateway, session = self._gateway, self.session
        if header.session or header.number:
            raise Evicted(Reason.MALFORMED_LOGIN)
        version = login_checks.protocol_version(body)
        if version is not None and not login_checks.is_supported(gateway, version):
            return login_checks.refuse_version(gateway, session, header.client, version)
        try:
            registration_request = registration.decode(body)
        except CommandError as unreadable:
            _log.debug("%s: cannot decode a registration: %s", session.address, unreadable)
            raise Evicted(Reason.MALFORMED_LOGIN) from unreadable
        if not generations.of(registration_request.protocol).has_resumable_sessions:
            raise Evicted(Reason.MALFORMED_LOGIN)
        if self._bound is not None:
            # A client that logs in again gives up its session.
            self._leave(self._bound)
        try:
            await execute(gateway, session, registration_request.login)
        except CommandError as refused:
            raise login_checks.refused_login(refused) from refused
        number = await gateway.unique_numbers.next()
        login, user = session.login, gateway.users.by_login(session.login)
        if self._closed or login is None or user is None:
            session.login = None
            raise CommandError(Code.UNAUTHENTICATED)
        bound = gateway.resumable_sessions.find(header.client, 0, registration_request.secret_digest)
        if self._bound is not None and self._bound is not bound:
            # Another login on this connection was executed at the same time.
            self._leave(self._bound)
            session.login = login
        if bound is None or bound.session.stale or bound.session.login != login:
            acting = Session(session.transport, session.address, gateway.clock(), session.end, session.reached_at)
            acting.login = login
            remembered = gateway.resumable_sessions.replay_memory
            bound = ResumableSession(
                number, header.client, registration_request.secret_digest, acting, login, remembered
            )
            gateway.sessions.remove(session)
            gateway.sessions.add(acting)
            gateway.resumable_sessions.add(bound, self)
        self._take_over(bound, registration_request.protocol)
        gateway.operations += 1
        content = modern_frames.results(self._registered(bound, user.id, registration_request.protocol))
        return frames.reply(header, gateway.catalogue_version, content, is_committed=True)

    def _bind(self, header: frames.Request, body: memoryview) -> list[Readable]:
        gateway, session = self._gateway, self.session
        version = login_checks.protocol_version(body)
        if version is not None and not login_checks.is_supported(gateway, version):
            return login_checks.refuse_version(gateway, session, header.client, version)
        registration_request = registration.decode_binding(body)
        if not generations.of(registration_request.protocol).has_resumable_sessions:
            raise Evicted(Reason.MALFORMED_LOGIN)
        bound = gateway.resumable_sessions.find(
            registration_request.client, registration_request.session, registration_request.secret_digest
        )
        if bound is None or registration_request.client != header.client:
            raise CommandError(Code.UNAUTHENTICATED, "the session does not exist; log in again")
        user = gateway.users.by_login(bound.session.login)
        if user is None or bound.session.stale:
            gateway.resumable_sessions.end(bound)
            raise CommandError(Code.UNAUTHENTICATED, "the session has ended; log in again")
        if self._bound is not None and self._bound is not bound:
            self._leave(self._bound)
        self._take_over(bound, registration_request.protocol)
        return frames.reply(header, 0, self._registered(bound, user.id, registration_request.protocol))

    def _take_over(self, bound: ResumableSession, protocol: int) -> None:
        """Moves the session to this connection, and ends the connection that it had before."""
        gateway, session, acting = self._gateway, self.session, bound.session
        before = bound.connection
        gateway.resumable_sessions.resume(bound, self)
        if isinstance(before, NextConversation) and before is not self:
            before._end_waits()
            before.session.end()
        self._generation = generations.of(protocol)
        self._bound = bound
        gateway.sessions.remove(session)
        acting.transport, acting.address, acting.reached_at = session.transport, session.address, session.reached_at
        acting.end, acting.is_watched = session.end, session.is_watched
        acting.last_heartbeat = gateway.clock()

    def _registered(self, bound: ResumableSession, user_id: int, protocol: int) -> list[Readable]:
        version = login_checks.oldest_of_generation(self._gateway, protocol)
        answer = modern_registration.Registered(user_id, bound.number, version, self._generation.iggy_version)
        return modern_registration.encode_response(answer)

    def _leave(self, bound: ResumableSession) -> None:
        """Ends the session, but not the connection."""
        self._end_waits()
        self._gateway.resumable_sessions.end(bound)
        self._bound = None
        self.session.login = None
        self._gateway.sessions.add(self.session)

    def _end_waits(self) -> None:
        """Nobody can receive the messages any more, so none are delivered and no offset is committed."""
        for wait in self._waits.values():
            wait.end()

    def half_close(self) -> None:
        """Waiting polls are still answered. Those that commit offsets end now, without messages: the client may have
        crashed, and would lose the messages that it commits."""
        self._half_closed = True
        for wait in self._waits.values():
            if wait.commits:
                wait.end()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._end_waits()
        if self._bound is not None:
            self._gateway.resumable_sessions.disconnect(self._bound, self)
        self._predecessor.close()


def _code(refused: CommandError) -> Code:
    return on_the_wire(RENUMBERED.get(refused.code, refused.code))
