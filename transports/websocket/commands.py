"""The commands of the channel for browsers: the operations of HTTP by their names, and those that need a connection.

A command is a JSON object. Its members are what HTTP has in the path, the query and the body of the operation; no two
of those have the same name. They are decoded by the structs of HTTP, its handler is called, and the body that HTTP
would return becomes the member `ok`: as text if it is not JSON, or in base64 if it is binary.

The commands of group members, which only a connection can be, are defined here.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive

from whippet.app.commands import requests, responses
from whippet.app.commands.requests import Consumer, ConsumerKind, Strategy, StrategyKind
from whippet.app.errors import Code, CommandError
from whippet.app.model.sessions import Session
from whippet.transports import offload
from whippet.transports.admission.budget import FREE_BYTES
from whippet.transports.http import application, routes
from whippet.transports.http.api import Api
from whippet.transports.http.errors import Refused
from whippet.transports.http.forms import parameters, request_bodies
from whippet.transports.http.forms.batch_decoder import PolledMessages, decode_messages
from whippet.transports.http.forms.field_types import U32, U64, check_u64
from whippet.transports.http.forms.responses import JSON, HttpResponse
from whippet.transports.http.handlers import system
from whippet.transports.http.handlers.messages import FRAME_JSON_BYTES
from whippet.transports.http.operation import Call, Operation, admit_call, missing
from whippet.transports.reservations import CUT

if TYPE_CHECKING:
    from whippet.transports.websocket.text_connection import TextConnection

Members = dict[str, msgspec.Raw]

NOT_HERE = frozenset({"tail_messages", "flush_messages"})
"""`subscribe` replaces the first, and the second is `flush` by another method."""
ALIASES = {
    "flush_unsaved_buffer": "flush",
    "login_user": "log_in",
    "login_with_personal_access_token": "log_in_with_personal_access_token",
    "logout_user": "log_out",
    "get_snapshot": "make_snapshot",
}
"""Commands of the binary protocols that have another name over HTTP."""
_encode = msgspec.json.Encoder().encode
# One decoder for all: on Python 3.14 msgspec 0.22 loses some memory for every union that it is given.
_scalar_decoder = msgspec.json.Decoder(str | bool | int)
NULL = b"null"


# -------------------------------------------------------------------------------------- commands that need a connection


class GroupPollQuery(msgspec.Struct, frozen=True):
    partition_id: U32 | msgspec.UnsetType = msgspec.UNSET
    """If absent, the connection's own partitions take turns."""
    count: U32 = 10


class GroupCommit(msgspec.Struct, frozen=True):
    partition_id: U32
    offset: U64

    def __post_init__(self) -> None:
        check_u64(self.offset)


class Assignment(msgspec.Struct, frozen=True):
    generation: int
    partitions: list[int]
    finishing: list[int]
    """Partitions that move to another member as soon as everything polled from them is committed."""


async def get_session(call: Call) -> system.ClientDetails:
    found: responses.ClientInfo = await call.execute(requests.GetMe())
    return system.details_of(found)


async def join_group(call: Call) -> None:
    await call.execute(requests.JoinConsumerGroup(call.stream, call.topic, call.parameters["group"]))


async def leave_group(call: Call) -> None:
    await call.execute(requests.LeaveConsumerGroup(call.stream, call.topic, call.parameters["group"]))


async def sync_group(call: Call) -> Assignment | None:
    found = await call.execute(requests.SyncConsumerGroup(call.stream, call.topic, call.parameters["group"]))
    return None if found is None else Assignment(found.generation, list(found.partitions), list(found.finishing))


