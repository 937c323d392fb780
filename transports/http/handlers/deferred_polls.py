"""Deferred polls of clients since 0.12: they wait until there are enough messages, and return the partition's context,
which the client sends with messages and stored offsets. The body is JSON.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import ClientDisconnect

from whippet.app.commands import deferred_polls, requests, responses
from whippet.app.commands.requests import Consumer, ConsumerKind
from whippet.app.long_poll import LongPoll
from whippet.transports import reservations
from whippet.transports.http.forms import parameters, poll_formats
from whippet.transports.http.forms.batch_decoder import PolledMessages
from whippet.transports.http.forms.field_types import U32, U64, Name, check_u64
from whippet.transports.http.forms.partition_context import NO_OWNER, Context
from whippet.transports.http.forms.request_bodies import until_disconnected
from whippet.transports.http.forms.responses import JSON, NO_STORE, VIEW, HttpResponse
from whippet.transports.http.handlers.messages import FRAME_JSON_BYTES, Kind, strategy_of
from whippet.transports.http.operation import Call

U32_MAX = 2**32 - 1
NUMBER = "(0|[1-9][0-9]{0,18})"
CONTEXT = rf'^\{{"incarnation":{NUMBER},"owner_generation":{NUMBER},"metadata_op":{NUMBER}\}}$'
PositiveU32 = Annotated[int, Meta(ge=1, le=U32_MAX)]


class DeferredMessages(PolledMessages, frozen=True, kw_only=True):
    context: Context


class DeferredQuery(msgspec.Struct, frozen=True, kw_only=True):
    consumer_kind: Literal["consumer"] = "consumer"
    """Groups poll over the binary protocols, or with a lease."""
    consumer_id: Name = "1"
    partition_id: U32 = 0
    kind: Kind = "offset"
    value: U64 = 0
    count: PositiveU32 = 10
    auto_commit: Literal["true", "false"] = "false"
    wait_us: Annotated[int, Meta(ge=0, le=deferred_polls.WAIT_US_MAX)] = 0
    """How long to wait for messages, in microseconds."""
    min_count: PositiveU32 = 1
    """How many messages to wait for; at most `count`."""
    max_bytes: Annotated[int, Meta(ge=deferred_polls.BYTES_MIN, le=U32_MAX)] = 1 << 20
    """Limits the bytes of the messages; at least one message is returned, however large it is."""
    request_timeout_us: Annotated[int, Meta(ge=1, le=deferred_polls.TIMEOUT_US_MAX)] = deferred_polls.TIMEOUT_US_MAX
    """When the client gives up, in microseconds: a second or more after `wait_us`."""
    context: Annotated[str, Meta(pattern=CONTEXT)] | UnsetType = UNSET
    """The context from an earlier poll, as JSON: refused if the partition was created again meanwhile."""

    def __post_init__(self) -> None:
        check_u64(self.value)

    @property
    def incarnation(self) -> int | None:
        return None if self.context is UNSET else msgspec.json.decode(self.context, type=Context).incarnation


async def poll(call: Call) -> HttpResponse:
    query: DeferredQuery = call.query
    answer_bytes = call.api.limits.answer_bytes
    request = requests.PollMessagesDeferred(
        Consumer(ConsumerKind.CONSUMER, parameters.identifier(query.consumer_id)),
        call.stream,
        call.topic,
        query.partition_id,
        strategy_of(query.kind, query.value, UNSET, "offset"),
        query.count,
        # A HEAD request reads no messages.
        query.auto_commit == "true" and not call.is_head,
        wait_us=query.wait_us,
        min_count=query.min_count,
        max_bytes=query.max_bytes,
        request_timeout_us=query.request_timeout_us,
    )
    deferred_polls.check_deferral(request)
    if query.incarnation is not None:
        deferred_polls.check_incarnation(call.api.gateway, call.session.login, request, query.incarnation)
    wait = LongPoll(call.api.gateway, call.session, request)
    if await wait.is_needed() and not call.is_head:
        with call.api.waiting.reserved_by(call.login):
            await _until_over(call, wait)
    most = min(query.max_bytes - deferred_polls.POLL_HEAD_BYTES, answer_bytes * 3 // 4)
    reservation = call.response_reservation()
    granted = reservations.reserve_response(reservation, most)
    room = await reservation.wait() if granted is None else granted
    count = min(query.count, answer_bytes // FRAME_JSON_BYTES)
    found: responses.PolledAt = await call.execute(msgspec.structs.replace(request, room=room, count=count))
    body = await poll_formats.encode_json(call, found.polled)
    context = msgspec.json.encode(Context(found.incarnation, NO_OWNER, found.metadata_op))
    # In front of the other members, because the messages are encoded already.
    response = HttpResponse(HTTPStatus.OK, b'{"context":' + context + b"," + body[1:], (JSON, VIEW, NO_STORE))
    reservation.hold(len(response.body))
    return response


async def _until_over(call: Call, wait: LongPoll) -> None:
    loop = asyncio.get_running_loop()
    over, gone = loop.create_task(wait.until_ready()), loop.create_task(until_disconnected(call.receive))
    try:
        await asyncio.wait((over, gone, call.api.draining), return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise ClientDisconnect
    finally:
        wait.end()
        gone.cancel()
        await over
