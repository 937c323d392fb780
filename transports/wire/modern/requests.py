"""Requests of 0.9 clients as bytes. Most commands have their classic layout; here are the others.

The server decodes, our own client encodes; both follow the same table. A send is not in it: `sends` has it.
"""

from __future__ import annotations

import msgspec

from whippet.app.commands import requests
from whippet.app.errors import Code, CommandError
from whippet.app.model.options import Option, OptionScope, ValueKind
from whippet.storage.batch import Readable
from whippet.transports.wire import numbered_sends, poll_request
from whippet.transports.wire.classic import requests as classic
from whippet.transports.wire.classic.frames import SEND_MESSAGES
from whippet.transports.wire.modern import operations, sends, tlv
from whippet.transports.wire.permissions import PERMISSIONS
from whippet.transports.wire.primitives import (
    CONSUMER,
    IDENTIFIER,
    NAME,
    PARTITION,
    STATUS,
    STR8,
    U8,
    U32,
    U64,
    Part,
    Reader,
    followed,
    optional,
    structure,
    u64,
)

CLIENT_BYTES = 16
_SCOPES = {int(scope): scope for scope in OptionScope}


ACKNOWLEDGED = followed(U8, 1)
"""How many replicas must have it, a byte at the end. Here there is always one."""


def _read_scope(reader: Reader) -> OptionScope:
    number = reader.u8()
    if number not in _SCOPES:
        raise CommandError(Code.INVALID_COMMAND, f"the scope {number} of options is unknown")
    return _SCOPES[number]


SCOPE = Part(_read_scope, U8.write)


def _read_attach(reader: Reader) -> requests.AttachSession:
    client, number = bytes(reader.take(CLIENT_BYTES)), reader.u64()
    # The newest state of the catalogue that the client has seen. The only catalogue here is never older.
    reader.u64()
    return requests.AttachSession(client, number)


ATTACH = Part(_read_attach, lambda request: b"".join((request.client, u64(request.number), u64(0))))


def _all_in_options(part: Part) -> Part:
    """Encodes settings of a topic that are separate fields elsewhere. Those that are not set are left out."""

    def write(request: requests.CreateTopic | requests.UpdateTopic) -> Readable:
        settings = [
            Option(key, ValueKind.UINT64, u64(value))
            for key in ("max_topic_size", "message_expiry")
            if (value := getattr(request, key))
        ]
        if request.compression_algorithm in COMPRESSIONS:
            name = COMPRESSIONS[request.compression_algorithm]
            settings.append(Option("compression_algorithm", ValueKind.STRING, name))
        named = {option.key: option for option in (*settings, *request.options)}
        options = tuple(named[key] for key in sorted(named))
        return part.write(msgspec.structs.replace(request, options=options))

    return Part(part.read, write)


COMPRESSIONS = {2: b"gzip", 3: b"zstd"}
S, T, G, USER = ({"stream": IDENTIFIER}, {"topic": IDENTIFIER}, {"group": IDENTIFIER}, {"user": IDENTIFIER})
OPTIONS = {"options": tlv.REST}
OFFSET_OF = {"consumer": CONSUMER} | S | T | {"partition_id": PARTITION}

LAYOUTS: dict[int, tuple[type[requests.Request], Part]] = {
    code: layout for code, layout in classic.LAYOUTS.items() if code not in operations.LOGINS
} | {
    code: (request, structure(request, **parts))
    for code, request, parts in (
        (13, requests.DescribeOptions, {"scope": SCOPE}),
        (
            33,
            requests.CreateUser,
            {"username": NAME, "password": STR8, "status": STATUS, "permissions": PERMISSIONS} | OPTIONS,
        ),
        (35, requests.UpdateUser, USER | {"username": optional(NAME), "status": optional(STATUS)} | OPTIONS),
        (103, requests.GetPollRouting, poll_request.LAYOUT),
        (123, requests.GetOffsetRouting, OFFSET_OF),
        (202, requests.CreateStream, {"name": NAME} | OPTIONS),
        (204, requests.UpdateStream, S | {"name": NAME} | OPTIONS),
        (606, requests.SyncConsumerGroup, S | T | G),
    )
}
LAYOUTS[14] = requests.AttachSession, ATTACH
LAYOUTS[104] = requests.PollMessages, poll_request.POLL
LAYOUTS[121] = (
    requests.StoreConsumerOffset,
    ACKNOWLEDGED(structure(requests.StoreConsumerOffset, **OFFSET_OF, offset=U64)),
)
LAYOUTS[122] = requests.DeleteConsumerOffset, ACKNOWLEDGED(structure(requests.DeleteConsumerOffset, **OFFSET_OF))

LAYOUTS[302] = (
    requests.CreateTopic,
    _all_in_options(structure(requests.CreateTopic, **S, partitions_count=U32, name=NAME, **OPTIONS)),
)
LAYOUTS[304] = requests.UpdateTopic, _all_in_options(structure(requests.UpdateTopic, **S, **T, name=NAME, **OPTIONS))

_READS = {code: part.read for code, (_, part) in LAYOUTS.items()}
_WRITES = {request: (code, part.write) for code, (request, part) in LAYOUTS.items() if code != 104}


def decode(code: int, body: memoryview) -> requests.Request:
    """Returns the command in a body, or raises a CommandError that tells what is wrong with it."""
    if code == SEND_MESSAGES:
        return sends.decode(body)
    if code == numbered_sends.CODE:
        return numbered_sends.decode(body)
    read = _READS.get(code)
    if read is None:
        raise CommandError(Code.INVALID_COMMAND, f"command {code} does not exist")
    return read(Reader(body))  # type: ignore[no-any-return]


def code_of(request: requests.Request) -> int:
    if isinstance(request, requests.SendMessages):
        return SEND_MESSAGES if request.producer is None else numbered_sends.CODE
    return _WRITES[type(request)][0]


def encode(request: requests.Request) -> list[Readable]:
    """Returns the body of a request as buffers."""
    if isinstance(request, requests.SendMessages):
        return sends.encode(request) if request.producer is None else numbered_sends.encode(request)
    return [_WRITES[type(request)][1](request)]