async def poll_group(call: Call) -> PolledMessages:
    query: GroupPollQuery = call.query
    room = call.api.limits.answer_bytes
    named = None if query.partition_id is msgspec.UNSET else query.partition_id
    polled: responses.Polled = await call.poll(
        requests.PollMessages(
            Consumer(ConsumerKind.GROUP, call.parameters["group"]),
            call.stream,
            call.topic,
            named,
            Strategy(StrategyKind.NEXT),
            min(query.count, room // FRAME_JSON_BYTES),
            False,
            room * 3 // 4,
        )
    )
    if not polled.owned:
        raise CommandError(Code.CONSUMER_GROUP_PARTITION_NOT_OWNED)
    messages: Any = await decode_messages(polled.batches, for_0_6=False)
    return PolledMessages(polled.partition_id, polled.current_offset, len(messages), messages)


async def commit_group(call: Call) -> None:
    body: GroupCommit = call.body
    consumer = Consumer(ConsumerKind.GROUP, call.parameters["group"])
    await call.execute(requests.StoreConsumerOffset(consumer, call.stream, call.topic, body.partition_id, body.offset))


def _own(name: str, handler: Any, of: str = "{stream}/{topic}/{group}", **more: Any) -> Operation:
    return Operation(name=name, method="", path=f"/{of}", summary="", subject="", handler=handler, **more)


OWN: Sequence[Operation] = (
    _own("get_session", get_session, "", response=system.ClientDetails),
    _own("join_consumer_group", join_group),
    _own("leave_consumer_group", leave_group),
    _own("sync_consumer_group", sync_group, response=Assignment),
    _own("poll_consumer_group", poll_group, query=GroupPollQuery, response=PolledMessages),
    _own("commit_consumer_group", commit_group, body=GroupCommit),
)


# ---------------------------------------------------------------------------------------------- the commands


class Command:
    """An operation, and where each member of a command belongs."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.in_path = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
        fields = () if operation.query is None else operation.query.__struct_encode_fields__
        self.in_query = frozenset(fields) - frozenset(self.in_path)
        self.decoder = None if operation.body is None else msgspec.json.Decoder(operation.body)

    async def fill(self, call: Call, members: Members) -> None:
        """Decodes all members but `id` and `cmd`. An unknown member would have no effect, so it is refused; if there is
        a body, the decoder of the body decides, as over HTTP."""
        operation = self.operation
        call.parameters = parameters.convert_path(
            {name: _path_text(name, members.pop(name, None)) for name in self.in_path}
        )
        if operation.query is not None:
            values = {name: _scalar(name, members.pop(name)) for name in self.in_query & members.keys()}
            call.query = parameters.convert_query(values, operation.query)
        if self.decoder is not None:
            body = _object(members)
            is_small = len(body) <= FREE_BYTES
            if not is_small:
                admit_call(call)
            decode = operation.decode or request_bodies.decode
            try:
                call.body = await offload.call(len(body), request_bodies.count_values(body), decode, self.decoder, body)
            except (CommandError, Refused):
                if is_small:
                    # As over HTTP.
                    admit_call(call)
                raise
        elif members:
            unknown = next(iter(members))[: parameters.NAME_SHOWN_MAX]
            raise Refused(HTTPStatus.BAD_REQUEST, f"`{operation.name}` has no member `{unknown}`", unknown)


def _path_text(name: str, raw: msgspec.Raw | None) -> str:
    if raw is None:
        raise Refused(HTTPStatus.BAD_REQUEST, f"The command needs `{name}`", name)
    return _scalar(name, raw)


def _scalar(name: str, raw: msgspec.Raw) -> str:
    """Returns the value as it would appear in a URL."""
    try:
        found = _scalar_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Refused(HTTPStatus.BAD_REQUEST, f"`{name}` must be a text or a number", name) from None
    return str(found).lower() if isinstance(found, bool) else str(found)


def _object(members: Members) -> bytes:
    """Returns the members as JSON, without decoding their values."""
    return b"{" + b",".join([b"%b:%b" % (_encode(name), value) for name, value in members.items()]) + b"}"


class Commands:
    """The commands of all connections."""

    def __init__(self, api: Api, operations: Sequence[Operation] = routes.OPERATIONS) -> None:
        self.api = api
        offered = [each for each in application.configured(operations, api.config.metrics) if each.name not in NOT_HERE]
        self._by_name = {each.name: Command(each) for each in (*offered, *OWN)}
        self._by_name |= {alias: self._by_name[name] for alias, name in ALIASES.items() if name in self._by_name}

    @property
    def names(self) -> list[str]:
        return sorted(self._by_name)

    def find(self, name: str) -> Command:
        found = self._by_name.get(name)
        if found is None:
            raise Refused(HTTPStatus.NOT_FOUND, f"The command {name[:100]!r} does not exist", "cmd")
        return found

    def call(self, command: Command, session: Session, link: TextConnection) -> Call:
        operation = command.operation
        scope: dict[str, Any] = {
            "type": "http",
            "method": operation.method,
            "raw_path": b"",
            "query_string": b"",
            "headers": [],
            "client": None,
            "server": (session.reached_at, self.api.gateway.addresses.websocket),
            CUT: link.close_for_others,
        }
        return Call(self.api, operation, scope, _receiving(link.gone), session)


def _receiving(gone: asyncio.Future[None]) -> Receive:
    async def receive() -> Message:
        await asyncio.shield(gone)
        return {"type": "http.disconnect"}

    return receive


async def run_command(command: Command, call: Call) -> bytes:
    """Returns the value of the member `ok` as JSON, and holds its memory until it is sent."""
    result = await _run_handler(command, call)
    if len(result) > FREE_BYTES:
        call.response_reservation().hold(len(result))
    return result


async def _run_handler(command: Command, call: Call) -> bytes:
    if call.api.budgets.are_responses_many and command.operation.method == "GET":
        await call.response_reservation().wait_for_share()
    found = await command.operation.handler(call)
    if isinstance(found, HttpResponse):
        return _embedded(found.body, dict(found.headers).get(b"content-type", JSON[1]))
    if isinstance(found, Response):
        return _embedded(bytes(found.body), found.headers.get("content-type", "text/plain").encode())
    if found is None and command.operation.response is not None:
        raise missing(command.operation, call.parameters)
    return NULL if found is None else _encode(found)


def _embedded(body: bytes, kind: bytes) -> bytes:
    if not body:
        return NULL
    if kind.startswith(JSON[1]):
        return body
    if kind.startswith((b"text/", b"application/openmetrics-text")):
        return _encode(body.decode())
    return _encode(base64.b64encode(body).decode())
