"""Leases: memberships of consumer groups without a connection, to poll and commit with, and to give back.

Every response has the generation of the group and the partitions that the lease may poll. A commit carries the last
generation: if the group has changed since, it is refused, and the client looks up which partitions it still has. A
partition that goes to another member is listed in `finishing` until the client has committed what it polled.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from typing import Any

import msgspec

from whippet.app.commands import requests, responses
from whippet.app.commands.registry import execute
from whippet.app.commands.requests import Consumer, ConsumerKind
from whippet.app.config.formats import PERIOD
from whippet.app.errors import Code, CommandError
from whippet.app.leases import ExpiryOutOfBounds, Lease, LeaseGone, TooManyLeases
from whippet.transports.http.errors import RETRY_AFTER, Refused
from whippet.transports.http.forms import poll_formats
from whippet.transports.http.forms.batch_decoder import PolledMessage, decode_messages
from whippet.transports.http.forms.field_types import U32, U64, Period, check_u64
from whippet.transports.http.forms.responses import JSON, NO_STORE, VIEW, HttpResponse
from whippet.transports.http.forms.send_formats import BATCH
from whippet.transports.http.handlers.messages import FRAME_JSON_BYTES, StartQuery, strategy_of
from whippet.transports.http.operation import Call

ATTEMPTS_MAX = 64
"""Partitions that one poll tries."""


class LeaseDetails(msgspec.Struct, frozen=True):
    lease_id: str
    client_id: int
    """The id of the lease in the list of clients."""
    generation: int
    """The generation of the group, which rises whenever partitions are reassigned."""
    partitions: list[int]
    """The partitions to poll."""
    finishing: list[int]
    """Partitions that go to another member as soon as their polled messages are committed."""
    expiry: int
    """How long the lease lasts without being used, in us."""
    expires_at: int
    """When it lapses unless it is used, in us since 1970."""


class LeasedMessages(msgspec.Struct, frozen=True):
    partition_id: int | None
    """Null if the lease has no partition to poll."""
    current_offset: int
    epoch: int
    """The epoch of the partition, in which these offsets are valid; 0 without a partition."""
    count: int
    messages: list[PolledMessage]
    generation: int
    partitions: list[int]
    finishing: list[int]
    expires_at: int


class LeaseQuery(msgspec.Struct, frozen=True):
    expiry: Period = ""
    """Such as `30s`; the default of the server if absent."""


class LeasePollQuery(StartQuery, frozen=True):
    """Polls the lease's partitions in turn, from `kind=next`, if these are absent."""


class LeaseOffsetQuery(msgspec.Struct, frozen=True):
    partition_id: U32
    """A partition of the lease."""


class LeaseCommit(msgspec.Struct, frozen=True):
    generation: U64
    partition_id: U32
    offset: U64
    """The offset of the last processed message."""
    epoch: U64 | None = None
    """The epoch of the poll with that message. After a purge the offset is refused with 409."""

    def __post_init__(self) -> None:
        check_u64(self.generation, self.offset, self.epoch)


# ------------------------------------------------------------------------------------------------ routes


async def take_lease(call: Call) -> HttpResponse:
    query: LeaseQuery = call.query
    membership = requests.JoinConsumerGroup(call.stream, call.topic, call.parameters["group"])
    try:
        lease = await call.api.leases.acquire(call.login, call.session.address, membership, _expiry(query.expiry))
    except ExpiryOutOfBounds as refused:
        raise _bad_expiry(str(refused)) from None
    except TooManyLeases as refused:
        raise Refused(
            HTTPStatus.TOO_MANY_REQUESTS, str(refused), headers=(RETRY_AFTER,), code="too_many_leases"
        ) from None
    found = await _assignment(call, lease)
    where = call.scope["raw_path"] + b"/" + lease.id.encode()
    headers = (JSON, NO_STORE, VIEW, (b"location", where))
    return HttpResponse(HTTPStatus.CREATED, msgspec.json.encode(_details(call, lease, found)), headers)


async def get_lease(call: Call) -> LeaseDetails:
    with _lease_errors():
        lease = call.api.leases.find(call.parameters["lease"], call.login)
        return _details(call, lease, await _assignment(call, lease))


async def renew_lease(call: Call) -> LeaseDetails:
    async with _using(call) as lease:
        return _details(call, lease, await _assignment(call, lease))


async def give_lease_back(call: Call) -> None:
    async with _using(call) as lease:
        await _assignment(call, lease)
        call.api.leases.release(lease)


