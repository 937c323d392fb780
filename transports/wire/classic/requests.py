"""Requests as bytes: for every command code, the parts of its payload in their order.

The server decodes, our own client encodes; both follow the same table. Bytes after the last part are ignored, because
real clients send some. Only send_messages, which carries messages, is not in the table: `sends` has it.
"""

from __future__ import annotations

from collections.abc import Callable

from whippet.app.commands import requests
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
LAYOUTS: dict[int, tuple[type[requests.Request], Part]] = {
    code: (request, structure(request, **parts))
    for code, request, parts in (
        (1, requests.Ping, {}),
        (10, requests.GetStats, {}),
        (11, requests.GetSnapshot, {"compression": U8, "types": counted(U8, U8)}),
        (12, requests.GetClusterMetadata, {}),
        (20, requests.GetMe, {}),
        (21, requests.GetClient, {"client_id": U32}),
        (22, requests.GetClients, {}),
        (31, requests.GetUser, USER),
        (32, requests.GetUsers, {}),
        (33, requests.CreateUser, {"username": NAME, "password": STR8, "status": STATUS, "permissions": PERMISSIONS}),
        (34, requests.DeleteUser, USER),
        (35, requests.UpdateUser, USER | {"username": optional(NAME), "status": optional(STATUS)}),
        (36, requests.UpdatePermissions, USER | {"permissions": PERMISSIONS}),
        (37, requests.ChangePassword, USER | {"current_password": STR8, "new_password": STR8}),
        (
            38,
            requests.LoginUser,
            {"username": NAME, "password": STR8, "version": perhaps(STR32, ""), "context": perhaps(STR32, "")},
        ),
        (39, requests.LogoutUser, {}),
        (41, requests.GetPersonalAccessTokens, {}),
        (42, requests.CreatePersonalAccessToken, {"name": NAME, "expiry": U64}),
        (43, requests.DeletePersonalAccessToken, {"name": NAME}),
        (44, requests.LoginWithPersonalAccessToken, {"token": NAME}),
        (102, requests.FlushUnsavedBuffer, S | T | {"partition_id": U32, "fsync": FLAG}),
        (120, requests.GetConsumerOffset, {"consumer": CONSUMER} | S | T | {"partition_id": PARTITION}),
        (
            121,
            requests.StoreConsumerOffset,
            {"consumer": CONSUMER} | S | T | {"partition_id": PARTITION, "offset": U64},
        ),
        (122, requests.DeleteConsumerOffset, {"consumer": CONSUMER} | S | T | {"partition_id": PARTITION}),
        (200, requests.GetStream, S),
        (201, requests.GetStreams, {}),
        (202, requests.CreateStream, {"name": NAME}),
        (203, requests.DeleteStream, S),
        (204, requests.UpdateStream, S | {"name": NAME}),
        (205, requests.PurgeStream, S),
        (300, requests.GetTopic, S | T),
        (301, requests.GetTopics, S),
        (
            302,
            requests.CreateTopic,
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
        (303, requests.DeleteTopic, S | T),
        (
            304,
            requests.UpdateTopic,
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
        (305, requests.PurgeTopic, S | T),
        (402, requests.CreatePartitions, S | T | {"count": U32}),
        (403, requests.DeletePartitions, S | T | {"count": U32}),
        (503, requests.DeleteSegments, S | T | {"partition_id": U32, "count": U32}),
        (600, requests.GetConsumerGroup, S | T | G),
        (601, requests.GetConsumerGroups, S | T),
        (602, requests.CreateConsumerGroup, S | T | {"name": NAME}),
        (603, requests.DeleteConsumerGroup, S | T | G),
        (604, requests.JoinConsumerGroup, S | T | G),
        (605, requests.LeaveConsumerGroup, S | T | G),
    )
}

LAYOUTS[100] = requests.PollMessages, poll_request.POLL

_READS = {code: part.read for code, (_, part) in LAYOUTS.items()}
_WRITES = {request: (code, part.write) for code, (request, part) in LAYOUTS.items()}


def decode(
    code: int,
    payload: memoryview,
    dialect: Dialect,
    random_bytes: Callable[[int], bytes],
    limits: Limits = sends.LIMITS,
) -> requests.Request:
    """Returns the command in a payload, or raises a CommandError that tells what is wrong with it.

    A send updates the dialect; `random_bytes` creates ids for messages without one.
    """
    if code == SEND_MESSAGES:
        return sends.decode(payload, dialect, random_bytes, limits)
    read = _READS.get(code)
    if read is None:
        raise CommandError(Code.INVALID_COMMAND, f"command {code} does not exist")
    return read(Reader(payload))  # type: ignore[no-any-return]


def code_of(request: requests.Request) -> int:
    return SEND_MESSAGES if isinstance(request, requests.SendMessages) else _WRITES[type(request)][0]


def encode_request(request: requests.Request, header_size: int = LONG) -> Readable:
    """Returns the payload of a request; `header_size` is that of the messages in a send."""
    if isinstance(request, requests.SendMessages):
        return sends.encode(request, header_size)
    return _WRITES[type(request)][1](request)
