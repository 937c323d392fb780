"""Requests as bytes: for every command code, the parts of its payload in their order.

The server decodes, our own client encodes; both follow the same table. Bytes after the last part are ignored, because
real clients send some. Only send_messages, which carries messages, is not in the table: `sends` has it.
"""

from __future__ import annotations

from collections.abc import Callable

from whippet.app.commands import requests as ask
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import Limits, Readable
from whippet.transports.wire import poll_request
from whippet.transports.wire.classic import sends
from whippet.transports.wire.classic.dialect import LONG, Dialect
from whippet.transports.wire.classic.frames import SEND_MESSAGES
from whippet.transports.wire.permissions import PERMISSIONS
from whippet.transports.wire.primitives import (
    COMPRESSION,
    CONSUMER,
    FLAG,
    IDENTIFIER,
    NAME,
    PARTITION,
    STATUS,
    STR8,
    STR32,
    U8,
    U32,
    U64,
    Part,
    Reader,
    counted,
    optional,
    perhaps,
    structure,
    unless_none,
)

S, T, G, USER = ({"stream": IDENTIFIER}, {"topic": IDENTIFIER}, {"group": IDENTIFIER}, {"user": IDENTIFIER})
LAYOUTS: dict[int, tuple[type[ask.Request], Part]] = {
    code: (request, structure(request, **parts))
    for code, request, parts in (
        (1, ask.Ping, {}),
        (10, ask.GetStats, {}),
        (11, ask.GetSnapshot, {"compression": U8, "types": counted(U8, U8)}),
        (12, ask.GetClusterMetadata, {}),
        (20, ask.GetMe, {}),
        (21, ask.GetClient, {"client_id": U32}),
        (22, ask.GetClients, {}),
        (31, ask.GetUser, USER),
        (32, ask.GetUsers, {}),
        (33, ask.CreateUser, {"username": NAME, "password": STR8, "status": STATUS, "permissions": PERMISSIONS}),
        (34, ask.DeleteUser, USER),
        (35, ask.UpdateUser, USER | {"username": optional(NAME), "status": optional(STATUS)}),
        (36, ask.UpdatePermissions, USER | {"permissions": PERMISSIONS}),
        (37, ask.ChangePassword, USER | {"current_password": STR8, "new_password": STR8}),
        (
            38,
            ask.LoginUser,
            {"username": NAME, "password": STR8, "version": perhaps(STR32, ""), "context": perhaps(STR32, "")},
        ),
        (39, ask.LogoutUser, {}),
        (41, ask.GetPersonalAccessTokens, {}),
        (42, ask.CreatePersonalAccessToken, {"name": NAME, "expiry": U64}),
        (43, ask.DeletePersonalAccessToken, {"name": NAME}),
        (44, ask.LoginWithPersonalAccessToken, {"token": NAME}),
        (102, ask.FlushUnsavedBuffer, S | T | {"partition_id": U32, "fsync": FLAG}),
        (120, ask.GetConsumerOffset, {"consumer": CONSUMER} | S | T | {"partition_id": PARTITION}),
        (121, ask.StoreConsumerOffset, {"consumer": CONSUMER} | S | T | {"partition_id": PARTITION, "offset": U64}),
        (122, ask.DeleteConsumerOffset, {"consumer": CONSUMER} | S | T | {"partition_id": PARTITION}),
        (200, ask.GetStream, S),
        (201, ask.GetStreams, {}),
        (202, ask.CreateStream, {"name": NAME}),
        (203, ask.DeleteStream, S),
        (204, ask.UpdateStream, S | {"name": NAME}),
        (205, ask.PurgeStream, S),
        (300, ask.GetTopic, S | T),
        (301, ask.GetTopics, S),
        (
            302,
            ask.CreateTopic,
            S
            | {
                "partitions_count": U32,
                "compression_algorithm": COMPRESSION,
                "message_expiry": U64,
                "max_topic_size": U64,
                "replication_factor": U8,
                "name": NAME,
            },
        ),
        (303, ask.DeleteTopic, S | T),
        (
            304,
            ask.UpdateTopic,
            S
            | T
            | {
                "compression_algorithm": unless_none(COMPRESSION, 1),
                "message_expiry": unless_none(U64, 0),
                "max_topic_size": unless_none(U64, 0),
                "replication_factor": unless_none(U8, 0),
                "name": NAME,
            },
        ),
        (305, ask.PurgeTopic, S | T),
        (402, ask.CreatePartitions, S | T | {"count": U32}),
        (403, ask.DeletePartitions, S | T | {"count": U32}),
        (503, ask.DeleteSegments, S | T | {"partition_id": U32, "count": U32}),
        (600, ask.GetConsumerGroup, S | T | G),
        (601, ask.GetConsumerGroups, S | T),
        (602, ask.CreateConsumerGroup, S | T | {"name": NAME}),
        (603, ask.DeleteConsumerGroup, S | T | G),
        (604, ask.JoinConsumerGroup, S | T | G),
        (605, ask.LeaveConsumerGroup, S | T | G),
    )
}

LAYOUTS[100] = ask.PollMessages, poll_request.POLL

_READS = {code: part.read for code, (_, part) in LAYOUTS.items()}
_WRITES = {request: (code, part.write) for code, (request, part) in LAYOUTS.items()}


def decode(
    code: int,
    payload: memoryview,
    dialect: Dialect,
    random_bytes: Callable[[int], bytes],
    limits: Limits = sends.LIMITS,
) -> ask.Request:
    """The command that a payload asks for, or a CommandError that says what is wrong with it.

    A send teaches the dialect; `random_bytes` is for messages that come without an id.
    """
    if code == SEND_MESSAGES:
        return sends.decode(payload, dialect, random_bytes, limits)
    read = _READS.get(code)
    if read is None:
        raise CommandError(Code.INVALID_COMMAND, f"there is no command {code}")
    return read(Reader(payload))  # type: ignore[no-any-return]


def code_of(request: ask.Request) -> int:
    return SEND_MESSAGES if isinstance(request, ask.SendMessages) else _WRITES[type(request)][0]


def encode_request(request: ask.Request, header_size: int = LONG) -> Readable:
    """The payload of a request; `header_size` is that of the messages in a send."""
    if isinstance(request, ask.SendMessages):
        return sends.encode(request, header_size)
    return _WRITES[type(request)][1](request)