async def poll_with_lease(call: Call) -> LeasedMessages | HttpResponse:
    """In JSON, or the stored batches, if the client accepts nothing else."""
    is_binary = call.headers.get(b"accept") == BATCH.encode()
    async with _using(call) as lease:
        found = await _assignment(call, lease)
        polled = None if call.is_head else await _poll(call, lease, found.partitions)
        if is_binary:
            response = await poll_formats.encode_response(call, BATCH, polled or responses.Polled(0, 0, 0, ()))
            call.response_reservation().hold(len(response.body))
            return response
        found = await _assignment(call, lease)
        messages: Any = []
        if polled is not None:
            messages = await decode_messages(polled.batches, for_0_6=call.bearer.generation == "0.6")
        return LeasedMessages(
            polled.partition_id if polled is not None and polled.owned else None,
            polled.current_offset if polled is not None else 0,
            polled.epoch if polled is not None else 0,
            len(messages),
            messages,
            found.generation,
            list(found.partitions),
            list(found.finishing),
            call.api.leases.expires_at(lease),
        )


async def commit_with_lease(call: Call) -> LeaseDetails:
    body: LeaseCommit = call.body
    async with _using(call) as lease:
        found = await _assignment(call, lease)
        if body.generation != found.generation:
            raise Refused(
                HTTPStatus.CONFLICT,
                f"Generation {body.generation} is not that of the group, which is {found.generation}: get the "
                "lease, and commit what you still have",
                "generation",
                code="stale_generation",
            )
        await _ask(
            call,
            lease,
            requests.StoreConsumerOffset(
                _group(call), call.stream, call.topic, body.partition_id, body.offset, epoch=body.epoch
            ),
        )
        return _details(call, lease, await _assignment(call, lease))


async def delete_offset_with_lease(call: Call) -> LeaseDetails:
    query: LeaseOffsetQuery = call.query
    async with _using(call) as lease:
        await _assignment(call, lease)
        await _ask(
            call, lease, requests.DeleteConsumerOffset(_group(call), call.stream, call.topic, query.partition_id)
        )
        return _details(call, lease, await _assignment(call, lease))


# ------------------------------------------------------------------------------------------------ shared


async def _poll(call: Call, lease: Lease, offered: tuple[int, ...]) -> responses.Polled:
    """Polls the partitions of the lease in turn, until one has messages."""
    query: LeasePollQuery = call.query
    answer_bytes = call.api.limits.answer_bytes
    named = query.number
    request = requests.PollMessages(
        _group(call),
        call.stream,
        call.topic,
        named,
        strategy_of(query.kind, query.value, query.start, "next"),
        min(query.count, answer_bytes // FRAME_JSON_BYTES),
        query.auto_commit == "true",
        answer_bytes * 3 // 4,
    )
    attempts = min(len(offered), ATTEMPTS_MAX) if named is None else 1
    while True:
        polled: responses.Polled = await _ask(call, lease, request)
        attempts -= 1
        if polled.messages_count or attempts <= 0:
            break
    if named is not None and not polled.owned:
        raise CommandError(Code.CONSUMER_GROUP_PARTITION_NOT_OWNED, f"partition {named} is not one of this lease")
    return polled


def _group(call: Call) -> Consumer:
    return Consumer(ConsumerKind.GROUP, call.parameters["group"])


async def _ask(call: Call, lease: Lease, request: requests.Request) -> Any:
    return await execute(call.api.gateway, lease.session, request)


async def _assignment(call: Call, lease: Lease) -> responses.GroupAssignment:
    with _lease_errors():
        wanted = requests.SyncConsumerGroup(call.stream, call.topic, call.parameters["group"])
        return await call.api.leases.assignment(lease, wanted)


@contextlib.asynccontextmanager
async def _using(call: Call) -> AsyncIterator[Lease]:
    with _lease_errors():
        async with call.api.leases.using(call.parameters["lease"], call.login) as lease:
            yield lease


@contextlib.contextmanager
def _lease_errors() -> Iterator[None]:
    try:
        yield
    except LeaseGone as gone:
        raise Refused(HTTPStatus.GONE, str(gone), "lease", code="lease_gone") from None


def _details(call: Call, lease: Lease, found: responses.GroupAssignment) -> LeaseDetails:
    return LeaseDetails(
        lease.id,
        lease.session.client_id,
        found.generation,
        list(found.partitions),
        list(found.finishing),
        round(lease.expiry * 1_000_000),
        call.api.leases.expires_at(lease),
    )


def _expiry(text: str) -> float | None:
    if not text:
        return None
    try:
        seconds: float = PERIOD.parse(text)
    except ValueError:
        raise _bad_expiry(f"{PERIOD.needed}") from None
    return seconds


def _bad_expiry(why: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, f"Failed to deserialize query string: expiry: {why}", "expiry")
